"""Generator: damaged models, samples, states and records; each is read whole or refused in a line.

    python -m tests.fuzz.files --minutes 60

A refusal is a ValueError, TypeError or OSError that this package raised itself, of one line that is
not too long; nothing may take long, or more memory than a few times the file.  What is read must be
what the reader promises: finite samples, labels that are classes.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import sys
import tempfile
import traceback
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz import mutate
from tests.fuzz.harness import REFUSED, Generator, main
from tests.fuzz.program_files import program

OURS = ("relay_wgrad", "byoc_cudnn", "legalize")
NUMBERS = ("-5", "0", "-0.5", "nan", "inf", "1e300", "1e-300", "1_0", "7" * 30, "x", "", "None")
PLACES = ("", "gone.bin", "link.bin", "../w.bin", "/etc/passwd", ".", "./w.bin", "a/../w.bin")
LONGEST = 2500  # characters of a message; paths and lists of names are in it


def _shapes() -> onnx.ModelProto:
    """Shape arithmetic and constants, which are computed on import."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1]),
        helper.make_node("Shape", ["c"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("ConstantOfShape", ["fill"], ["b"],
                         value=numpy_helper.from_array(np.array([0.5], "float32"))),
        helper.make_node("MaxPool", ["c"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["c", "target"], ["r"]),
        helper.make_node("Gemm", ["r", "b"], ["y"]),
    ]  # fmt: skip
    weights = {"w": np.ones((4, 3, 3, 3), "float32"), "zero": np.array([0]),
               "rest": np.array([-1]), "fill": np.array([72, 5])}  # fmt: skip
    graph = helper.make_graph(
        nodes, "shapes", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 6, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def _models() -> list[onnx.ModelProto]:
    from tests.support.training_models import residual_net

    return [residual_net(blocks=0, channels=4, size=6), _shapes()]


@functools.cache
def _graph() -> Any:
    from relay_wgrad import register
    from relay_wgrad.frontend import from_onnx

    register()
    return from_onnx(_models()[0], batch=2)


def _samples(rng: mutate.Rng) -> dict[str, Any]:
    images = np.linspace(-1, 1, 6 * 3 * 36).reshape(6, 3, 6, 6)
    if rng.random() < 0.3:
        images[3, 2, 1, 0] = mutate.choice(rng, mutate.FLOATS)
    return {"x": images, "labels": np.arange(6) % 5, "more": np.zeros(3)}


# ---- kinds of files: how one is made, damaged, and read ---------------------------------------


def _model(rng: mutate.Rng, folder: Path) -> Callable[[], None]:
    proto = mutate.choice(rng, _models())
    if rng.random() < 0.25:
        tensor = proto.graph.initializer[0]
        data = tensor.raw_data or numpy_helper.to_array(tensor).tobytes()
        (folder / "w.bin").write_bytes(data)
        (folder / "link.bin").symlink_to("w.bin")
        for field in ("raw_data", "float_data"):
            tensor.ClearField(field)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(len(data)))):
            tensor.external_data.add(key=key, value=value)
        if rng.random() < 0.5:
            entry = mutate.choice(rng, tensor.external_data)
            entry.value = str(mutate.choice(rng, (*PLACES, *mutate.INTEGERS)))
    content = b""
    if rng.random() < 0.7:
        mutate.message(rng, proto)
        content = proto.SerializeToString()
    else:
        content = mutate.damaged(rng, proto.SerializeToString())
    path = folder / "model.onnx"
    path.write_bytes(content)
    weights = mutate.choice(rng, ("initial", "seeded", "auto"))

    def read() -> None:
        from relay_wgrad.frontend import from_onnx, to_onnx

        graph = from_onnx(path, batch=2, weights=weights)
        to_onnx(graph, graph.params, path)  # what is imported can be exported

    return read


def _npz(rng: mutate.Rng, folder: Path) -> Callable[[], None]:
    out = io.BytesIO()
    (np.savez if rng.random() < 0.5 else np.savez_compressed)(out, **_samples(rng))
    content = out.getvalue()
    if rng.random() < 0.6:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
            for name in old.namelist():
                member = old.read(name)
                if rng.random() < 0.5:
                    member = _header_changed(rng, member)
                new.writestr(zipfile.ZipInfo(name), member)  # without the time
        content = out.getvalue()
    if rng.random() < 0.5:
        content = mutate.damaged(rng, content)
    path = folder / "data.npz"
    path.write_bytes(content)

    def read() -> None:
        from relay_wgrad.training.data import Data

        data = Data.load(path, _graph())
        batch = data.batch(0)
        assert np.isfinite(batch["x"]).all()
        assert ((batch["labels"] >= 0) & (batch["labels"] < 5)).all()

    return read


def _header_changed(rng: mutate.Rng, member: bytes) -> bytes:
    if rng.random() < 0.3:
        return mutate.damaged(rng, member)
    array = np.load(io.BytesIO(member))
    head = np.lib.format.header_data_from_array_1_0(array)
    key = mutate.choice(rng, list(head))
    dtypes = ("|O", "<f2", ">f8", "<c16", "|b1", "<M8[s]", "|S4", "<U2", "|V8", "<f4", "nonsense")
    sizes = tuple(int(mutate.choice(rng, mutate.INTEGERS)) for _ in range(int(rng.integers(5))))
    head[key] = {"shape": sizes, "descr": mutate.choice(rng, dtypes), "fortran_order": True}[key]
    text = repr(head).encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + array.tobytes()


def _state(rng: mutate.Rng, folder: Path) -> Callable[[], None]:
    from safetensors.numpy import save_file

    from relay_wgrad.training import state
    from relay_wgrad.training.optim import make_optimizer

    graph = _graph()
    optimizer = make_optimizer("sgd", lr=0.01, momentum=0.9)
    optimizer.init(graph.variables(graph.trainable))
    tensors = {f"param.{n}": v for n, v in graph.params.items()}
    for i, value in enumerate(optimizer.state):
        tensors[f"optimizer.{i}"] = value.numpy()
    values = (state.FORMAT, graph.name, "momentum", "0.01", "0", "1024.0", "0", "0")
    path = folder / "state.safetensors"
    save_file(tensors, path, dict(zip(state._KEYS, values, strict=True)))
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + length])
    # The library writes them in another order every time.
    head["__metadata__"] = {key: head["__metadata__"][key] for key in state._KEYS}
    if rng.random() < 0.6:
        if rng.random() < 0.5:
            said = head["__metadata__"]
            said[mutate.choice(rng, list(said))] = mutate.choice(rng, NUMBERS)
        else:
            head = mutate.json_value(rng, head)
    text = json.dumps(head).encode()
    content = struct.pack("<Q", len(text)) + text + content[8 + length :]
    if rng.random() < 0.3:
        content = mutate.damaged(rng, content)
    path.write_bytes(content)

    def read() -> None:
        found = state.header(path)
        state.check(path, graph, "momentum")
        assert 0 <= int(found["skipped"]) <= int(found["steps"])
        assert found["loss_scale"] == "None" or 0 < np.float32(found["loss_scale"]) < np.inf
        assert 0 < float(found["lr"]) < np.inf

    return read


