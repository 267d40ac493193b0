"""Files of exported programs: what PyTorch would run while it reads them is refused before."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.frontend import from_torch

Members = dict[str, bytes]
PyTorchFileReader = torch.PyTorchFileReader
WEIGHTS = "n/data/weights/model_weights_config.json"


@pytest.fixture(scope="module")
def members() -> Members:
    """Of a file that is read, by name."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten())
    program = torch.export.export(module, (torch.rand(2, 2, 4, 4),))
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    with zipfile.ZipFile(buffer) as content:
        return {"n/" + n.partition("/")[2]: content.read(n) for n in content.namelist()}


class OlderReader:
    """An older PyTorch's (2.11), which does not say how large a member is."""

    def __init__(self, *args: Any) -> None:
        reader = PyTorchFileReader(*args)
        self.get_all_records, self.get_record = reader.get_all_records, reader.get_record


@pytest.fixture(autouse=True, params=["newer", "older"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "older":
        monkeypatch.setattr(torch, "PyTorchFileReader", OlderReader)


def written(path: Path, members: Members) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, content in members.items():
            out.writestr(name, content)
    return path


class Evil:
    """A pickle of it makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (str(self.path), "w"))


def pickled(marker: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save(((Evil(marker),), {}), buffer)
    return buffer.getvalue()


def edited(members: Members, name: str, change: Callable[[Any], None]) -> Members:
    value = json.loads(members[name])
    change(value)
    return {**members, name: json.dumps(value).encode()}


def program(members: Members, change: Callable[[Any], None]) -> Members:
    return edited(members, "n/models/model.json", change)


def one_weight(row: dict[str, Any]) -> Callable[[Any], None]:
    return lambda config: config["config"]["0.weight"].update(row)


def node(target: str, text: str) -> Callable[[Any], None]:
    """The last node calls `target` with a text."""

    def change(value: Any) -> None:
        last = value["graph_module"]["graph"]["nodes"][-1]
        last["target"] = target
        last["inputs"] = [{"name": "", "arg": {"as_string": text}, "kind": 1}]

    return change


def symbolic(marker: Path) -> Callable[[Any], None]:
    return sized(f"open({str(marker)!r}, 'w').write('') or 2")


def sized(text: str) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        tensor = value["graph_module"]["graph"]["tensor_values"]["relu"]
        tensor["sizes"][0] = {"as_expr": {"expr_str": text, "hint": None}}

    return change


def spec(text: str) -> Callable[[Any], None]:
    def change(value: Any) -> None:
        value["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = text

    return change


Row = tuple[Callable[[Members, Path], Members], str]
REFUSED: dict[str, Row] = {
    "inputs": (
        lambda m, at: {**m, "n/data/sample_inputs/model.pt": pickled(at)},
        r"data/sample_inputs/model.pt holds no tensors alone",
    ),
    "weight": (
        lambda m, at: {
            **edited(m, WEIGHTS, one_weight({"use_pickle": True})),
            "n/data/weights/weight_0": pickled(at),
        },
        r"'0.weight' of data/weights/model_weights_config.json is no plain tensor",
    ),
    "constant": (
        lambda m, at: {**m, "n/data/constants/opaque_obj_0": pickle.dumps(Evil(at))},
        r"a member 'data/constants/opaque_obj_0' is none of a program's",
    ),
    "library": (
        lambda m, at: {**m, "n/data/aotinductor/model/model.so": b"\x7fELF"},
        r"a member 'data/aotinductor/model/model.so' is none of a program's",
    ),
    "operator": (
        lambda m, at: program(m, node("torch.os.mkdir", str(at))),
        r"'torch.os.mkdir' is none of PyTorch's operators",
    ),
    "file": (
        lambda m, at: program(m, node("torch.ops.aten.from_file.default", str(at))),
        r"'torch.ops.aten.from_file.default' is none",
    ),
    "no operator": (
        lambda m, at: program(m, node("torch.ops.aten.__class__.__name__", str(at))),
        r"'torch.ops.aten.__class__.__name__' is none",
    ),
    "size": (lambda m, at: program(m, symbolic(at)), r"a size is symbolic \(\"open\("),
    "size of calls": (
        lambda m, at: program(m, sized("Mul(Integer(2), Symbol('s0').__class__)")),
        r"a size is symbolic",
    ),
    "size of a name": (
        lambda m, at: program(m, sized("Add(s0, os)")), r"a size is symbolic \('Add\(s0, os\)'\)",
    ),
    "guard": (
        lambda m, at: program(m, lambda p: p.update(guards_code=[f"open({str(at)!r}, 'w')"])),
        r"it has conditions on its inputs",
    ),
    "container": (
        lambda m, at: program(m, spec('[1, {"__enum__": true, "fqn": "antigravity:a"}]')),
        r"containers of a type that would be imported",
    ),
    "many zeros": (
        lambda m, at: {
            **edited(m, WEIGHTS, lambda c: c["config"]["0.weight"]["tensor_meta"].update(
                sizes=[{"as_int": 2**40}])),
            "n/data/weights/weight_0": b"",
        },
        r"'0.weight' of data/weights/model_weights_config.json has 0 bytes of \[1099511627776\]",
    ),
    "missing": (
        lambda m, at: {n: c for n, c in m.items() if not n.endswith("weight_0")},
        r"'0.weight' of .* is in data/weights/weight_0, which is missing",
    ),
    "depth": (
        lambda m, at: {**m, "n/models/model.json": b"[" * 100_000},
        r"models/model.json is too deeply nested",
    ),
    "no folder": (
        lambda m, at: {n.partition("/")[2]: c for n, c in m.items()},
        r"is no archive of PyTorch's|is none of a program's",
    ),
    "old": (
        lambda m, at: {"version": b"8.0", "serialized_exported_program.json": b"{}",
                       "serialized_state_dict.pt": pickled(at)},
        r"serialized_state_dict.pt holds no tensors alone",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, members: Members, tmp_path: Path) -> None:
    damage, message = REFUSED[case]
    marker = tmp_path / "made"
    path = written(tmp_path / "net.pt2", damage(members, marker))
    with pytest.raises(ValueError, match=message) as caught:
        from_torch(path, loss="mse")
    assert "\n" not in str(caught.value)
    assert not marker.exists()


def test_compressed(members: Members, tmp_path: Path) -> None:
    """What grows when it is read: PyTorch compresses nothing."""
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in {**members, "n/extra/zeros": bytes(1 << 24)}.items():
            out.writestr(name, content)
    with pytest.raises(ValueError, match=r"its members claim 16\d+ bytes, the file has \d{4,5}$"):
        from_torch(path, loss="mse")


def test_plain(members: Members, tmp_path: Path) -> None:
    """One that was rewritten by another program, with a text beside the program."""
    path = written(tmp_path / "net.pt2", {**members, "n/extra/note": b"text"})
    assert len(from_torch(path, loss="mse").trainable) == 2


def test_two_directories(members: Members, tmp_path: Path) -> None:
    """PyTorch takes the archive that a reader of zip files takes, or it is refused."""
    marker = tmp_path / "made"
    content = [written(tmp_path / name, some).read_bytes() for name, some in (
        ("good", members), ("evil", {**members, "n/data/constants/opaque": pickled(marker)})
    )]  # fmt: skip
    for first, second in (content, content[::-1]):
        path = tmp_path / "net.pt2"
        path.write_bytes(first + second)
        with pytest.raises(ValueError, match="is not an exported program"):
            from_torch(path, loss="mse")
    assert not marker.exists()


def test_an_open_batch(tmp_path: Path) -> None:
    """Its sizes are symbols, and of joined images sums of them."""

    class Joined(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(torch.cat([x.relu(), x])).mean()

    axes = ({0: torch.export.Dim("images")},)
    path = tmp_path / "open.pt2"
    torch.export.save(
        torch.export.export(Joined(3, 2), (torch.ones(4, 3),), dynamic_shapes=axes), path
    )
    graph = from_torch(path, loss="own")
    assert graph.is_open
    assert graph.of_batch(7).inputs[0].shape == (7, 3)
