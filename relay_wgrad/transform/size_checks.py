"""A check of a symbolic size that a compiled function makes itself.

It is a kernel between a function's first result and who asked for it: `call_tir_inplace` gives the
result back as it is, of a PrimFunc that raises ValueError for a size that is not taken.  The result
depends on it, so no pass leaves it out, and it touches no memory, on no device.  It has no
gradient: `grad` takes it away, and puts it behind what it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.ir import GlobalVar, StringImm

from ..graph.rebuild import Writer, substitute, with_bindings
from ..graph.walk import bindings_of, dataflow_block
from ..ir import FINISHED, op_name
from ..keys import CHECK, HOST

Condition = tuple[Any, str]
"""(what must hold of the size, the message where it does not)."""
_NAME, _CALL = "check_batch", "relax.call_tir_inplace"


def with_check(
    mod: tvm.IRModule, name: str, conditions: Callable[[Any], Sequence[Condition]]
) -> tvm.IRModule:
    """The module with a check in its function `name`, of the one symbolic size of its arguments."""
    func = mod[name]
    builder = relax.BlockBuilder(mod.clone())
    function = builder.add_func(_kernel(_first(func.body.body), _sized(func), conditions), _NAME)
    out = builder.get()
    out[name] = checked(func, function)
    return out


def _kernel(result: relax.Var, sized: relax.Var, conditions: Any) -> tirx.PrimFunc:
    shape = list(sized.ty.shape.values)
    (size,) = (v for v in shape if isinstance(v, tirx.Var))
    value = tirx.decl_buffer(result.ty.shape.values, str(result.ty.dtype), name="value")
    data = tirx.decl_buffer(shape, str(sized.ty.dtype), name="data")
    # TVM 0.27 declares the kind first, and takes the condition first.
    steps: list[Any] = [
        tirx.AssertStmt(condition, StringImm("ValueError"), [StringImm(message)])
        for condition, message in conditions(size)
    ]
    func = tirx.PrimFunc([value, data], tirx.SeqStmt(steps) if len(steps) > 1 else steps[0])
    return func.with_attrs({HOST: True, CHECK: True, **FINISHED})


def _sized(func: relax.Function) -> relax.Var:
    """The first argument with a size that is a variable."""
    return next(
        param for param in func.params
        if isinstance(param.ty, relax.TensorType) and isinstance(param.ty.shape, relax.ShapeExpr)
        and any(isinstance(size, tirx.Var) for size in param.ty.shape.values)
    )  # fmt: skip


def _first(result: Any) -> relax.Var:
    """The first of a function's results, within tuples too."""
    return _first(result.fields[0]) if isinstance(result, relax.Tuple) else result


def checked(func: relax.Function, function: GlobalVar | None) -> relax.Function:
    """`func`, of one dataflow block, whose first result comes by a check of the module."""
    if function is None:
        return func
    result = _first(func.body.body)
    call = relax.op.call_tir_inplace(function, (result, _sized(func)), [0], result.ty)
    writer = Writer(dataflow_block(func), bindings_of(func))
    checked_result = substitute(func.body.body, {result: writer.output(result.name, call)})
    return with_bindings(func, writer.bindings, result=checked_result)


def check_of(mod: tvm.IRModule, func: relax.Function) -> tuple[GlobalVar | None, relax.Function]:
    """(the check of a function of the module, the function without it)."""
    bindings = bindings_of(func, branches=False)
    for binding in bindings:
        value = binding.value
        if op_name(value) == _CALL and CHECK in (mod[value.args[0]].attrs or {}):
            kept = [other for other in bindings if other is not binding]
            before = value.args[1].fields[0]
            result = substitute(func.body.body, {binding.var: before})
            return value.args[0], with_bindings(func, kept, result=result)
    return None, func


def without_check(mod: tvm.IRModule, name: str) -> tvm.IRModule:
    """The module without the check of a function, and without its kernel."""
    function, func = check_of(mod, mod[name])
    if function is None:
        return mod
    out = mod.clone()
    out[name] = func
    del out[function]
    return out
