"""`function_to_onnx`: a Relax function, binding by binding through the table of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import relax
from tvm.ir import GlobalVar, IRModule

from ....graph.walk import bindings_of
from ....ir import op_name
from ...weights import Array
from . import convolutions, data_movement, elementwise, losses, pools
from .writer import IR_VERSION, OPSET, Names, Row, Writer, dtype, elem_type, shape_of, sizes

ROWS: dict[str, Row] = {
    **elementwise.ROWS, **data_movement.ROWS, **convolutions.ROWS, **pools.ROWS, **losses.ROWS,
}  # fmt: skip
"""Relax's operator -> what writes it."""


def function_to_onnx(
    module: IRModule,
    function: str = "main",
    *,
    outputs: Sequence[str] | None = None,
    initial: Mapping[str, Array] | None = None,
    name: str | None = None,
) -> onnx.ModelProto:
    """A Relax function as an ONNX model, gradients of convolutions as convolutions.

    conv2d_backward_data is ConvTranspose, conv2d_backward_weight is Conv with batch and channels
    swapped; all else are ONNX's own operators too, so any runtime can run it.

    Parameters
    ----------
    module, function : straight-line code of operators in `ROWS`, on tensors of known sizes.
    outputs : the results' names, tuples flattened; by default `output_0`, ….
    initial : default values of some inputs, by name; the model holds them, callers may give others.
    name : the graph's; by default the function's.

    Raises
    ------
    ValueError : for an operator that is not in `ROWS` or whose attributes ONNX does not have
        (named), for open sizes, control flow and calls of other functions, a wrong number of
        outputs, an `initial` that is no input or of another shape or dtype.
    """
    if function not in [v.name_hint for v in module.get_global_vars()]:
        raise ValueError(f"the module has no function {function!r}")
    func = module[function]
    if not isinstance(func, relax.Function):
        raise ValueError(f"{function!r} is no Relax function, but a {type(func).__name__}")
    w = Writer()
    walk = _Walk(w, function)
    types = _types(func.ty.ret)
    wanted = [f"output_{i}" for i in range(len(types))] if outputs is None else list(outputs)
    if len(wanted) != len(types) or len(set(wanted)) != len(wanted):
        raise ValueError(f"{function}: outputs must be {len(types)} different names, got {wanted}")
    for label in wanted:  # theirs before any intermediate result's
        w.name(label)
    inputs = [walk.parameter(var) for var in func.params]
    ends = []
    for label, held, ty in zip(wanted, _flat(walk.body(func)), types, strict=True):
        w.nodes.append(helper.make_node("Identity", [held], [label], name=label))
        try:
            info = helper.make_tensor_value_info(label, elem_type(str(ty.dtype)), shape_of(ty))
        except ValueError as error:
            raise walk.refuse(f"result {label!r}", str(error)) from error
        ends.append(info)
    for key, value in (initial or {}).items():
        w.initializers.append(_default(function, key, value, func.params))
    graph = helper.make_graph(w.nodes, name or function, inputs, ends, w.initializers)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], producer_name="relay_wgrad"
    )
    model.ir_version = IR_VERSION
    return model


def _default(function: str, key: str, value: Array, params: Sequence[Any]) -> onnx.TensorProto:
    for var in params:
        if var.name == key:
            array = np.ascontiguousarray(value).reshape(np.shape(value))
            if array.shape != sizes(var) or str(array.dtype) != dtype(var):
                raise ValueError(
                    f"{function}: {key!r} is {dtype(var)}{list(sizes(var))}, got"
                    f" {array.dtype}{list(array.shape)}"
                )
            return numpy_helper.from_array(array, key)
    raise ValueError(f"{function}: there is no input {key!r} for a default value")


def _flat(names: Names) -> list[str]:
    return [n for part in names for n in _flat(part)] if isinstance(names, list) else [names]


def _types(ty: Any) -> list[Any]:
    fields = getattr(ty, "fields", None)
    return [ty] if fields is None else [t for field in fields for t in _types(field)]


class _Walk:
    """What each variable is called."""

    def __init__(self, writer: Writer, function: str) -> None:
        self.w, self.function = writer, function
        self.known: dict[Any, Names] = {}

    def refuse(self, what: str, why: str) -> ValueError:
        return ValueError(f"{self.function}: {what} cannot be written as ONNX: {why}")

    def parameter(self, var: relax.Var) -> onnx.ValueInfoProto:
        if not isinstance(var.ty, relax.TensorType):
            raise self.refuse(f"parameter {var.name!r}", f"it is no tensor, but {var.ty}")
        if self.w.name(var.name) != var.name:
            raise self.refuse(f"parameter {var.name!r}", "another input or output has that name")
        try:
            info = helper.make_tensor_value_info(var.name, elem_type(dtype(var)), sizes(var))
        except ValueError as error:
            raise self.refuse(f"parameter {var.name!r}", str(error)) from error
        self.known[var] = info.name
        return info

    def body(self, func: relax.Function) -> Names:
        if not isinstance(func.body, relax.SeqExpr):
            raise self.refuse("the function's body", f"it is a {type(func.body).__name__}")
        for binding in bindings_of(func, branches=False):
            self.w.stem = binding.var.name
            self.known[binding.var] = self.value(binding.value)
        return self.value(func.body.body)

    def value(self, expr: Any) -> Names:
        if isinstance(expr, relax.Var):
            return self.known[expr]
        if isinstance(expr, relax.Tuple):
            return [self.value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self.value(expr.tuple_value)[expr.index]
        held: Any = getattr(expr, "value", None)
        if hasattr(held, "numpy"):
            return self.w.constant(held.numpy(), dtype(expr))
        if isinstance(expr, relax.Call):
            return self.call(expr)
        raise self.refuse(f"a {type(expr).__name__}", "only operators and tuples can")

    def call(self, call: relax.Call) -> Names:
        op = op_name(call)
        if not op:
            called = call.op.name_hint if isinstance(call.op, GlobalVar) else type(call.op).__name__
            raise self.refuse(f"a call of {called}", "it is no operator")
        row = ROWS.get(op)
        if row is None:
            raise self.refuse(op, "there is no row for it")
        try:
            return row(self.w, call, [self._operand(arg) for arg in call.args])
        except ValueError as error:
            raise self.refuse(op, str(error)) from error

    def _operand(self, arg: Any) -> Names:
        kinds = (relax.TensorType, relax.TupleType)
        held = isinstance(getattr(arg, "ty", None), kinds)
        is_list = isinstance(arg, relax.Tuple) and not all(
            isinstance(field.ty, kinds) for field in arg.fields
        )
        return self.value(arg) if held and not is_list else None
