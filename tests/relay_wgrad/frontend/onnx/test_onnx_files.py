"""ONNX files: data in other files, graphs that are none; one sentence with file and reason."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relay_wgrad.cli.main import main
from relay_wgrad.frontend import from_onnx, to_onnx
from tests.support.onnx.models import draw, node, tiny

W = draw(6, 2, 3, 3).astype("float32")


def with_external(path: Path, **entries: str | None) -> Path:
    """A model whose one weight is in another file, as the entries say."""
    model = tiny([node("Conv", "w")], (1, 2, 5, 5), {"w": W})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in ({"location": "w.bin"} | entries).items():
        if value is not None:
            tensor.external_data.add(key=key, value=value)
    onnx.save_model(model, path)
    return path


def test_data_in_another_file(tmp_path: Path) -> None:
    """With and without offset and length; in a folder below; written back into one file."""
    (tmp_path / "below").mkdir()
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    (tmp_path / "below" / "w.bin").write_bytes(b"x" * 16 + W.tobytes() + b"y")
    length = str(W.nbytes)
    for entries in (
        {}, {"offset": "0"}, {"location": "./w.bin", "length": length, "checksum": "of no use"},
        {"location": "below/w.bin", "offset": "16", "length": length},
    ):  # fmt: skip
        path = with_external(tmp_path / "m.onnx", **entries)
        graph = from_onnx(path, weights="initial", loss="mse")
        np.testing.assert_array_equal(graph.params["w"], W)
        written = to_onnx(graph, graph.params, path)
        np.testing.assert_array_equal(numpy_helper.to_array(written.graph.initializer[0]), W)


BEGIN = "initializer 'w' has its data in "
OUTSIDE = [
    ({"location": "gone.bin"}, f"{BEGIN}'gone.bin', which is missing"),
    ({"location": "/etc/passwd"}, f"{BEGIN}'/etc/passwd': the location must be within the model's"),
    ({"location": "C:\\w.bin"}, "within the model's folder, not absolute"),
    ({"location": "../w.bin"}, f"{BEGIN}'../w.bin': the location is outside of the model's folder"),
    ({"location": "below/../../w.bin"}, "is outside of the model's folder"),
    ({"location": "link.bin"}, f"{BEGIN}'link.bin', which is a link: data are not read through"),
    ({"location": "linked/w.bin"}, "which is a link"),
    ({"location": "below"}, f"{BEGIN}'below', which is no file"),
    ({"location": "pipe"}, f"{BEGIN}'pipe', which is no file"),
    ({"location": None}, f"{BEGIN}'': no location of a file"),
    ({"location": "x" * 300}, "File name too long"),
    ({"offset": "400"}, f"{BEGIN}'w.bin': 32 bytes, but its shape [6, 2, 3, 3] has 432 bytes"),
    ({"offset": "500"}, "0 bytes from byte 500 on, but the file has 432"),
    ({"length": "433"}, "433 bytes from byte 0 on, but the file has 432"),
    ({"length": "9" * 18}, f"{'9' * 18} bytes from byte 0 on, but the file has 432"),
    ({"offset": "-4"}, "with offset '-4', which is no number of bytes"),
    ({"length": "4.0"}, "with length '4.0', which is no number of bytes"),
    ({"length": "8"}, "8 bytes, but its shape [6, 2, 3, 3] has 432 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "message"), OUTSIDE)
def test_data_that_are_not_read(
    entries: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "model"
    (folder / "below").mkdir(parents=True)
    for place in (tmp_path, folder, folder / "below"):
        (place / "w.bin").write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to("w.bin")
    (folder / "linked").symlink_to(folder / "below")
    os.mkfifo(folder / "pipe")
    path = with_external(folder / "m.onnx", **entries)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)) as caught:
        from_onnx(path)
    assert str(caught.value).startswith(f"{str(path)!r}: ")
    assert main(["partition", str(path), "--quiet"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_a_model_that_was_read_without_its_data(tmp_path: Path) -> None:
    path = with_external(tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"^tiny: initializer 'w' has its data in another file: "):
        from_onnx(onnx.load(path, load_external_data=False))


def graph_of(change: Any) -> onnx.ModelProto:
    model = tiny(
        [helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
         helper.make_node("Relu", ["a"], ["b"], name="relu"),
         helper.make_node("Add", ["a", "b"], ["y"], name="sum")],
        (1, 2, 5, 5), {"w": W},
    )  # fmt: skip
    change(model.graph)
    return model


def _cyclic(g: onnx.GraphProto) -> None:
    g.node[0].input[0] = "y"


def _itself(g: onnx.GraphProto) -> None:
    g.node[1].input[0] = "b"


def _unsorted(g: onnx.GraphProto) -> None:
    first = onnx.NodeProto()
    first.CopyFrom(g.node[1])
    del g.node[1]
    g.node.insert(0, first)


def _sizes(*sizes: int) -> Any:
    def change(g: onnx.GraphProto) -> None:
        g.initializer[0].dims[:] = sizes

    return change


def _fill_without_data(g: onnx.GraphProto) -> None:
    _shape_of_ones(6, 2, 3, 3)(g)
    fill = numpy_helper.from_array(np.ones(1, "float32"))
    fill.ClearField("raw_data")
    g.node[0].attribute.append(helper.make_attribute("value", fill))


def _shape_of_ones(*sizes: int) -> Any:
    def change(g: onnx.GraphProto) -> None:
        shape = helper.make_node("ConstantOfShape", ["s"], ["w"], name="ones")
        g.node.insert(0, shape)
        g.initializer[0].CopyFrom(numpy_helper.from_array(np.array(sizes, "int64"), "s"))

    return change


def _branches(g: onnx.GraphProto) -> None:
    """A choice between graphs that take x from around them, the only ones that do."""
    result = helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["o"])], "branch", [], [result])
    g.node.insert(0, helper.make_node(
        "If", ["yes"], ["chosen"], "choice", then_branch=branch, else_branch=branch
    ))  # fmt: skip
    g.node[1].input[0] = "chosen"
    g.initializer.append(numpy_helper.from_array(np.array(True), "yes"))


GRAPHS = {
    "branches": (_branches, "ONNX op If (If node 'choice') is not supported"),
    "cycle": (_cyclic, "its nodes form a cycle: Add 'sum' → Conv 'conv' → Add 'sum'"),
    "itself": (_itself, "its nodes form a cycle: Relu 'relu' → Relu 'relu'"),
    "order": (_unsorted, "Relu 'relu' takes 'a' before Conv 'conv' makes it: nodes must be"),
    "no outputs": (lambda g: g.ClearField("output"), "the model has no outputs"),
    "outputs": (lambda g: g.output.append(g.output[0]), "2 outputs are named 'y'"),
    "inputs": (lambda g: g.input.append(g.input[0]), "2 inputs are named 'x'"),
    "weights": (lambda g: g.initializer.append(g.initializer[0]), "2 initializers are named 'w'"),
    "values": (lambda g: g.node[1].output.__setitem__(0, "a"), "2 values are named 'a'"),
    "shadow": (lambda g: g.node[1].output.__setitem__(0, "w"), "2 values are named 'w'"),
    "nameless": (lambda g: g.initializer[0].ClearField("name"), "one of its initializers has no"),
    "negative": (_sizes(-1, 2, 3, 3), "initializer 'w' has a negative size: [-1, 2, 3, 3]"),
    "huge": (_sizes(2**40, 2, 3, 3), "lacks data"),
    "product": (_sizes(2**62, 2**62), "lacks data"),
    "type": (lambda g: setattr(g.initializer[0], "data_type", 99), "is of no known type (99)"),
    "constant": (_shape_of_ones(6, -2, 3, 3), "no tensor has the shape [6, -2, 3, 3]"),
    "large constant": (_shape_of_ones(2**40, 2, 3, 3), "no tensor has the shape [1099511627776"),
    "fill": (_fill_without_data, "ConstantOfShape node 'ones': value of shape [1] lacks data"),
    "no input": (lambda g: g.node[0].input.__setitem__(0, "w"), "the model has no data input"),
}  # fmt: skip


@pytest.mark.parametrize("kind", GRAPHS)
def test_graphs_that_are_none(kind: str, tmp_path: Path) -> None:
    change, message = GRAPHS[kind]
    model, path = graph_of(change), tmp_path / "m.onnx"
    onnx.save_model(model, path)
    for given in (path, model):
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            from_onnx(given, loss="mse")
        assert "\n" not in str(caught.value)


def test_a_long_cycle_is_shortened() -> None:
    nodes = [helper.make_node("Relu", [f"v{(i + 1) % 5000}"], [f"v{i}"]) for i in range(5000)]
    nodes.append(helper.make_node("Add", ["x", "v0"], ["y"]))
    with pytest.raises(ValueError, match=r"a cycle: .* → … 4992 more → Relu 'v\d+'$"):
        from_onnx(tiny(nodes, (1, 2)))


def test_weights_that_one_file_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay_wgrad.frontend.onnx.export.LARGEST", 400)
    model = tiny([node("Conv", "w")], (1, 2, 5, 5), {"w": W})
    graph = from_onnx(model, loss="mse")
    with pytest.raises(ValueError, match="weights of 432 bytes are more than one ONNX file holds"):
        to_onnx(graph, graph.params, model)
