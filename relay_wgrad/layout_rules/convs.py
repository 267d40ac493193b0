"""The convolution family: the ops that want a layout, rather than follow one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax

from ..layouts import ACTIVATIONS, KERNELS, is_permutation, permutation, swap_io, with_rank
from ..ranks import OWN
from .in_layout import InLayout, Taken, attr_fields, attrs_with, shape_arg
from .perms import Perm, identity, is_identity, reorder


@dataclass(frozen=True)
class ConvLayouts:
    """Which attribute holds the layout of each operand and of the result.

    `weights` says which of the three is a weight; `swapped` whether the op spells it in the
    letters of a transposed convolution.  `shape` is the argument that holds the result's shape,
    `rank` how many dimensions an image has.
    """

    fields: tuple[str, str, str]
    weights: tuple[bool, bool, bool]
    swapped: bool = False
    shape: int | None = None
    rank: int = 2

    def wanted(self, activation: str, kernel: str) -> tuple[str, str, str]:
        """The layouts as the op spells them, given in two dimensions and with the forward
        convolution's letters: NHWC is NDHWC for an image with depth."""
        activation, kernel = with_rank(activation, self.rank), with_rank(kernel, self.rank)
        spelled = swap_io(kernel) if self.swapped else kernel
        first, second, result = (spelled if weight else activation for weight in self.weights)
        return (first, second, result)

    @property
    def canonical(self) -> tuple[str, str, str]:
        """The canonical orders of both operands and of the result."""
        first, second, result = (
            (KERNELS if weight else ACTIVATIONS)[self.rank] for weight in self.weights
        )
        return (first, second, result)


_SUFFIXES: dict[str, ConvLayouts] = {
    "": ConvLayouts(("data_layout", "kernel_layout", "out_layout"), (False, True, False)),
    "_transpose": ConvLayouts(
        ("data_layout", "kernel_layout", "out_layout"), (False, True, False), swapped=True
    ),
    "_backward_weight": ConvLayouts(
        ("grad_layout", "data_layout", "kernel_layout"), (False, False, True)
    ),
    "_backward_data": ConvLayouts(
        ("grad_layout", "kernel_layout", "data_layout"), (False, True, False), shape=2
    ),
}
CONVS: dict[str, ConvLayouts] = {
    f"relax.nn.conv{rank}d{suffix}": replace(conv, rank=rank)
    for rank in OWN
    for suffix, conv in _SUFFIXES.items()
}


def stored_layouts(name: str, call: relax.Call) -> tuple[str, str, str] | None:
    """The layouts that a call's attributes name; None where one is blocked, as NCHW16c is."""
    conv = CONVS[name]
    fields = attr_fields(call.attrs)
    values = tuple(str(fields[field]) for field in conv.fields)
    if not all(is_permutation(v, c) for v, c in zip(values, conv.canonical, strict=True)):
        return None
    return (values[0], values[1], values[2])


def wanted_perms(
    name: str, call: relax.Call, activation: str, kernel: str
) -> tuple[Perm, Perm, Perm] | None:
    """The layouts of both operands and the result for which the attributes would name these."""
    stored = stored_layouts(name, call)
    if stored is None:
        return None
    wanted = CONVS[name].wanted(activation, kernel)
    a, b, c = (permutation(src, dst) for src, dst in zip(stored, wanted, strict=True))
    # A result's shape that is only known at run time cannot be permuted here.
    shape = CONVS[name].shape
    if shape is not None and shape_arg(call.args[shape]) is None:
        c = identity(CONVS[name].rank + 2)
    return (a, b, c)


def conv_in_layout(name: str, call: relax.Call, perms: Sequence[Perm]) -> InLayout | None:
    """The call with its operands and result in these layouts."""
    stored = stored_layouts(name, call)
    if stored is None:
        return None
    conv = CONVS[name]
    changed: dict[str, Any] = {
        field: "".join(reorder(layout, perm))
        for field, layout, perm in zip(conv.fields, stored, perms, strict=True)
    }
    inputs: list[Taken | None] = [Taken(perms[0]), Taken(perms[1])]
    args: dict[int, relax.Expr] = {}
    if conv.shape is not None:
        inputs.append(None)
        sizes = shape_arg(call.args[conv.shape])
        if sizes is not None:
            args[conv.shape] = relax.ShapeExpr(reorder(sizes, perms[2]))
        elif not is_identity(perms[2]):
            return None
    return InLayout(tuple(inputs), (perms[2],), attrs_with(call.attrs, **changed), args)


def desired_perms(
    name: str, call: relax.Call, desired: Sequence[str]
) -> tuple[Perm, Perm, Perm] | None:
    """What the stock pass is told of an op: [activations, weight] or [data, weight, grad].

    The weight is spelled as the op spells it.  `grad` is the layout of the convolution's output
    and of its gradient.  Raises ValueError for what is no permutation of the op's letters.
    """
    short = name.rpartition(".")[2]
    values = [str(v) for v in desired]
    conv = CONVS[name]
    letters = (ACTIVATIONS[conv.rank], KERNELS[conv.rank], ACTIVATIONS[conv.rank])
    expected = letters[: len(values)]
    good = len(values) in (2, 3) and all(
        is_permutation(v, c) for v, c in zip(values, expected, strict=True)
    )
    if not good:
        raise ValueError(
            f"{short}: ConvertLayout takes [activations, weight] or [data, weight, grad] as"
            f" permutations of {', '.join(letters)}, got {values}"
        )
    stored = stored_layouts(name, call)
    if stored is None:
        return None
    by_field = {"data_layout": values[0], "kernel_layout": values[1],
                "grad_layout": values[-1] if len(values) == 3 else values[0],
                "out_layout": values[-1] if len(values) == 3 else values[0]}  # fmt: skip
    a, b, c = (
        permutation(src, by_field[field]) for src, field in zip(stored, conv.fields, strict=True)
    )
    return (a, b, c)
