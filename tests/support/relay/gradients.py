"""Cases of Relay's operators as Relax functions, and those that TVM's registry differentiates."""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import relax

import relay_wgrad
from relay_wgrad.relay.records import lookup
from relay_wgrad.relay.types import TensorType, TupleType, Type
from relay_wgrad.transform.grad_paths import without_gradient

from .op_case import Case
from .op_cases import CASES

FLOATS = ("float16", "float32", "float64")


def type_of(value: Any) -> Type:
    """A value's type; a tuple's is one of tuples."""
    if isinstance(value, tuple):
        return TupleType(tuple(map(type_of, value)))
    return TensorType(value.shape, str(value.dtype))


def wide(value: Any) -> Any:
    """Floats as float64."""
    if isinstance(value, tuple):
        return tuple(map(wide, value))
    return value.astype("float64") if str(value.dtype) in FLOATS else value


def _parameter(ty: Type, params: list[relax.Var]) -> relax.Expr:
    """An argument; a tuple is one of parameters."""
    if isinstance(ty, TupleType):
        return relax.Tuple([_parameter(f, params) for f in ty.fields])
    assert isinstance(ty, TensorType)
    params.append(relax.Var(f"x{len(params)}", relax.TensorType(list(ty.shape), ty.dtype)))
    return params[-1]


def function_of(case: Case, args: tuple[Any, ...], scalar: bool = False) -> relax.Function:
    """The call as a function; `scalar`: the sum of squares of its results instead of them."""
    bb = relax.BlockBuilder()
    write(bb, "main", case, args, scalar)
    return bb.get()["main"]


def write(
    bb: relax.BlockBuilder, name: str, case: Case, args: tuple[Any, ...], scalar: bool = False
) -> None:
    """As `function_of`, into a module, which also gets the call's tensor programs."""
    op, types = lookup(case.op), [type_of(a) for a in args]
    out = op.infer(types, case.attrs)
    params: list[relax.Var] = []
    exprs = [_parameter(ty, params) for ty in types]
    with bb.function(name, params):
        with bb.dataflow():
            result = bb.emit(op.build(bb, exprs, case.attrs, types, out))
            if scalar:
                fields = [result]
                if isinstance(out, TupleType):
                    fields = [
                        bb.emit(relax.TupleGetItem(result, i)) for i in range(len(out.fields))
                    ]
                squares = [bb.emit(relax.op.multiply(f, f)) for f in fields]
                result = bb.emit(relax.op.sum(squares[0]))
                for square in squares[1:]:
                    result = bb.emit(relax.op.add(result, bb.emit(relax.op.sum(square))))
            result = bb.emit_output(result)
        bb.emit_func_output(result)


def differentiates(case: Case) -> bool:
    """Whether the registry has a gradient for every operator between a call's floating-point
    operands and its results, which are all so.  With this package's rules registered."""
    types = [type_of(a) for a in case.args]
    out = lookup(case.op).infer(types, case.attrs)
    outs = out.fields if isinstance(out, TupleType) else (out,)
    leaves = [t for ty in types for t in (ty.fields if isinstance(ty, TupleType) else (ty,))]
    if not any(t.dtype in FLOATS for t in leaves) or not all(t.dtype in FLOATS for t in outs):
        return False
    func = function_of(case, case.args, scalar=True)
    wanted = [p for p in func.params if str(p.ty.dtype) in FLOATS]
    return without_gradient(func, wanted, func.body.body) is None


@cache
def differentiable() -> tuple[int, ...]:
    """The places of such cases in `CASES`."""
    was = relay_wgrad.is_registered()
    relay_wgrad.register()
    try:
        return tuple(i for i, case in enumerate(CASES) if differentiates(case))
    finally:
        if not was:
            relay_wgrad.unregister()
