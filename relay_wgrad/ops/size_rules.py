"""What sizes must be of upstream's operators that have a window, or need elements.

Upstream's relations ask nothing of them: a window that is larger than its image makes a size of 0
or less, the maximum of nothing is what memory held, and a mirror is read beyond its edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tvm import relax

from ..attrs import ends, per_dimension
from ..conditions import Conditions
from ..problem import transposed_size
from ..ranks import RANKS
from ..relation import Checks
from ..rules import Size

# (checks, the call's attributes, its arguments)
Rule = Callable[[Checks, Any, Sequence[relax.Expr]], None]


def _lengths(checks: Checks, arg: relax.Expr, layout: Any) -> dict[str, Size] | None:
    """The sizes of a tensor by the letters of its layout; None where pixels are unknown or in
    blocks."""
    letters = [letter for letter in str(layout) if letter.isalpha()]
    known = isinstance(arg.ty.shape, relax.ShapeExpr) and not set("dhw").intersection(letters)
    return dict(zip(letters, checks.sizes(arg.ty.shape), strict=True)) if known else None


def _window(checks: Checks, a: Any, rank: int) -> SimpleNamespace:
    return SimpleNamespace(
        strides=per_dimension(checks.op, "strides", list(a.strides), rank),
        padding=ends(checks.op, list(a.padding), rank),
        dilation=per_dimension(checks.op, "dilation", list(a.dilation), rank),
        groups=int(getattr(a, "groups", 1)),
    )


def pooled(checks: Checks, a: Any, args: Sequence[relax.Expr]) -> None:
    """Of a pool, or of its gradient, whose last operand is the data."""
    *grads, data = (_lengths(checks, arg, a.layout) for arg in args)
    if data is None or None in grads:
        return
    letters = [x for x in "DHW" if x in data]
    rank = len(letters)
    win = _window(checks, a, rank)
    windows = per_dimension(checks.op, "pool_size", list(a.pool_size), rank)
    for i, (name, out) in enumerate(zip(letters, "ZPQ"[-rank:], strict=True)):
        pad, stride, dilation = sum(win.padding[i::rank]), win.strides[i], win.dilation[i]
        room = data[name] + pad - dilation * (windows[i] - 1) - 1 + (stride - 1) * bool(a.ceil_mode)
        made = room // stride + 1
        if a.ceil_mode:  # TVM leaves a last window out that begins behind the data
            begun = (data[name] + win.padding[i] + stride - 1) // stride
            made = made - checks.least_of(1, made - checks.least_of(made, begun))
        why = (
            f"{name}={data[name]}, window {windows[i]}, padding {pad} in all, stride {stride},"
            f" dilation {dilation}"
        )
        checks.positive(name, data[name], "data")
        checks.positive(out, made, why)
        for grad in grads:
            assert grad is not None
            rule = f"the gradient's {out} must be what the pool makes of {why}"
            checks.same(rule, f"gradient {out}", grad[name], f"made {out}", made)


def adapted(checks: Checks, a: Any, args: Sequence[relax.Expr]) -> None:
    """Every window has an element where the image has."""
    for name, size in (_lengths(checks, args[0], a.layout) or {}).items():
        if name in "DHW":
            checks.positive(name, size, "data")


def line(checks: Checks, a: Any, args: Sequence[relax.Expr]) -> None:
    """A convolution of one dimension."""
    data, weight = (_lengths(checks, *pair) for pair in _operands(a, args))
    if data is not None and weight is not None:
        checks.positive("W", data["W"], "data")
        image, taps = [data[x] for x in "NCW"], [weight[x] for x in "OIW"]
        checks.fit(_window(checks, a, 1), image, taps, None)


def transposed_line(checks: Checks, a: Any, args: Sequence[relax.Expr]) -> None:
    """A transposed convolution of one dimension."""
    data, weight = (_lengths(checks, *pair) for pair in _operands(a, args))
    if data is None or weight is None:
        return
    checks.same(
        "data's channels must be the weight's input channels I",
        "data channels", data["C"], "weight I", weight["I"],
    )  # fmt: skip
    win, extra = _window(checks, a, 1), int(a.output_padding[0])
    checks.divides(win.groups, "data's channels", data["C"])
    checks.positive("W", data["W"], "data")
    sizes = (data["W"], sum(win.padding), weight["W"], win.strides[0], win.dilation[0], extra)
    words = ("input size {}, padding {} in all, kernel {}, stride {}, dilation {},"
             " output padding {}")  # fmt: skip
    checks.positive("output width", transposed_size(*sizes), words.format(*sizes))


def _operands(a: Any, args: Sequence[relax.Expr]) -> list[tuple[relax.Expr, Any]]:
    return list(zip(args[:2], (a.data_layout, a.kernel_layout), strict=True))


def check_chosen(checks: Checks, a: Any, args: Sequence[relax.Expr]) -> None:
    """One of some elements, of which there must be one."""
    _counted(checks, a.axis, args[0], "no element to choose")


def averaged(checks: Checks, a: Any, args: Sequence[relax.Expr]) -> None:
    """A mean, which of no integers is none: a processor stops at their division by 0."""
    dtype = str(args[0].ty.dtype)
    if dtype.startswith(("int", "uint", "bool")):
        _counted(checks, a.axis, args[0], f"no {dtype} is the mean")


def _counted(checks: Checks, given: Any, data: relax.Expr, words: str) -> None:
    """Elements along axes, of which there must be some."""
    if not isinstance(data.ty.shape, relax.ShapeExpr):
        return
    sizes = checks.sizes(data.ty.shape)
    axes: Sequence[int] = range(len(sizes))
    if given is not None:
        axes = [int(axis) for axis in (given if hasattr(given, "__len__") else [given])]
    checks.must(
        checks.at_least(math.prod((sizes[axis] for axis in axes), start=1), 1),
        lambda: (
            f"{words} of ({', '.join(map(str, sizes))}) along"
            f" {'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"
        ),
    )


def check_taken(checks: Checks, a: Any, args: Sequence[relax.Expr]) -> None:
    """Of an axis that has elements, where there are indices into it."""
    if not all(isinstance(getattr(arg.ty, "shape", None), relax.ShapeExpr) for arg in args):
        return
    (data, indices), axis = (checks.sizes(arg.ty.shape) for arg in args), a.axis
    size = math.prod(data, start=1) if axis is None else data[int(axis)]
    checks.must(
        checks.either(checks.at_least(size, 1), checks.equal(math.prod(indices, start=1), 0)),
        lambda: f"no elements to take of ({', '.join(map(str, data))}) along axis {axis}",
    )


# How many elements of an axis a pad by so many reads.
_READ: dict[str, Callable[[int], int]] = {
    "replicate": lambda width: 1,
    "reflect": lambda width: width + 1,
    "circular": lambda width: max(width, 1),
}


def padded(checks: Checks, a: Any, args: Sequence[relax.Expr]) -> None:
    """By what is there: the outermost element, its neighbours' mirror, or the other end's; or cut
    by no more than there is."""
    shape, read = args[0].ty.shape, _READ.get(str(a.pad_mode))
    if not isinstance(shape, relax.ShapeExpr):
        return
    widths = list(map(int, a.pad_width))
    sizes = checks.sizes(shape)
    for axis in range(len(sizes)):
        pair = widths[2 * axis : 2 * axis + 2]
        least = -sum(pair) if read is None else read(max(pair)) if any(pair) else 0
        if least > 0:
            checks.long_enough(sizes, axis, least, f"pad_width={pair} needs {least} or more")


# Of a result without elements they ask nothing.
OF_SOME: dict[str, Rule] = {
    **dict.fromkeys((f"relax.{name}" for name in ("mean", "variance", "std")), averaged),
    "relax.take": check_taken,
    "relax.gather_elements": check_taken,
    "relax.nn.pad": padded,
}
# Of operators whose homes are the convolutions'.
LINES: dict[str, Rule] = {"relax.nn.conv1d": line, "relax.nn.conv1d_transpose": transposed_line}
RULES: dict[str, Rule] = {
    **{f"relax.nn.{kind}_pool{rank}d": pooled for kind in ("max", "avg") for rank in RANKS},
    **{f"relax.grad.{kind}_pool2d_backward": pooled for kind in ("max", "avg")},
    **{f"relax.nn.adaptive_avg_pool{rank}d": adapted for rank in RANKS},
    **{f"relax.image.resize{rank}d": adapted for rank in (2, 3)},
    **LINES,
    **dict.fromkeys(
        (f"relax.{name}" for name in ("max", "min", "argmax", "argmin", "median")), check_chosen
    ),
    **OF_SOME,
}


def rule(name: str) -> Callable[[relax.Call, Conditions], None] | None:
    """An operator's rules for its record, None for an operator without."""
    found = RULES.get(name)
    if found is None:
        return None
    op = name.rpartition(".")[2]
    return lambda call, run: found(Checks(op, run), call.attrs, call.args)
