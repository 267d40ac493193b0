"""The algebra of the family, written once: gradients of every order.

T(x, w, y) is linear in each of its three arguments.  Every op of the family holds two of them
fixed and is T's partial derivative by the third:

    fprop(x, w) = dT/dy      dgrad(y, w) = dT/dx      wgrad(y, x) = dT/dw

Let an op have operands a and b and output o, and let v be the cotangent of o.  Then
<v, op(a, b)> = T with v in o's place, so the gradient by a is T's partial derivative by a at
(b, v): again an op of the family, the one whose output is a, with v standing where o stood.
Stride, padding, dilation, groups and layouts never change.  So

    op      by its first operand     by its second
    fprop   x: dgrad(v, w)           w: wgrad(v, x)
    dgrad   y: fprop(v, w)           w: wgrad(y, v)
    wgrad   y: fprop(x, v)           x: dgrad(y, v)

and since the right side has only ops of the left side, this is all there is, at any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

from ..attrs import READERS, ConvAttrs, write_attrs
from ..layouts import is_permutation, to_layout
from ..problem import ROLES, ConvKind
from ..ranks import OWN
from ..relation import as_size

# dimensions -> upstream's constructors, and the names of the family's own operators
FPROPS, TRANSPOSED = (
    {rank: getattr(relax.op.nn, f"conv{rank}d{suffix}") for rank in OWN}
    for suffix in ("", "_transpose")
)
WGRADS, DGRADS = (
    {rank: f"relax.nn.conv{rank}d_backward_{role}" for rank in OWN} for role in ("weight", "data")
)
WGRAD_NAME, DGRAD_NAME = WGRADS[2], DGRADS[2]

WGRAD_KEYS = tuple(READERS)
DGRAD_KEYS = tuple(key for key in READERS if key != "kernel_size")  # which the weight has


def get_op(name: str) -> Op:
    """The op, or a RuntimeError that says how to get it."""
    try:
        op = Op.get(name)
    except AttributeError:
        op = None
    if op is None:
        raise RuntimeError(f"{name} is not registered: call relay_wgrad.register() first")
    return op


def operands(op: str, **args: Any) -> None:
    """TypeError for an operand that is no expression: upstream would abort on a null pointer."""
    for name, value in args.items():
        if not isinstance(value, relax.Expr):
            kind = type(value).__name__
            raise TypeError(f"{op}: {name} must be a Relax expression of a tensor, got {kind}")


def make_call(name: str, args: list[relax.Expr], a: ConvAttrs, keys: tuple[str, ...]) -> relax.Call:
    attrs = tvm.ir.make_node("ir.DictAttrs", **write_attrs(a, keys))
    return relax.Call(get_op(name), args, attrs=attrs)


def fprop_call(data: relax.Expr, weight: relax.Expr, a: ConvAttrs) -> relax.Expr:
    return FPROPS[a.rank](
        data, weight, a.strides, a.padding, a.dilation, a.groups,
        a.data_layout, a.kernel_layout, a.grad_layout, a.out_dtype,
    )  # fmt: skip


def dgrad_call(grad: relax.Expr, weight: relax.Expr, shape: relax.Expr, a: ConvAttrs) -> relax.Expr:
    return make_call(DGRADS[a.rank], [grad, weight, shape], a, DGRAD_KEYS)


def wgrad_call(grad: relax.Expr, data: relax.Expr, a: ConvAttrs) -> relax.Expr:
    return make_call(WGRADS[a.rank], [grad, data], a, WGRAD_KEYS)


def kernel_size_of(op: str, weight: relax.Expr, a: ConvAttrs) -> tuple[int, ...]:
    """(R, S) of a weight, or (T, R, S); wgrad stores them, so they must be known."""
    shape = weight.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        raise ValueError(
            f"{op}: the weight's shape must be known to differentiate, got {weight.ty}"
        )
    _, _, *taps = to_layout([as_size(v) for v in shape.values], a.kernel_layout, a.kernel)
    if not all(isinstance(v, int) for v in taps):
        got = ", ".join(f"{x}={v}" for x, v in zip("TRS"[-a.rank :], taps, strict=True))
        raise ValueError(f"{op}: the kernel size must be static to differentiate, got {got}")
    return tuple(taps)


def _shape_of(tensor: relax.Expr) -> relax.Expr:
    """The tensor's shape as an argument: known sizes inline, unknown ones asked at run time."""
    shape = tensor.ty.shape
    return shape if shape is not None else relax.op.shape_of(tensor)


