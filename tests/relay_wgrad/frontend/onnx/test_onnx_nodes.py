"""Nodes that ONNX does not allow, and errors from below: one line with op, node and reason."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relay_wgrad.frontend import from_onnx, to_onnx
from relay_wgrad.frontend.onnx import importer as onnx_import
from relay_wgrad.frontend.onnx import nodes as onnx_nodes
from tests.support.onnx.models import draw, node, tiny

W = draw(6, 2, 3, 3).astype("float32")
FILL = numpy_helper.from_array(np.ones(1, "float32"))


def of_constants(*nodes: onnx.NodeProto, **given: Any) -> onnx.ModelProto:
    """A model y = x + c; the nodes make c of constants."""
    weights = {name: np.asarray(value) for name, value in given.items()}
    return tiny([*nodes, helper.make_node("Add", ["x", "c"], ["y"])], (1, 2), weights)


def made(op: str, operands: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, operands, ["c"], name="n", **attributes)


def of_bool(model: onnx.ModelProto) -> onnx.ModelProto:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.BOOL
    return model


def with_opset(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
    model.opset_import[0].version = version
    return model


def twice(model: onnx.ModelProto) -> onnx.ModelProto:
    given = model.graph.node[0].attribute
    given.append(given[0])
    return model


REFUSED = {
    "no operand": (of_constants(made("Shape", [])), "Shape node 'n': expected 1 operand, got 0"),
    "empty operand": (
        of_constants(made("Shape", [""])),
        "Shape node 'n': operand 0 (data) is missing",
    ),
    "too many operands": (
        of_constants(made("Shape", ["x", "x"])),
        "Shape node 'n': expected 1 operand, got 2",
    ),
    "too few operands": (
        tiny([node("Conv", name="n")], (1, 2, 5, 5)),
        "Conv node 'n': expected at least 2 operands, got 1",
    ),
    "an operand left out": (
        of_constants(made("Concat", ["s", ""], axis=0), s=[1.0]),
        "Concat node 'n': operand 1 (inputs) is missing",
    ),
    "too many results": (
        tiny([helper.make_node("Relu", ["x"], ["y", "z"], name="n")], (1, 2)),
        "Relu node 'n': expected at most 1 result, got 2",
    ),
    "a float for a tensor": (
        of_constants(made("ConstantOfShape", ["s"], value=1.0), s=[2]),
        "ConstantOfShape node 'n': attribute value must be of type tensor, got float",
    ),
    "a graph for a tensor": (
        of_constants(made("ConstantOfShape", ["s"], value=onnx.GraphProto()), s=[2]),
        "ConstantOfShape node 'n': attribute value must be of type tensor, got graph",
    ),
    "a required attribute": (
        of_constants(made("Concat", ["s"]), s=[1.0]),
        "Concat node 'n': axis is missing",
    ),
    "an attribute of another opset": (
        with_opset(tiny([node("ReduceSum", name="n", axes=[1])], (1, 2)), 13),
        "ReduceSum node 'n': attribute 'axes' is none of ReduceSum's in opset 13, which are: ",
    ),
    "an attribute that is none": (
        tiny([node("Relu", name="n", slope=0.1)], (1, 2)),
        "Relu node 'n': attribute 'slope' is none of Relu's in opset 21, which are: none",
    ),
    "an attribute given twice": (
        twice(tiny([node("Softmax", name="n", axis=1)], (1, 2))),
        "Softmax node 'n': attribute 'axis' is given twice",
    ),
    "convolved truth values": (
        of_bool(tiny([node("Conv", "w", name="n")], (1, 2, 5, 5), {"w": W})),
        "Conv node 'n': operand 0 (X) is tensor(bool), but must be one of",
    ),
    "a shape of floats": (
        of_constants(made("ConstantOfShape", ["s"]), s=np.ones(108, "float32")),
        "ConstantOfShape node 'n': operand 0 (input) is tensor(float), but must be one of tensor(",
    ),
    "108 axes": (
        of_constants(made("ConstantOfShape", ["s"]), s=np.ones(108, "int64")),
        "ConstantOfShape node 'n': the shape is a list of at most 64 sizes, got [108] numbers",
    ),
    "a shape of two axes": (
        of_constants(made("ConstantOfShape", ["s"]), s=np.ones((2, 2), "int64")),
        "ConstantOfShape node 'n': the shape is a list of at most 64 sizes, got [2, 2] numbers",
    ),
    "a large constant": (
        of_constants(made("Expand", ["one", "s"]), one=np.array([1]), s=[2**20, 2**20]),
        "Expand node 'n': its result 'c' of [1048576, 1048576] has more than 2147483647 elements",
    ),
    "an op that is not supported": (
        tiny([node("Hardmax", name="n")], (1, 2, 5)),
        "ONNX op Hardmax (Hardmax node 'n') is not supported; ",
    ),
    "an opset of no int": (
        with_opset(tiny([node("Conv", name="n")], (1, 2, 5, 5)), 2**62),
        f"uses opset {2**62}; onnx ",
    ),
    "a loss of integers": (
        tiny([node("Cast", to=TensorProto.INT64)], (1, 2)),
        "mse wants float32, but 'y' is int64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_nodes_that_onnx_does_not_allow(kind: str) -> None:
    model, message = REFUSED[kind]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        from_onnx(model, loss="mse")
    assert "\n" not in str(caught.value)


def test_floats_are_one_dtype() -> None:
    """The file's float64 input meets a float32 weight: the graph has one dtype."""
    graph = from_onnx(tiny([node("Conv", "w")], (1, 2, 5, 5), {"w": W}), loss="mse")
    assert graph.params["w"].shape == W.shape


