"""Arithmetic of `reshape` and `layout_transform`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from ..types import ANY, AnyDim, Dim
from .relations import agree, mapped, product
from .table import Call, show_shape


def _divided(call: Call, whole: Dim, part: int) -> Dim:
    if isinstance(whole, int) and (part < 1 or whole % part):
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
        rest = product(d for j, d in enumerate(out) if j != inferred)
        whole = product(shape)
        if isinstance(rest, AnyDim) or isinstance(whole, AnyDim):
            out[inferred] = _ratio(shape, [d for j, d in enumerate(out) if j != inferred])
        else:
            if rest == 0 or whole % rest:
                _incompatible(call, shape, out)
            out[inferred] = whole // rest
    check_size(call, shape, out)
    return tuple(out)


def _ratio(shape: Sequence[Dim], rest: Sequence[Dim]) -> Dim:
    """What -1 stands for beside `?`: known when every `?` of the input is also in the result."""
    unknown = sum(d is ANY for d in shape)
    if unknown != sum(d is ANY for d in rest):
        return ANY
    known, others = (prod(d for d in dims if not isinstance(d, AnyDim)) for dims in (shape, rest))
    return known // others if others and known % others == 0 else ANY


def check_size(call: Call, shape: Sequence[Dim], out: Sequence[Dim]) -> None:
    """A reshape keeps the number of elements."""
    if not agree(product(shape), product(out)):
        _incompatible(call, shape, out)


def _incompatible(call: Call, shape: Sequence[Dim], out: Sequence[Dim]) -> None:
    call.fail(
        f"Input tensor shape{show_shape(shape)} and reshaped shape{show_shape(out)}"
        " are not compatible!"
    )


def parse_layout(call: Call, name: str, text: str) -> list[tuple[str, int]]:
    """`NCHW4c` -> [(N, 0), (C, 0), (H, 0), (W, 0), (C, 4)]: axes, and blocks with their size."""
    parts = re.findall(r"([A-Z])|([1-9]\d*)([a-z])", text)
    axes = [(big, 0) if big else (small.upper(), int(size)) for big, size, small in parts]
    spelled = "".join(big or size + small for big, size, small in parts)
    outer = [axis for axis, block in axes if not block]
    inner = [axis for axis, block in axes if block]
    if (
        not axes
        or spelled != text
        or len(set(outer)) != len(outer)
        or len(set(inner)) != len(inner)
        or not set(inner) <= set(outer)
    ):
        call.fail(f"cannot convert from/to undefined layout: {name}={text!r}")
    return axes


def split_sizes(
    call: Call, axes: Sequence[tuple[str, int]], sizes: dict[str, Dim]
) -> tuple[Dim, ...]:
    """A tensor's shape in a layout, from the whole size of each axis."""
    blocks = {axis: block for axis, block in axes if block}
    out: list[Dim] = []
    for axis, block in axes:
        if block:
            out.append(block)
            continue
        size, factor = sizes[axis], blocks.get(axis, 1)
        if isinstance(size, int) and size % factor:
            call.fail(f"axis {axis} of size {size} cannot be split into blocks of {factor}")
        out.append(mapped(size, lambda n, f=factor: n // f))  # type: ignore[misc]
    return tuple(out)
