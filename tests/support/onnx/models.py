"""ONNX models of a node or two, and how their training graphs are run and checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from relay_wgrad.frontend import TrainingGraph, from_onnx
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

F64 = "float64"


def call(module: Any, function: str, arguments: list[np.ndarray]) -> Any:
    vm = virtual_machine(module, FAST)
    return vm[function](*[tvm.runtime.tensor(np.asarray(a, order="C")) for a in arguments])


def relative(got: Any, expected: np.ndarray) -> float:
    return float(np.abs(got.numpy() - expected).max() / max(np.abs(expected).max(), 1e-12))


def with_weights(proto: onnx.ModelProto, graph: TrainingGraph) -> onnx.ModelProto:
    """The file's model with the graph's weights instead of its own, in float64."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    names = {file: graph.params[name] for name, file in graph.onnx_names.items()}
    nodes = [n for n in model.graph.node if n.output[0] not in names]
    kept = [t for t in model.graph.initializer if t.name not in names]
    arrays = [numpy_helper.from_array(a, n) for n, a in names.items()]
    inputs = [i for i in model.graph.input if i.name not in names]
    for field, items in (("node", nodes), ("initializer", kept + arrays), ("input", inputs)):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(items)
    return model


def tiny(
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model from `x` of this shape to `y`."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, shape)],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def check(model: onnx.ModelProto, **options: Any) -> None:
    """Values against ONNX's evaluator, gradients of all parameters and of x against a central
    difference in a random direction."""
    graph = from_onnx(model, loss="mse", weights="initial", dtype=F64, **options)
    assert graph.outputs[:2] == ("loss", "logits")
    batch = graph.random_batch(3)
    arguments = graph.arguments(batch)
    wrt = [graph.inputs[0].name, *graph.trainable]
    outputs, gradients = call(graph.gradient(wrt), "main_adjoint", arguments)
    expected = ReferenceEvaluator(model).run(["y"], {"x": batch["x"]})[0]
    assert outputs[1].numpy().shape == expected.shape
    # Attributes are float32 in the file, and the evaluator rounds some of them differently.
    assert relative(outputs[1], expected) < 1e-6
    assert outputs[0].numpy() == pytest.approx(
        ((outputs[1].numpy() - batch["target"]) ** 2).mean(), rel=1e-12
    )
    order = [s.name for s in graph.inputs] + list(graph.params)
    step, moved, slope = 1e-6, {+1: list(arguments), -1: list(arguments)}, 0.0
    for index, (name, gradient) in enumerate(zip(wrt, gradients, strict=True)):
        direction = draw(*gradient.shape, seed=index)
        slope += float((gradient.numpy() * direction).sum())
        for sign, values in moved.items():
            at = order.index(name)
            values[at] = values[at] + sign * step * direction
    vm = virtual_machine(graph.module, FAST)
    high, low = (
        float(vm["main"](*map(tvm.runtime.tensor, moved[sign]))[0].numpy()) for sign in (1, -1)
    )
    assert (high - low) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def node(op: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, ["x", *inputs], ["y"], **attributes)
