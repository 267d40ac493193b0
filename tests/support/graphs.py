"""Functions with all that a body may have: several blocks, branches, tuples, local functions."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R


@I.ir_module
class Branched:
    """A branch in a branch, blocks before and after, a tuple, and a local function."""

    @R.function
    def main(
        x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, 3), "float32"), c: R.Tensor((), "bool")
    ) -> R.Tuple(R.Tensor((2, 3), "float32"), R.Tensor((2, 3), "float32")):
        with R.dataflow():
            a = R.add(x, y)
            b = R.multiply(a, a)
            R.output(a, b)

        @R.function
        def local(z: R.Tensor((2, 3), "float32")) -> R.Tensor((2, 3), "float32"):
            t: R.Tensor((2, 3), "float32") = R.add(z, b)
            return t

        d = local(a)
        if c:
            e = R.negative(d)
            if c:
                f = R.exp(e)
                g = f
            else:
                h = R.sin(e)
                g = h
            k = R.add(g, e)
            m = k
        else:
            n = R.cos(d)
            m = n
        with R.dataflow():
            p = R.tanh(m)
            q = R.add(p, p)
            pair = (p, q)
            other = pair
            first = pair[0]
            second = other[1]
            r = R.subtract(first, second)
            R.output(r)
        return (r, b)


def branched() -> relax.Function:
    return Branched["main"]


def spanned(func: relax.Function) -> tuple[relax.Function, Any]:
    """A function of one dataflow block, itself, its block, bindings and calls with a span."""
    span = tvm.ir.Span(tvm.ir.SourceName("model.py"), 7, 7, 1, 9)
    (block,) = func.body.blocks
    bindings = [relax.VarBinding(b.var, _spanned(b.value, span), span) for b in block.bindings]
    body = relax.SeqExpr([relax.DataflowBlock(bindings, span)], func.body.body, span)
    relax.expr._update_type(body, func.body.ty)
    made = relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, span)
    return made, span


def _spanned(value: Any, span: Any) -> Any:
    if not isinstance(value, relax.Call):
        return value
    made = relax.Call(value.op, value.args, value.attrs, value.ty_args, span)
    relax.expr._update_type(made, value.ty)
    return made
