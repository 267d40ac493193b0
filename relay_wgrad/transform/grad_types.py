"""Whether the gradient rules of a function's operators return what they should.

The stock pass adds a rule's partial to an operand's adjoint whatever its type: a transposed one is
a wrong gradient without a word, and one that broadcasts becomes part of a sum of the right shape.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx

from ..graph.walk import bindings_of
from ..ir import op_name
from .grad_paths import NO_GRAD, flowing


def check_partials(fn: str, func: relax.Function, wanted: list[relax.Var]) -> None:
    """Asks each rule once more and compares its partials with the operands that a gradient flows
    through.

    Raises
    ------
    ValueError : naming operator, operand and both types, where shapes or dtypes are known to
        differ.  A rule that fails is left to the stock pass.
    """
    bindings = bindings_of(func)
    through = flowing(bindings, wanted)
    builder = relax.BlockBuilder()
    wrong: list[str] = []
    with builder.function("partials", []):
        with builder.dataflow():
            for binding in bindings:
                if binding.var in through and op_name(binding.value) not in ("", NO_GRAD):
                    wrong += _wrong(builder, binding, through)
            end = builder.emit_output(relax.const(0.0))
        builder.emit_func_output(end)
    if wrong:
        raise ValueError(f"grad: {fn!r} cannot be differentiated: {wrong[0]}")


def _wrong(builder: relax.BlockBuilder, binding: Any, through: set[relax.Var]) -> list[str]:
    """What is wrong with the partials of one binding."""
    call, var = binding.value, binding.var
    rule = call.op.get_attr("FPrimalGradient")
    if rule is None:
        return []
    try:
        partials = list(rule(var, call, relax.Var("adjoint", var.ty), builder))
        pairs = [
            (i, arg.ty, builder.normalize(partial).ty)
            for i, (arg, partial) in enumerate(zip(call.args, partials, strict=False))
            if any(v in through for v in relax.analysis.free_vars(arg))
        ]
    except (tvm.error.InternalError, ValueError, TypeError, AssertionError, RuntimeError):
        return []
    names = [argument.name for argument in call.op.arguments]
    return [
        f"the gradient rule of {op_name(call)} (at {var.name!r}) returns {got} for its operand"
        f" {names[i] if i < len(names) else i!r}, which is {want}"
        for i, want, got in pairs
        if _differ(want, got)
    ]


def _differ(want: Any, got: Any) -> bool:
    """Whether two types are known not to be one."""
    if isinstance(want, relax.TupleType) and isinstance(got, relax.TupleType):
        fields = list(zip(want.fields, got.fields, strict=False))
        return len(want.fields) != len(got.fields) or any(_differ(a, b) for a, b in fields)
    if not isinstance(want, relax.TensorType) or not isinstance(got, relax.TensorType):
        return type(want) is not type(got)
    if -1 not in (want.ndim, got.ndim) and want.ndim != got.ndim:
        return True
    dtypes = {str(ty.dtype) for ty in (want, got)} - {""}
    if len(dtypes) > 1:
        return True
    if not all(isinstance(ty.shape, relax.ShapeExpr) for ty in (want, got)):
        return False
    pairs = zip(want.shape.values, got.shape.values, strict=True)
    return any(_unequal(a, b) for a, b in pairs)


def _unequal(a: Any, b: Any) -> bool:
    if isinstance(a, tirx.IntImm) and isinstance(b, tirx.IntImm):
        return int(a) != int(b)
    return bool(tvm.sym.Analyzer().can_prove(a != b))
