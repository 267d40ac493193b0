"""Gradients of upstream's `relax.nn.conv1d` and `relax.nn.conv1d_transpose`, which have none there.

A line is an image with one row, so they are the family's of two dimensions, between an axis that
comes and one that goes: gradients of every order.
"""

from __future__ import annotations

from typing import Any

from tvm import relax

from ..attrs import ConvAttrs, as_int, each, ends
from ..layouts import is_permutation, swap_io
from ..problem import ROLES, ConvKind
from .algebra import partial

Partials = list[Any]


def _attrs(op: str, call: relax.Call, transposed: bool) -> ConvAttrs:
    """The attributes of the image; ValueError for a blocked layout."""
    a = call.attrs
    left, right = ends(op, list(a.padding), 1)
    layouts = [str(v) for v in (a.data_layout, a.kernel_layout, a.out_layout)]
    for value, letters in zip(layouts, ("NCW", "OIW", "NCW"), strict=True):
        if not is_permutation(value, letters):
            raise ValueError(f"{op}: no gradient for layout {value!r}: blocked layouts have none")
    data, kernel, out = (value.replace("W", "HW") for value in layouts)
    return ConvAttrs(
        strides=(1, *each(op, "strides", list(a.strides), 1)),
        padding=(0, left, 0, right),
        dilation=(1, *each(op, "dilation", list(a.dilation), 1)),
        groups=as_int(op, "groups", a.groups),
        data_layout=out if transposed else data,
        kernel_layout=swap_io(kernel) if transposed else kernel,
        grad_layout=data if transposed else out,
    )


def _gradient(op: str, kind: ConvKind, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    a = _attrs(op, call, kind is ConvKind.DGRAD)
    first, second, result = ROLES[kind]
    rows = {"data": a.data_layout, "weight": a.kernel_layout, "grad": a.grad_layout}

    def lifted(role: str, x: Any) -> Any:
        return ctx.emit(relax.op.expand_dims(x, rows[role].index("H")))

    given = {first: call.args[0], second: call.args[1], result: ct}
    images = {role: lifted(role, x) for role, x in given.items()}
    partials = []
    for role in (first, second):
        made = ctx.emit(partial(role, images, a, op))
        partials.append(relax.op.squeeze(made, [rows[role].index("H")]))
    return partials


def conv1d(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """A line's convolution is that of an image with one row."""
    return _gradient("conv1d", ConvKind.FPROP, call, ct, ctx)


def conv1d_transpose(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> Partials:
    """As `conv1d`: a dgrad, whose data is the gradient."""
    return _gradient("conv1d_transpose", ConvKind.DGRAD, call, ct, ctx)
