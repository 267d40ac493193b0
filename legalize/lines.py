"""FLegalize of convolutions of one axis, transposed or not: those of images with one row.

Upstream has kernels of lines where data and result have one layout, of transposed ones for NCW and
IOW alone, and compiles nothing of others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import relax

from relay_wgrad.opdef import OpDef
from relay_wgrad.ops.algebra import dgrad_call, fprop_call, image_of_line
from relay_wgrad.ops.conv import is_family
from relay_wgrad.problem import ROLES, ConvKind


def rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The FLegalize rule of `conv1d` or `conv1d_transpose`; integers and blocks are upstream's."""
    assert definition.kind is not None
    assert definition.read_attrs is not None
    kind, read = definition.kind, definition.read_attrs
    *operands, made = ROLES[kind]

    def legalize(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        shape = call.ty.shape
        if not is_family(call) or not isinstance(shape, relax.ShapeExpr):
            return upstream(bb, call)
        attrs, rows = image_of_line(replace(read(call), out_dtype=str(call.ty.dtype)))
        first, second = (
            bb.emit(relax.op.expand_dims(x, rows[role]))
            for x, role in zip(call.args, operands, strict=True)
        )
        if kind is ConvKind.FPROP:
            image = fprop_call(first, second, attrs)
        else:
            sizes = list(shape.values)
            sizes.insert(rows[made], 1)
            image = dgrad_call(first, second, relax.ShapeExpr(sizes), attrs)
        return relax.op.squeeze(bb.emit(image), [rows[made]])

    return legalize
