"""Arithmetic of `reshape`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..types import ANY, AnyDim, Dim
from .relations import agree, divides, mapped, product
from .table import Call, show_shape


def _divided(call: Call, whole: Dim, part: int) -> Dim:
    if part < 1 or not divides(part, whole):
        call.fail(f"cannot split a dimension of size {whole} into parts of {part}")
    return mapped(whole, lambda size: size // part)


def new_shape(call: Call, shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Relay's `newshape` with its codes.

    n > 0: that size; 0: the input's size at this place (a true 0 with allowzero); -1: what is
    left, once; -2: all remaining sizes; -3: the product of the next two; -4, a, b: the next size
    split into a and b, one of which may be -1.
    """
    codes: tuple[int, ...] = call.attrs["newshape"]
    out: list[Dim] = []
    at = 0  # the next of the input's sizes
    inferred = -1  # where in `out` the -1 is
    i = 0

    def take(code: int) -> Dim:
        nonlocal at
        if at >= len(shape):
            call.fail(
                f"newshape={list(codes)} takes a dimension at {code} that {show_shape(shape)}"
                " has not"
            )
        at += 1
        return shape[at - 1]

    while i < len(codes):
        code = codes[i]
        if code > 0 or (code == 0 and call.attrs["allowzero"]):
            out.append(code)
            at += 1
        elif code == 0:
            out.append(take(code))
        elif code == -1:
            if inferred >= 0:
                call.fail(f"One and only one dim can be inferred, got newshape={list(codes)}")
            inferred = len(out)
            out.append(1)
            at += 1
        elif code == -2:
            out.extend(shape[at:])
            at = max(at, len(shape))
        elif code == -3:
            out.append(product((take(code), take(code))))
        elif code == -4:
            if i + 2 >= len(codes):
                call.fail(f"-4 must be followed by two sizes, got newshape={list(codes)}")
            whole, a, b = take(code), codes[i + 1], codes[i + 2]
            if a == -1 and b == -1:
                call.fail("Split dims cannot both be -1.")
            out.append(_divided(call, whole, b) if a == -1 else a)
            out.append(_divided(call, whole, a) if b == -1 else b)
            i += 2
        else:
            call.fail(f"Unsupported special value: {code}")
        i += 1
    if inferred >= 0:
        out[inferred] = _ratio(call, shape, out, inferred)
    check_size(call, shape, out)
    return tuple(out)


def _ratio(call: Call, shape: Sequence[Dim], out: Sequence[Dim], inferred: int) -> Dim:
    """What -1 stands for: known beside `?` too, when every `?` of the input is in the result."""
    rest = [d for j, d in enumerate(out) if j != inferred]
    own = list(shape)
    for dim in list(rest):
        if not isinstance(dim, int) and dim in own:  # cancels; `n * m // m` need not simplify
            own.remove(dim)
            rest.remove(dim)
    whole: Any = product(own)
    part: Any = product(rest)
    if isinstance(whole, AnyDim) or isinstance(part, AnyDim):
        return ANY
    if isinstance(whole, int) and isinstance(part, int):
        if ANY in shape or not all(isinstance(d, int) for d in shape):
            return whole // part if part and whole % part == 0 else ANY
        if part == 0 or whole % part:
            _incompatible(call, shape, out)
    return whole // part


def check_size(call: Call, shape: Sequence[Dim], out: Sequence[Dim]) -> None:
    """A reshape keeps the number of elements."""
    if not agree(product(shape), product(out)):
        _incompatible(call, shape, out)


def _incompatible(call: Call, shape: Sequence[Dim], out: Sequence[Dim]) -> None:
    call.fail(
        f"Input tensor shape{show_shape(shape)} and reshaped shape{show_shape(out)}"
        " are not compatible!"
    )