@pytest.mark.parametrize(("to", "dtype", "said"), [
    (TensorProto.FLOAT16, "float32", ["float16"]), (TensorProto.BFLOAT16, "float32", ["bfloat16"]),
    (TensorProto.FLOAT, "float32", []), (TensorProto.FLOAT, "float64", ["float32"]),
    (TensorProto.FLOAT16, "float16", []), (TensorProto.DOUBLE, "float32", []),
])  # fmt: skip
def test_a_cast_that_would_round_is_said(to: int, dtype: str, said: list[str]) -> None:
    """Once, however many there are."""
    casts = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=to),
        helper.make_node("Cast", ["b"], ["y"], to=to),
    ]
    model = tiny(casts, (1, 2, 5, 5), {"w": W})
    if dtype == "float16":
        with pytest.raises(ValueError, match="dtype"):
            from_onnx(model, loss="mse", dtype=dtype)
        return
    graph = from_onnx(model, loss="mse", dtype=dtype)
    want = [f"switched off: Cast to {name}: floats stay {dtype} throughout" for name in said]
    assert list(graph.notes) == want


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (IndexError("list index\nout of range"), "cannot be used (IndexError: list index out of"),
        (AttributeError("'float' object"), "cannot be used (AttributeError: 'float' object)"),
        (RuntimeError(), "cannot be used (RuntimeError)"),
        (MemoryError(), "its result does not fit into memory (MemoryError)"),
        (ValueError("no\nsuch axis"), "node 'n': no such axis"),
        (TypeError("x" * 5000), "node 'n': xxxx"),
    ],
)
def test_any_error_names_its_node(
    error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise error

    monkeypatch.setitem(onnx_nodes.OPS, "Relu", fails)
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        from_onnx(tiny([node("Relu", name="n")], (1, 2)), loss="mse")
    text = str(caught.value)
    assert text.startswith("Relu node 'n': ")
    assert "\n" not in text
    assert len(text) < 2000
    assert caught.value.__cause__ is error


def test_parameters_larger_than_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(onnx_import, "seeded", full)
    with pytest.raises(ValueError, match=r"parameters of 0\.0 GiB are more than memory"):
        from_onnx(tiny([node("Conv", "w")], (1, 2, 5, 5), {"w": W}), loss="mse")


def test_a_constant_larger_than_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that a node makes takes a line of the file, and gibibytes as an initializer."""
    # What would make an initializer of it.
    monkeypatch.setattr("relay_wgrad.frontend.onnx.export.numpy_helper", None)
    model = tiny(
        [helper.make_node("ConstantOfShape", ["s"], ["b"], value=FILL), node("Gemm", "b")],
        (1, 2), {"s": np.array([2, 8])},
    )  # fmt: skip
    graph = from_onnx(model, loss="mse")
    huge = np.broadcast_to(np.float32(0.5), (2, 2**29))  # takes no memory
    graph.params["b"] = huge
    with pytest.raises(ValueError, match="weights of 4294967312 bytes are more than one ONNX file"):
        to_onnx(graph, {"b": huge}, model)
