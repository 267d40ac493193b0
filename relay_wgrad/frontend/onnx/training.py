"""`from_onnx_training`: ONNX graphs that are gradients already, as ONNX Runtime's training writes
them, in Relax."""

from __future__ import annotations

import numbers
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ...dtypes import FLOATS
from ...ops.algebra import WGRAD_NAME, get_op
from ..context import Context, Options, Value
from ..gradient_graph import GradientGraph, Result
from ..graph import InputSpec
from .file import NUMBERS
from .importer import opset_of
from .model_source import load
from .names import op_of
from .node import initializer
from .nodes import build, is_weight
from .training_ops import TRAINING_OPS, in_both_domains

_LINKED = in_both_domains({"MaxPoolGrad": "MaxPool", "AveragePoolGrad": "AveragePool"})


def from_onnx_training(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    sizes: Mapping[str, int] | None = None,
    dtype: str = "float32",
) -> GradientGraph:
    """A training graph of ONNX, with its gradients' operators, as a Relax function.

    Each ConvGrad of the domain `com.microsoft` becomes `conv2d_backward_data`,
    `conv2d_backward_weight` and the bias's sum, those that its node has names for; the other
    operators of `TRAINING_OPS` what they are.

    Parameters
    ----------
    model : a path or a ModelProto, such as `training_model.onnx` of onnxruntime-training's
        artifacts.
    sizes : numbers for sizes that the file leaves open, by name, as {"batch_size": 8}.
    dtype : of all floats, "float32" or "float64".

    Returns
    -------
    GradientGraph : `inputs` are the graph's, then the initializers that it computes with, whose
        values are in `state`; `outputs` its outputs in order.  An accumulator's result is the new
        buffer.

    Raises
    ------
    FileNotFoundError, TypeError : as `from_onnx` does.
    ValueError : for an operator that is neither in `TRAINING_OPS` nor in `from_onnx`'s list, for a
        node that cannot be built (named, with the reason), for open sizes.
    RuntimeError : before `relay_wgrad.register()`.
    """
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype={dtype!r}: expected float32 or float64")
    get_op(WGRAD_NAME)
    name, given = load(model)
    proto = linked(given)
    options = Options(dtype, "eval", "off", opset_of(name, proto), extra=TRAINING_OPS)
    ctx = Context(options, relax.BlockBuilder(), {})
    arrays = {t.name: initializer(proto, t) for t in proto.graph.initializer}
    values = {n: Value(n, array=a, weight=is_weight(a)) for n, a in arrays.items()}
    inputs: list[tuple[InputSpec, relax.Var]] = []
    for info in proto.graph.input:
        if info.name not in arrays:
            spec, var = _input(ctx, name, info, dict(sizes or {}))
            inputs.append((spec, var))
            values[info.name] = Value(info.name, expr=var)

    def body() -> tuple[list[Any], list[Any]]:
        for node in proto.graph.node:
            build(ctx, proto, node, values)
        results = []
        for info in proto.graph.output:
            if info.name not in values:
                raise ValueError(f"{name}: no node makes the output {info.name!r}")
            results.append(ctx.tensor(values[info.name]))
        return results, [*(var for _, var in inputs), *ctx.parameters.values()]

    module = relax.transform.DeadCodeElimination(["main"])(ctx.main(body))
    state = {n: np.asarray(a, dtype) for n, a in ctx.initial.items()}
    held = [InputSpec(n, "data", tuple(a.shape), dtype) for n, a in state.items()]
    outputs = tuple(Result("result", i) for i in range(len(proto.graph.output)))
    specs = (*(spec for spec, _ in inputs), *held)
    return GradientGraph(name, module, specs, outputs, (), state)


def linked(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which gradients of poolings take the pooling's operand and its attributes.

    MaxPoolGrad is given MaxPool's places, and AveragePoolGrad nothing: of both the pooling's size
    cannot be told.  The one is found by its places, the other by its result's name, the operand's
    with `_grad`, or where one pooling alone has its attributes.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    makers = {out: node for node in model.graph.node for out in node.output if out}
    for node in model.graph.node:
        forward = None
        pooling = _LINKED.get(op_of(node))
        if pooling is None:
            continue
        if pooling == "AveragePool":
            forward = _average(model, node)
        elif len(node.input) > 1:
            forward = makers.get(node.input[1])
        if forward is None or op_of(forward) != pooling:
            raise ValueError(
                f"{node.op_type} node {node.name or node.output[0]!r}: the graph has no {pooling}"
                " that it is of"
            )
        operands = [node.input[0], forward.input[0]]
        del node.input[:]
        node.input.extend(operands)
        attributes = list(forward.attribute)
        del node.attribute[:]
        node.attribute.extend(attributes)
    return model


def _average(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.NodeProto | None:
    poolings = [n for n in model.graph.node if op_of(n) == "AveragePool"]
    named = [n for n in poolings if f"{n.input[0]}_grad" == node.output[0]]
    mine = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    alike = [
        n for n in poolings
        if {a.name: helper.get_attribute_value(a) for a in n.attribute} == mine
    ]  # fmt: skip
    found = named if len(named) == 1 else alike
    return found[0] if len(found) == 1 else None


def _input(
    ctx: Context, name: str, info: onnx.ValueInfoProto, sizes: dict[str, int]
) -> tuple[InputSpec, relax.Var]:
    tensor = info.type.tensor_type
    if tensor.elem_type not in NUMBERS:
        raise ValueError(f"{name}: input {info.name!r} is no tensor of numbers")
    shape = []
    for dim in tensor.shape.dim:
        given: Any = sizes.get(dim.dim_param)  # whatever a caller gave
        size = int(dim.dim_value) if dim.dim_value > 0 else given
        if size is None:
            raise ValueError(
                f"{name}: input {info.name!r} has an open size {dim.dim_param or '?'!r}: give"
                " sizes={name: number}"
            )
        if not isinstance(size, numbers.Integral) or size < 1:
            raise ValueError(
                f"{name}: input {info.name!r}: sizes[{dim.dim_param!r}] must be an integer of at"
                f" least 1, got {size!r}"
            )
        shape.append(int(size))
    kind = str(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
    kind = ctx.options.dtype if kind in FLOATS else kind
    return ctx.input(info.name, "data", tuple(shape), kind)
