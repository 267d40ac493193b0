"""Calls in another form, which is registered with their operator; and that of the weight gradient.

The weight gradient's is the historical composite, as Relay 0.19 printed it: the gradient's planes
become the filters of one convolution with a group for each image and input channel.

    grad (N, K, P, Q)  -> tile (N, Cg*K, P, Q) -> reshape (N*Cg*K, 1, P, Q)
    data (N, C, H, W)  -> reshape (1, N*C, H, W)
    nn.conv2d(data, grad, strides=dilation, dilation=strides, groups=N*C)
      -> reshape (N, Cg, K, R', S') -> sum over N -> transpose (K, Cg, R', S') -> strided_slice

A group (n, c) takes the filters that follow each other, in the order (n, g, cg, kg).  The planes
above come in the order (n, cg, k), which is that only for one group or a group per channel.  For
numbers in between Relay's own form is wrong; here the gradient is (N*G, Kg, P, Q) before it is
tiled, and the sum is transposed with its group axis in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...layouts import ACTIVATION, KERNEL, to_layout
from ..ast import Call, Expr, Function, IRModule, Op
from ..infer import span_text
from ..make import call
from ..op.registration import get_attr
from ..records import show
from ..records.hooks import LEGALIZE, PACKAGE_LEVEL
from ..rewrite import rewrite
from ..types import TensorType, Type
from .user_hooks import attributes, kernels, replacement

WGRAD = "nn.conv2d_backward_weight"


def legalize(function: Function, mod: IRModule, key: str) -> Function:
    """The function with each call in the form that its operator's attribute `key` gives.

    Such a form takes (attributes, arguments, types of the arguments and the result) and gives an
    expression, or None to leave the call.  It is not itself legalized.  Needs types.

    Raises
    ------
    TypeError, ValueError : for a form that is no expression, or has another type.
    """
    new = kernels(function)
    done = set(new)

    def change(old: Expr, node: Expr) -> Expr:
        if isinstance(old, Call) and isinstance(old.op, Op):
            node = formed(old, node)
        done.add(node)
        return node

    def formed(old: Call, node: Expr) -> Expr:
        assert isinstance(old.op, Op)
        assert isinstance(node, Call)
        name = old.op.name
        form = get_attr(name, key)
        if form is None:
            return node
        types = [arg.checked_type for arg in old.args]
        try:
            given = form(attributes(old, name), list(node.args), [*types, old.checked_type])
        except (TypeError, ValueError) as error:
            raise type(error)(f"{error}{span_text(old)}") from error
        if given is None:
            return node
        made, _ = replacement(given, old, f"{name}: {key}", done.__contains__, mod)
        return made if made in done else replace(made, checked_type=old.checked_type)

    out = rewrite(function, change, new)
    assert isinstance(out, Function)
    return out


def conv2d_backward_weight(
    attrs: Mapping[str, Any], inputs: Sequence[Expr], types: Sequence[Type]
) -> Expr:
    """The composite of a weight gradient in any layouts.

    Raises ValueError for a size that only the run knows.
    """
    layouts = [(attrs["data_layout"], ACTIVATION), (attrs["kernel_layout"], ACTIVATION)]
    layouts.append((attrs["out_layout"], KERNEL))
    sizes = [to_layout(_sizes(ty), *names) for ty, names in zip(types, layouts, strict=True)]
    (n, k, p, q), (_, c, h, w), (_, share, r, s) = sizes
    grad, data = (_in_layout(x, *names) for x, names in zip(inputs, layouts[:2], strict=True))
    groups, filters = attrs["groups"], k // attrs["groups"]
    between = groups > 1 and share > 1
    if between:
        grad = call("reshape", grad, newshape=[n * groups, filters, p, q])
    grad = call("tile", grad, reps=[1, share, 1, 1])
    data = call("reshape", data, newshape=[1, -1, 0, 0])
    grad = call("reshape", grad, newshape=[-1, 1, 0, 0])
    taken = {"padding": attrs["padding"], "groups": n * c, "out_dtype": attrs["out_dtype"]}
    out = call(
        "nn.conv2d", data, grad, strides=attrs["dilation"], dilation=attrs["strides"], **taken
    )
    made = _composite_windows((h, w), (p, q), attrs)
    if between:
        out = call("reshape", out, newshape=[n, groups, share, filters, *made])
        out = call("sum", out, axis=[0])
        out = call("transpose", out, axes=[0, 2, 1, 3, 4])
        out = call("reshape", out, newshape=[k, share, *made])
    else:
        out = call("reshape", out, newshape=[n, share, k, *made])
        out = call("sum", out, axis=[0])
        out = call("transpose", out, axes=[1, 0, 2, 3])
    if made != (r, s):
        # The stride leaves rows and columns that no pixel of the gradient reached.
        end = [k, share, r, s]
        out = call("strided_slice", out, begin=[0, 0, 0, 0], end=end, strides=[1])
    return _in_layout(out, KERNEL, attrs["out_layout"])


def _sizes(ty: Type) -> tuple[int, ...]:
    assert isinstance(ty, TensorType)
    sizes = tuple(size for size in ty.shape if isinstance(size, int))
    if len(sizes) != len(ty.shape):
        raise ValueError(f"{WGRAD}: its composite needs all sizes, got {show(ty)}")
    return sizes


def _in_layout(x: Expr, src: str, dst: str) -> Expr:
    return x if src == dst else call("layout_transform", x, src_layout=src, dst_layout=dst)


def _composite_windows(
    size: Sequence[int], pixels: Sequence[int], attrs: Mapping[str, Any]
) -> tuple[int, ...]:
    """R' and S': the windows that the composite's convolution finds, at least R and S."""
    pads = tuple(attrs["padding"])
    pads = pads * (4 // len(pads))  # top, left, bottom, right
    strides, dilation = (tuple(attrs[name]) * 2 for name in ("strides", "dilation"))
    out = []
    for i in range(2):
        room = size[i] + pads[i] + pads[i + 2] - (pixels[i] - 1) * strides[i] - 1
        out.append(room // dilation[i] + 1)
    return tuple(out)


LEGALIZE.add(WGRAD, conv2d_backward_weight, PACKAGE_LEVEL)
