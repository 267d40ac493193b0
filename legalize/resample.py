"""FLegalize of `relax.nn.resample`: few terms are written out, and fuse with what is around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx

from relay_wgrad.dtypes import wide_of
from relay_wgrad.opdef import OpDef
from relay_wgrad.relation import as_size

# Two passes of that many terms each fuse into one kernel, of the square of them.
WRITTEN = 4


def rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The FLegalize rule."""

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        axis = int(call.attrs["axis"])
        return bb.call_te(_resampled, *call.args, axis, primfunc_name_hint=definition.short)

    return legalize


def _resampled(x: Any, index: Any, weight: Any, axis: int) -> Any:
    dtype = str(x.dtype)
    wide = wide_of(dtype)
    terms = as_size(index.shape[1])

    def term(at: tuple[Any, ...], t: Any) -> Any:
        place = index[at[axis], t]
        read = (*at[:axis], tirx.Max(place, tirx.const(0, "int32")), *at[axis + 1 :])
        product = x(*read).astype(wide) * weight[at[axis], t]
        return tirx.if_then_else(place >= 0, product, tirx.const(0, wide))

    shape = (*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :])
    if isinstance(terms, int) and terms <= WRITTEN:

        def written(*at: Any) -> Any:
            total = term(at, 0)
            for t in range(1, terms):
                total = total + term(at, t)
            return total.astype(dtype)

        return te.compute(shape, written, name="resample")
    t = te.reduce_axis((0, index.shape[1]), "t")
    sums = te.compute(shape, lambda *at: te.sum(term(at, t), t), name="resample_sum")
    if wide == dtype:
        return sums
    return te.compute(shape, lambda *at: sums(*at).astype(dtype), name="resample")
