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

from relay_wgrad.opdef import OpDef

from .half_reductions import inlined

# Of each type its width and the bits of infinity; other types are their own keys.
_KEYS = {
    "bfloat16": (16, 0x7F80),
    "float16": (16, 0x7C00),
    "float32": (32, 0x7F800000),
    "float64": (64, 0x7FF0000000000000),
}


def rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The FLegalize rule of one of the four."""
    name = definition.short
    is_largest, is_index = name.endswith("max"), name.startswith("arg")
    search = getattr(topi, name)

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        x = call.args[0]
        dtype = str(x.ty.dtype)
        if not is_index and dtype not in ("bool", *_KEYS):
            return upstream(bb, call)

        def found(x: Any) -> Any:
            keys = te.compute(x.shape, lambda *i: _key(x(*i), dtype, is_largest), name="widened")
            return search(keys, call.attrs.axis, call.attrs.keepdims)

        def numbers(best: Any) -> Any:
            if is_index:  # the least integer may be all that there is: then it is -1
                return topi.maximum(best, tirx.const(0, best.dtype))
            return te.compute(best.shape, lambda *i: _number(best(*i), dtype), name=name)

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
    (bits, infinity), whole = _KEYS[dtype], _whole(dtype)

    def const(value: int) -> Any:
        return tirx.const(value, whole)

    if bits == 16:  # TVM takes the bits of a bfloat16 for unsigned ones, whatever it is told
        word = tirx.reinterpret("uint16", number).astype(whole)
    else:
        word = tirx.reinterpret(whole, number)
    most, last = const(2 ** (bits - 1) - 1), const(63 if whole == "int64" else 31)
    size = word & most
    # All bits where the number is negative, and where it is NaN.
    negative = const(0) - (word >> 15) if bits == 16 else word >> last
    lost = (const(infinity) - size) >> last
    key = (size ^ negative) - negative
    quiet = infinity + (infinity & -infinity) // 2
    return (key & ~lost) | (lost & const(quiet if is_largest else -quiet))


def _number(key: Any, dtype: str) -> Any:
    """The number of a key."""
    if dtype not in _KEYS:
        return key.astype(dtype)
    (bits, _), whole = _KEYS[dtype], _whole(dtype)
    zero, sign = tirx.const(0, whole), 2 ** (bits - 1)
    negative = tirx.bitwise_or(zero - key, tirx.const(sign if bits == 16 else -sign, whole))
    word = tirx.Select(key < zero, negative, key)
    return tirx.reinterpret(dtype, word.astype("uint16") if bits == 16 else word)


def _whole(dtype: str) -> str:
    """The type of a number's key."""
    return "int64" if dtype == "float64" else "int32"
