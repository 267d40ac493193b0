"""ONNX's random ops as inputs; what must not be drawn, or taken for logits, on import."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from relay_wgrad.frontend import from_onnx
from tests.support.onnx.models import F64, call, draw, relative, tiny

pytestmark = pytest.mark.usefixtures("registered")

SCALE = {"w": draw(3, seed=5)}


def scaled(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """y = (x·w) times what the nodes make, which is called r."""
    first = helper.make_node("Mul", ["x", "w"], ["s"])
    last = helper.make_node("Mul", ["s", "r"], ["y"])
    return tiny([first, *nodes, last], (4, 3), SCALE)


def made(op: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), ["r"], **attributes)


FROM_SHAPE = [
    helper.make_node("Shape", ["x"], ["size"]),
    helper.make_node("ConstantOfShape", ["size"], ["zeros"]),
]
# Name -> (nodes, the distribution)
CASES: dict[str, tuple[list[onnx.NodeProto], tuple[Any, ...]]] = {
    "normal": (
        [made("RandomNormal", shape=[4, 3], mean=1.0, scale=2.0, dtype=TensorProto.DOUBLE)],
        ("normal", 1.0, 2.0),
    ),
    "normal like": ([made("RandomNormalLike", "s")], ("normal", 0.0, 1.0)),
    "uniform": ([made("RandomUniform", shape=[4, 1], low=-1.0)], ("uniform", -1.0, 1.0)),
    "uniform like a constant": (
        [*FROM_SHAPE, made("RandomUniformLike", "zeros")], ("uniform", 0.0, 1.0)
    ),
    "Bernoulli": (
        [helper.make_node("Sigmoid", ["s"], ["p"]), made("Bernoulli", "p")], ("uniform", 0.0, 1.0)
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "distribution"), CASES.values(), ids=CASES)
def test_random_ops_are_inputs(nodes: Any, distribution: Any) -> None:
    """The loss and the gradient of the factor, with the numbers that the batch has."""
    graph = from_onnx(scaled(*nodes), loss="mse", weights="initial", dtype=F64)
    (spec,) = (s for s in graph.inputs if s.kind == "random")
    assert spec.distribution == distribution
    batch = graph.random_batch(2)
    x, w, r = batch["x"], SCALE["w"], batch[spec.name]
    if nodes[-1].op_type == "Bernoulli":
        r = (r < 1 / (1 + np.exp(-x * w))).astype(F64)
    error = x * w * r - batch["target"]
    outputs, (by_w,) = call(graph.gradient(), "main_adjoint", graph.arguments(batch))
    assert relative(outputs[0], (error**2).mean()) < 1e-12
    assert relative(by_w, (2 * error * x * r / error.size).sum(0)) < 1e-12
    off = from_onnx(scaled(*nodes), loss="mse", dtype=F64, random="off")
    assert [s.kind for s in off.inputs] == ["data", "target"]
    assert len(off.notes) == 1
    assert "switched off: r" in off.notes[0]


def test_a_dropout_of_a_constant_is_not_drawn_on_import() -> None:
    nodes = [
        *FROM_SHAPE,
        helper.make_node("Constant", [], ["ratio"], value=numpy_helper.from_array(np.float32(0.5))),
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.bool_(True))),
        helper.make_node("Cos", ["zeros"], ["ones"]),
        made("Dropout", "ones", "ratio", "yes"),
    ]
    graph = from_onnx(scaled(*nodes), loss="mse", dtype=F64, dropout="mask")
    assert [s.kind for s in graph.inputs] == ["data", "target", "mask"]


def test_multinomial_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ONNX op Multinomial .* is not supported"):
        from_onnx(scaled(*FROM_SHAPE, made("Multinomial", "zeros")), loss="mse")


# Last nodes -> how many of them are taken away for cross_entropy
ENDS: dict[str, tuple[list[tuple[str, dict[str, Any]]], int]] = {
    "one": ([("Softmax", {"axis": 1})], 1),
    "log": ([("Softmax", {"axis": -1}), ("Log", {})], 2),
    "log softmax, twice": ([("LogSoftmax", {}), ("Identity", {}), ("LogSoftmax", {})], 3),
    "softmax, twice": ([("Softmax", {}), ("Softmax", {})], 1),
    "softmax, then its log": ([("Softmax", {}), ("LogSoftmax", {})], 1),
    "of the batch": ([("Softmax", {"axis": 0})], 0),
}


@pytest.mark.parametrize(("ends", "taken"), ENDS.values(), ids=ENDS)
def test_only_what_changes_nothing_is_taken_away(ends: Any, taken: int) -> None:
    """cross_entropy's own log-softmax replaces one final softmax of the classes, no more."""
    names = [f"v{i}" for i in range(len(ends))] + ["y"]
    nodes = [helper.make_node("Mul", ["x", "w"], [names[0]])]
    nodes += [
        helper.make_node(op, [names[i]], [names[i + 1]], **attributes)
        for i, (op, attributes) in enumerate(ends)
    ]
    graph = from_onnx(tiny(nodes, (4, 3), SCALE), weights="initial", dtype=F64)
    batch = graph.random_batch(1)
    _, logits = call(graph.module, "main", graph.arguments(batch))
    model = tiny(nodes[: len(nodes) - taken], (4, 3), SCALE)
    model.graph.output[0].name = names[len(ends) - taken]
    (want,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": batch["x"]})
    assert relative(logits, want) < 1e-12
