"""What a convolution must be: each rule said once, in words that name it and what breaks it.

Calls are checked by it (`relation.Relation`), problems (`ConvProblem.check`) and what frameworks
say of a convolution (`conventions`); front ends translate and check nothing of it.  Relay's surface
has Relay's own words (`relay.records.conv`).

A rule is refused only when it is provably broken: what is no number is trusted, as TVM does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Size = Any  # an int, or a symbolic integer expression with + - * //
Truth = Any  # a bool; None, or an expression of one, where only the run knows


def out_size(size: Size, pad: Size, kernel: Size, stride: int, dilation: int) -> Size:
    """Pixels a convolution makes: floor((size + pad - dilation*(kernel-1) - 1) / stride) + 1."""
    return (size + pad - dilation * (kernel - 1) - 1) // stride + 1


class Rules:
    """Checks of one convolution: `op` is who asks; `names` is our word -> what that one says.

    Words are of tensors (data, weight, grad) and of attributes (strides, groups, ...).
    """

    def __init__(self, op: str = "", names: Mapping[str, str] | None = None) -> None:
        self.op = op
        self.names = names or {}

    # ---- words -------------------------------------------------------------------------------

    def word(self, name: str) -> str:
        """What the one who asks calls a tensor or an attribute."""
        return self.names.get(name, name)

    def error(self, message: str) -> ValueError:
        return ValueError(f"{self.op}: {message}" if self.op else message)

    # ---- sizes -------------------------------------------------------------------------------

    def simplify(self, expr: Size) -> Size:
        return expr

    def equal(self, a: Size, b: Size) -> Truth:
        """Whether two sizes are the same."""
        diff = self.simplify(a - b)
        return diff == 0 if isinstance(diff, int) else None

    def at_least(self, size: Size, low: int) -> Truth:
        """Whether a size is so large."""
        size = self.simplify(size)
        return size >= low if isinstance(size, int) else None

    def either(self, one: Truth, other: Truth) -> Truth:
        """Whether one of them holds."""
        if True in (one, other):
            return True
        return one if other is False else other if one is False else None

    def must(self, holds: Truth, message: Callable[[], str]) -> None:
        """Refuses what is provably false; what only the run knows is trusted."""
        if holds is False:
            raise self.error(message())

    def same(self, rule: str, a_name: str, a: Size, b_name: str, b: Size) -> None:
        if a is not None and b is not None:
            self.must(
                self.equal(a, b),
                lambda: f"{rule}, got {a_name}={a} and {b_name}={self.simplify(b)}",
            )

    def divides(self, groups: int, name: str, size: Size) -> None:
        if size is not None:
            word = self.word("groups")
            self.must(
                self.equal(size % groups, 0),
                lambda: f"{word} must divide {name}, got {name}={size}, {word}={groups}",
            )

    def positive(self, name: str, size: Size, why: str) -> None:
        self.must(
            self.at_least(size, 1),
            lambda: f"{name} must be positive, got {name}={self.simplify(size)} from {why}",
        )

    # ---- attributes --------------------------------------------------------------------------

    def least(self, name: str, values: Any, low: int) -> Any:
        """The value, or values, none of which is below `low`."""
        listed = list(values) if isinstance(values, Sequence) else [values]
        if any(isinstance(v, int) and v < low for v in listed):
            word, shown = self.word(name), listed if isinstance(values, Sequence) else values
            raise self.error(f"{word} must be at least {low}, got {word}={shown}")
        return values

    def attributes(self, a: Any) -> None:
        """Values of strides, dilation, padding and groups by themselves."""
        for name, low in (("strides", 1), ("dilation", 1), ("padding", 0), ("groups", 1)):
            self.least(name, getattr(a, name), low)

    # ---- the convolution itself --------------------------------------------------------------

    def fit(
        self,
        a: Any,
        data: Sequence[Size] | None,
        weight: Sequence[Size] | None,
        grad: Sequence[Size] | None,
    ) -> None:
        """All rules between the shapes of data (N, C, H, W), weight (K, C/groups, R, S) and grad.

        `a` has strides, padding (top, left, bottom, right), dilation and groups; strides say how
        many dimensions an image has.  A shape, or a size, that is None is unknown.
        """
        rank = len(a.strides)
        unknown = (None,) * (rank + 2)
        n, c, *sizes = data if data is not None else unknown
        k, cg, *taps = weight if weight is not None else unknown
        gn, gk, *made_sizes = grad if grad is not None else unknown
        in_, filters, out = (self.word(name) for name in ("data", "weight", "grad"))
        self.same(f"{out} and {in_} must have the same batch N", f"{out} N", gn, f"{in_} N", n)
        self.same(
            f"{out} and {filters} must have the same channels K",
            f"{out} K", gk, f"{filters} K", k,
        )  # fmt: skip
        self.divides(a.groups, "C", c)
        self.divides(a.groups, "K", k if k is not None else gk)
        if cg is not None:
            groups = self.word("groups")
            share = f"{filters} C/{groups} * {groups}"
            self.same(
                f"{in_}'s C must be {filters}'s C/{groups} times {groups} ({groups}={a.groups})",
                f"{in_} C", c, share, cg * a.groups,
            )  # fmt: skip
        letters = ("ZPQ"[-rank:], "DHW"[-rank:], "TRS"[-rank:])
        for axis, (name, in_name, k_name) in enumerate(zip(*letters, strict=True)):
            size, kernel, pixels = sizes[axis], taps[axis], made_sizes[axis]
            if size is None or kernel is None:
                continue
            pad = a.padding[axis] + a.padding[axis + rank]
            stride, dilation = a.strides[axis], a.dilation[axis]
            made = out_size(size, pad, kernel, stride, dilation)
            why = (
                f"{in_name}={size}, {k_name}={kernel}, padding {pad} in all,"
                f" stride {stride}, dilation {dilation}"
            )
            self.positive(name, made, why)
            self.same(
                f"{out}'s {name} must be what the convolution makes of {why}",
                f"{out} {name}", pixels, f"made {name}", made,
            )  # fmt: skip