def _dtype(tensor: relax.Expr) -> str | None:
    return str(tensor.ty.dtype) if tensor.ty.dtype is not None else None


def partial(role: str, tensors: dict[str, relax.Expr], a: ConvAttrs, op: str) -> relax.Expr:
    """dT/d(role) at the two other tensors, of `tensors[role]`'s own type."""
    wanted = tensors[role]
    others = {name: t for name, t in tensors.items() if name != role}
    dtype = _dtype(wanted)
    # An out_dtype only where the operands alone would not give the wanted one.
    plain = {_dtype(t) for t in others.values()} == {dtype}
    a = replace(a, out_dtype=None if plain else dtype)
    if role == "grad":
        return fprop_call(others["data"], others["weight"], a)
    if role == "data":
        return dgrad_call(others["grad"], others["weight"], _shape_of(wanted), a)
    a = replace(a, kernel_size=kernel_size_of(op, wanted, a))
    return wgrad_call(others["grad"], others["data"], a)


PACKED = "blocked layouts are upstream's: no rule of the family applies to them"


def gradient_rule(op: str, kind: ConvKind, read: Callable[[Any], ConvAttrs]) -> Callable[..., Any]:
    """FPrimalGradient of an op of the family; see the module's docstring for the derivation."""
    first, second, result = ROLES[kind]

    def rule(
        orig_var: relax.Var, call: relax.Call, cotangent: relax.Var, ctx: relax.BlockBuilder
    ) -> list[relax.Expr]:
        a, b = call.args[0], call.args[1]
        attrs = read(call)
        for value, canonical in (
            (attrs.data_layout, attrs.activation),
            (attrs.kernel_layout, attrs.kernel),
            (attrs.grad_layout, attrs.activation),
        ):
            if not is_permutation(value, canonical):
                raise ValueError(f"{op}: no gradient for layout {value!r}: {PACKED}")
        # The slot `role` holds the operand, whose type the partial must have; the other operand
        # keeps its slot, and the cotangent takes the result's.
        tensors = {first: a, second: b, result: cotangent}
        if attrs.rank == 1:
            return _of_lines(tensors, (first, second), attrs, op, ctx)
        partials = [partial(role, tensors, attrs, op) for role in (first, second)]
        # A shape among the arguments has no gradient.
        return [*partials, *map(relax.op.grad.no_grad, call.args[2:])]

    return rule


def image_of_line(a: ConvAttrs) -> tuple[ConvAttrs, dict[str, int]]:
    """The attributes of the same convolution of images with one row, and where each role's tensor
    has that row's axis."""
    (stride,), (before, after), (dilation,) = a.strides, a.padding, a.dilation
    layouts = (a.data_layout, a.kernel_layout, a.grad_layout)
    data, kernel, grad = (letters.replace("W", "HW") for letters in layouts)
    image = replace(
        a, strides=(1, stride), padding=(0, before, 0, after), dilation=(1, dilation),
        data_layout=data, kernel_layout=kernel, grad_layout=grad, output_padding=None,
    )  # fmt: skip
    return image, {"data": data.index("H"), "weight": kernel.index("H"), "grad": grad.index("H")}


def _of_lines(
    tensors: dict[str, relax.Expr], roles: tuple[str, str], a: ConvAttrs, op: str, ctx: Any
) -> list[relax.Expr]:
    """`partial` of lines, each an image with one row, between an axis that comes and one that
    goes."""
    a, row = image_of_line(a)
    images = {role: ctx.emit(relax.op.expand_dims(x, row[role])) for role, x in tensors.items()}
    return [relax.op.squeeze(ctx.emit(partial(role, images, a, op)), [row[role]]) for role in roles]
