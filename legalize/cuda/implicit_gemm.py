"""fprop, dgrad and wgrad as batched matrix products C[b,m,n] = sum over k of A[b,m,k] B[b,k,n].

b, m, n and k each stand for several axes of the convolution; a `View` says which, in which order
they are counted, and how an index on each becomes an element of an operand.  The batch is the
groups and, in a strided dgrad, also the phases: pixels whose coordinates are equal modulo the
stride see the same subset of the taps, so that a phase is a product without holes, and no
multiplication by the zeros between them is ever done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from relay_wgrad.layouts import ACTIVATION, KERNEL, to_layout
from relay_wgrad.problem import ConvKind, ConvProblem

from .emitters import Expr, ceildiv, digits, int64

Index = Mapping[str, Expr]
Access = tuple[list[Expr], str, tuple[Expr, ...]]  # guards, role, index in the tensor's own layout

# The letter of each tensor's axis -> the convolution's axis that mainly moves along it.
_ALONG = {
    "data": {"N": "n", "C": "c", "H": "p", "W": "q"},
    "grad": {"N": "n", "C": "k", "H": "p", "W": "q"},
    "weight": {"O": "k", "I": "c", "H": "r", "W": "s"},
}


@dataclass(frozen=True)
class View:
    """Axes of the convolution by name: g (group), n, c and k (within the group), p, q, r, s.

    In dgrad p, q count data pixels of one phase (u, v), and r, s count the taps of that phase.
    `first` and `second` are the roles that provide A and B.
    """

    problem: ConvProblem
    sizes: Mapping[str, Expr]
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    first: str
    second: str

    def size(self, axes: Sequence[str]) -> Expr:
        return math.prod((self.sizes[x] for x in axes), start=1)

    def counting_order(self) -> tuple[str, ...]:
        """All axes of the result, in the order in which neighbouring threads take its elements.

        In memory order, but in wgrad the axis along which the gradient is contiguous comes last:
        what is read a thousand times goes before what is written once.
        """
        problem = self.problem
        result = problem.roles[2]
        axes = [_ALONG[result][letter] for letter in problem.layout(result)]
        if result == "weight" and self.fast("grad") == "k":
            axes.append(axes.pop(axes.index("k")))
        channel = "c" if result == "data" else "k"
        axes.insert(axes.index(channel), "g")
        return (*self.batch[1:], *axes)

    def index(self, axes: Sequence[str], value: Expr) -> dict[str, Expr]:
        """The index on each of `axes` from their combined, mixed-radix one."""
        return dict(zip(axes, digits(value, [self.sizes[x] for x in axes]), strict=True))

    def transposed(self) -> View:
        """The same product with C, and so A and B, transposed."""
        return replace(self, m=self.n, n=self.m, first=self.second, second=self.first)

    def fast(self, role: str) -> str:
        """The axis along which `role`'s memory is contiguous."""
        return self.memory_axes(role)[-1]

    def memory_axes(self, role: str) -> tuple[str, ...]:
        """The axes that matter in a role's memory, outermost first; never empty."""
        layout = self.problem.layout(role)
        sizes = self.problem.shape(role)
        axes = tuple(
            _ALONG[role][letter]
            for letter, size in zip(layout, sizes, strict=True)
            if not (isinstance(size, int) and size == 1)
        )
        return axes or (_ALONG[role][layout[-1]],)

    # ---- from indices to elements ------------------------------------------------------------

    def access(self, role: str, index: Index) -> Access:
        """An element of an operand, or of the result, and when there is one."""
        problem = self.problem
        c = index["g"] * self.sizes["c"] + index["c"] if "c" in index else None
        k = index["g"] * self.sizes["k"] + index["k"] if "k" in index else None
        where: tuple[Expr, ...]
        if problem.kind is ConvKind.DGRAD:
            where, guards = self._dgrad(role, index, c, k)
        elif role == "weight":
            where, guards = (k, index["c"], index["r"], index["s"]), []
        elif role == "grad":
            where, guards = (index["n"], k, index["p"], index["q"]), []
        else:
            pixel, guards = [], []
            for axis, (out, tap, size) in enumerate((("p", "r", problem.h), ("q", "s", problem.w))):
                before, after = problem.padding[axis], problem.padding[axis + 2]
                x = index[out] * problem.strides[axis] - before
                x = x + index[tap] * problem.dilation[axis]
                guards += [x >= 0] if before > 0 else []
                guards += [x < size] if after > 0 else []
                pixel.append(x)
            where = (index["n"], c, *pixel)
        letters = KERNEL if role == "weight" else ACTIVATION
        return guards, role, to_layout(where, letters, problem.layout(role))

    def _dgrad(
        self, role: str, index: Index, c: Expr, k: Expr
    ) -> tuple[tuple[Expr, ...], list[Expr]]:
        """Padded data row h + pad = stride*(p + skipped) + u; tap r = start(u) + period*j.

        Row h is reached through tap r if stride divides h + pad - dilation*r.  With `common` the
        divisor of stride and dilation, that needs common | u, and then r is determined modulo
        period = stride/common by u alone.  Phases are those of the padded rows, so that for
        dilation 1 a phase's first tap is simply u, and no remainder of a shifted index occurs:
        TVM 0.27 simplifies (v//2 + 1) % 2 next to (v%2 + 1) % 2 wrongly (`iter_map_simplify`).
        """
        problem = self.problem
        pixel: list[Expr] = []
        guards: list[Expr] = []
        axes = (
            ("p", "u", "r", problem.h, problem.p, problem.r),
            ("q", "v", "s", problem.w, problem.q, problem.s),
        )
        for axis, (row, phase, tap, size, out, taps) in enumerate(axes):
            stride, dilation = problem.strides[axis], problem.dilation[axis]
            pad = problem.padding[axis]
            common = math.gcd(stride, dilation)
            period = stride // common
            start, base = _phase(stride, dilation, index[phase])
            if role == "data":
                h = (index[row] + pad // stride) * stride + index[phase] - pad
                guards += [h >= 0] if pad % stride else []
                guards += [h < size] if stride > 1 else []
                pixel.append(h)
                continue
            # Where a phase has no such tap neither factor is read: zero times an infinity is NaN.
            r = index[tap] * period + start
            guards += [index[phase] % common == 0] if common > 1 else []
            guards += [r < taps] if period > 1 else []
            if role == "weight":
                pixel.append(r)
            else:
                y = index[row] + pad // stride + base - index[tap] * (dilation // common)
                guards += [y >= 0, y < out]
                pixel.append(y)
        if role == "weight":
            return (k, index["c"], *pixel), guards
        return (index["n"], c if role == "data" else k, *pixel), guards


def view_of(problem: ConvProblem) -> View:
    """The view whose counting orders follow the tensors' layouts, for contiguous accesses."""
    sizes: dict[str, Any] = {
        "g": problem.groups,
        "n": problem.n,
        "c": problem.c // problem.groups,
        "k": problem.k // problem.groups,
        "p": problem.p,
        "q": problem.q,
        "r": problem.r,
        "s": problem.s,
    }
    batch: tuple[str, ...] = ("g",)
    if problem.kind is ConvKind.DGRAD:
        batch = ("g", "u", "v")
        for axis, (row, phase, tap, size) in enumerate(
            (("p", "u", "r", problem.h), ("q", "v", "s", problem.w))
        ):
            stride, dilation = problem.strides[axis], problem.dilation[axis]
            pad = problem.padding[axis]
            sizes[phase] = stride
            sizes[row] = ceildiv(size + pad, stride) - pad // stride
            sizes[tap] = ceildiv(sizes[tap], stride // math.gcd(stride, dilation))
    if problem.kind is ConvKind.WGRAD:
        m: tuple[str, ...] = ("k",)
        n = _ordered("crs", problem, "weight")
        k = _ordered("npq", problem, "grad")
    else:
        own, summed = ("k", "c") if problem.kind is ConvKind.FPROP else ("c", "k")
        m = _ordered("npq", problem, problem.roles[2])
        n = (own,)
        k = _ordered(summed + "rs", problem, "weight")
    view = View(problem, sizes, batch, m, n, k, problem.roles[0], problem.roles[1])
    # The result's contiguous axis is to be one of n, along which neighbouring threads write.
    return view.transposed() if view.fast(problem.roles[2]) in m else view


def _phase(stride: int, dilation: int, phase: Expr) -> tuple[Expr, Expr]:
    """The first tap that a phase sees, and the output row that it reads through it, less p."""
    common = math.gcd(stride, dilation)
    if dilation == common:
        return (phase // common if stride > common else int64(0)), int64(0)
    # A modular inverse, by a table: there are few phases.
    start, base = int64(0), int64(0)
    for value in range(0, stride, common):  # the others have no tap; the caller's guard says so
        r = next(r for r in range(stride) if (value - r * dilation) % stride == 0)
        chosen = phase == value
        start = tirx.Select(chosen, int64(r), start)
        base = tirx.Select(chosen, int64((value - r * dilation) // stride), base)
    return start, base


def _ordered(axes: str, problem: ConvProblem, role: str) -> tuple[str, ...]:
    order = [_ALONG[role][letter] for letter in problem.layout(role)]
    return tuple(sorted(axes, key=order.index))
