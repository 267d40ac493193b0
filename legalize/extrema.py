"""FLegalize of `max`, `min`, `argmax` and `argmin`: of all numbers, and NaN is one of them.

Upstream's search begins with the largest finite number and the index -1: the maximum of minus
infinities is -3.4e38 there, at -1, and NaN is dropped or not by where it stands.  Here keys are
compared, integers in the order of the numbers, and NaN wins, as in NumPy and PyTorch; of equal
elements the first is found, and zeros are +0.  So it is still a search that TVM's schedules know.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.relax.utils import gen_call_tir_inputs

from relay_wgrad.dtypes import HALVES
from relay_wgrad.opdef import OpDef

from .half_reductions import WIDE, inlined

# Of each type that of its key, and the bits of infinity; other types are their own keys.
_KEYS = {"float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF0000000000000)}


def rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The FLegalize rule of one of the four."""
    name = definition.short
    is_largest, is_index = name.endswith("max"), name.startswith("arg")
    search = getattr(topi, name)

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x = call.args[0]
        result = dtype = str(x.ty.dtype)
        if not is_index and dtype not in ("bool", *HALVES, *_KEYS):
            return upstream(bb, call)
        if dtype in HALVES:
            # As a kernel, which is fused with this one.  As an expression of the search it would be
            # the value of a name, which TVM's lowering of bfloat16 passes over; and the bits of a
            # bfloat16 that is computed there are float32's.
            x, dtype = bb.emit_te(topi.cast, x, WIDE, primfunc_name_hint="widened"), WIDE

        def found(x: Any) -> Any:
            keys = te.compute(x.shape, lambda *i: _key(x(*i), dtype, is_largest), name="widened")
            return search(keys, call.attrs.axis, call.attrs.keepdims)

        def numbers(best: Any) -> Any:
            if is_index:  # the least integer may be all that there is: then it is -1
                return topi.maximum(best, tirx.const(0, best.dtype))
            return te.compute(
                best.shape, lambda *i: _number(best(*i), dtype).astype(result), name=name
            )

        # Two kernels: schedules know one that is nothing but a search.
        func, inputs, out_ty = gen_call_tir_inputs(found, x)
        best = bb.emit(relax.call_tir(bb.add_func(inlined(func), name), inputs, out_ty))
        return bb.call_te(numbers, best, primfunc_name_hint=f"{name}_number")

    return legalize


def _key(number: Any, dtype: str, is_largest: bool) -> Any:
    """An integer that is larger where the number is; beyond them for NaN.

    Without comparisons, which TVM would take for those of indices and make of 64 bits.
    """
    if dtype not in _KEYS:
        return number.astype("int8") if dtype == "bool" else number
    whole, infinity = _KEYS[dtype]

    def const(value: int) -> Any:
        return tirx.const(value, whole)

    word, last = tirx.reinterpret(whole, number), const(int(whole[3:]) - 1)
    # All bits where the number is negative, and where it is NaN.
    size, negative = word & const(tirx.max_value(whole).value), word >> last
    lost = (const(infinity) - size) >> last
    key = (size ^ negative) - negative
    quiet = infinity + (infinity & -infinity) // 2
    return (key & ~lost) | (lost & const(quiet if is_largest else -quiet))


def _number(key: Any, dtype: str) -> Any:
    """The number of a key."""
    if dtype not in _KEYS:
        return key.astype(dtype)
    whole, _ = _KEYS[dtype]
    negative = tirx.bitwise_or(tirx.const(0, whole) - key, tirx.min_value(whole))
    return tirx.reinterpret(dtype, tirx.Select(key < tirx.const(0, whole), negative, key))
