"""Types of arguments that the other arguments and the attributes determine.

So Relay's programs leave the types of weights out: `nn.conv2d` with `channels` and `kernel_size`
says what its weight is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from ...layouts import ACTIVATION, KERNELS, is_permutation, swap_io, to_layout
from ...rules import out_size
from ..types import Dim, TensorType, Type
from .blocked_layouts import Axes, axes_of, factor
from .relations import mapped, product
from .table import Call, lookup, show
from .windows import ends, per_axis

# The shapes of the arguments after the first, or None if the attributes don't tell them.
Rule = Callable[[TensorType, Mapping[str, Any]], "Sequence[Sequence[Dim]] | None"]


def _outer(layout: Axes, axis: str, size: Dim) -> Dim:
    within = factor(layout, axis)
    return mapped(size, lambda n: n // within)


def _conv(canonical: str, transposed: bool = False) -> Rule:
    rank = len(canonical) - 2

    def rule(data: TensorType, attrs: Mapping[str, Any]) -> Sequence[Sequence[Dim]] | None:
        if attrs["channels"] is None or attrs["kernel_size"] is None:
            return None
        axes, parts = axes_of(attrs["data_layout"]), axes_of(attrs["kernel_layout"])
        if axes is None or parts is None or len(axes) != len(data.shape):
            return None
        c = product([d for (a, _), d in zip(axes, data.shape, strict=True) if a == "C"])
        groups, size = attrs["groups"], attrs["kernel_size"]
        if len(size) not in (1, rank):
            return None
        first: Dim = attrs["channels"]
        second: Dim = mapped(c, lambda n: n // groups)
        if transposed:
            first, second = c, attrs["channels"] // groups
        shape = (first, second, *(size * (rank // len(size))))
        whole = dict(zip(canonical, shape, strict=True))
        return [[block or _outer(parts, axis, whole[axis]) for axis, block in parts]]

    return rule


def _deformable(data: TensorType, attrs: Mapping[str, Any]) -> Sequence[Sequence[Dim]] | None:
    """The offset's shape, which is as large as the result, and the weight's."""
    layout, weight = attrs["data_layout"], _conv(KERNELS[2])(data, attrs)
    if weight is None or not is_permutation(layout, ACTIVATION) or len(data.shape) != 4:
        return None
    n, _, *sizes = to_layout(data.shape, layout, ACTIVATION)
    site = Call("nn.deformable_conv2d", ("data",), (data,), attrs)
    pads, window = ends(site, 2), per_axis(site, "kernel_size", 2)
    strides, dilation = per_axis(site, "strides", 2), per_axis(site, "dilation", 2)
    total = [pads[i] + pads[2 + i] for i in range(2)]
    made: list[Dim] = [
        mapped(dim, lambda n, a=a: out_size(n, *a))  # type: ignore[misc]
        for dim, *a in zip(sizes, total, window, strides, dilation, strict=True)
    ]
    taps = 2 * attrs["deformable_groups"] * prod(window)
    return [to_layout((n, taps, *made), ACTIVATION, layout), *weight]


def _dense(data: TensorType, attrs: Mapping[str, Any]) -> Sequence[Sequence[Dim]] | None:
    if attrs["units"] is None or not data.shape:
        return None
    return [(attrs["units"], data.shape[-1])]


def _matmul(data: TensorType, attrs: Mapping[str, Any]) -> Sequence[Sequence[Dim]] | None:
    if attrs["units"] is None or len(data.shape) < 1 + attrs["transpose_a"]:
        return None
    shape = (data.shape[-1 - attrs["transpose_a"]], attrs["units"])
    return [shape[::-1] if attrs["transpose_b"] else shape]


def _vectors(count: int) -> Rule:
    def rule(data: TensorType, attrs: Mapping[str, Any]) -> Sequence[Sequence[Dim]] | None:
        ndim = len(data.shape)
        if not -ndim <= attrs["axis"] < ndim:
            return None
        return [(data.shape[attrs["axis"]],)] * count

    return rule


RULES: dict[str, Rule] = {
    "nn.conv1d": _conv("OIW"),
    "nn.conv1d_transpose": _conv("IOW", transposed=True),
    **{f"nn.conv{rank}d": _conv(kernel) for rank, kernel in KERNELS.items()},
    **{
        f"nn.conv{rank}d_transpose": _conv(swap_io(kernel), transposed=True)
        for rank, kernel in KERNELS.items()
    },
    "nn.dense": _dense,
    "nn.matmul": _matmul,
    "nn.deformable_conv2d": _deformable,
    "nn.bias_add": _vectors(1),
    "nn.prelu": _vectors(1),
    "nn.batch_norm": _vectors(4),
    "nn.layer_norm": _vectors(2),
    "nn.instance_norm": _vectors(2),
    "nn.group_norm": _vectors(2),
}


def argument_types(
    name: str, types: Sequence[Type | None], attrs: Mapping[str, Any]
) -> Sequence[Type]:
    """The types of all arguments, where None stands for one that is to be found.

    Raises
    ------
    ValueError : if one is not determined; and as the operator's `read`.
    """
    op = lookup(name)
    op.check_count(len(types))
    data = types[0] if types else None
    shapes = None
    if name in RULES and isinstance(data, TensorType):
        shapes = RULES[name](data, op.read(attrs))
    out: list[Type] = []
    for index, ty in enumerate(types):
        if ty is None:
            if shapes is None or not isinstance(data, TensorType):
                known = ", ".join("?" if t is None else show(t) for t in types)
                raise ValueError(
                    f"{name}: the type of {op.inputs[index]} is not stated, and ({known}) with"
                    " these attributes does not tell it"
                )
            ty = TensorType(tuple(shapes[index - 1]), data.dtype)
        out.append(ty)
    return out