def _record(rng: mutate.Rng, folder: Path) -> Callable[[], None]:
    from byoc_cudnn.tuning.record import FORMAT, VERSION

    one = {
        "machine": "GPU sm_90", "backend": "cutlass", "version": "1", "epilogue": "", "ms": 0.1,
        "problem": "fprop n=1 c=8 h=8 w=8 k=8 r=3 s=3", "options": {"allow_tf32": True}, "pins": {},
    }  # fmt: skip
    whole = {"format": FORMAT, "version": VERSION, "measurements": [one, {**one, "ms": 3}]}
    content = json.dumps(mutate.json_value(rng, whole)).encode()
    if rng.random() < 0.3:
        content = mutate.damaged(rng, content)
    path = folder / "record.json"
    path.write_bytes(content)

    def read() -> None:
        from byoc_cudnn.tuning.record import Record

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of measurements that are left aside
            record = Record.load(path)
        assert all(m.ms > 0 for m in record)

    return read


KINDS = {"onnx": _model, "npz": _npz, "safetensors": _state, "record": _record,
         "pt2": program}  # fmt: skip


def case(seed: int, index: int) -> str:
    # Models have the most ways to be wrong.
    kinds = ("onnx", "npz", "onnx", "safetensors", "onnx", "record", "pt2", "pt2")
    return f"{kinds[index % len(kinds)]} {seed} {index}"


def labels(line: str) -> dict[str, str]:
    return {"kind": line.split()[0]}


def check(line: str) -> str | None:
    kind, *numbers = line.split()
    rng = np.random.default_rng([int(x) for x in numbers])
    with tempfile.TemporaryDirectory() as folder:
        read = KINDS[kind](rng, Path(folder))
        try:
            read()
        except (ValueError, TypeError, OSError) as error:
            text = str(error)
            frames = traceback.extract_tb(error.__traceback__)
            last = Path(frames[-1].filename)
            if not set(OURS) & set(last.parts[-4:-1]):  # of this checkout, or of another
                return (
                    f"raised elsewhere: {last}:{frames[-1].lineno}: {type(error).__name__}: {text}"
                )
            if "\n" in text or len(text) > LONGEST or not text:
                return f"a message of {len(text)} characters: {text}"
            return f"{REFUSED}{kind}: {type(error).__name__}: {text.replace(folder, '')[:100]}"
    return None


GENERATOR = Generator(
    "files", "damaged files are read whole or refused in one line", case=case, labels=labels,
    check=check, timeout=30.0, recycle=400, memory=8 << 30,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
