"""Convolutions of three dimensions by the kernels of two: depth becomes images and channels.

    y[n, k, z, p, q] = sum over t of sum over c, r, s of
        x[n, c, z*stride + t*dilation - front, …] w[k, c, t, r, s]

For each (n, z) that is a convolution of one image whose channels are all (t, c): N*Z images with T
times as many channels, the data's depths beside each other as its *columns*.  So

    fprop   columns of the data, one 2-D fprop
    wgrad   columns of the data, one 2-D wgrad
    dgrad   one 2-D dgrad to columns, which are summed to the data

with as many multiplications as there are, and sums in the accumulator's dtype throughout.  Columns
take T times the data's memory; where one depth of the data makes one of the output there are none.
Where windows overlap and channels are enough, no columns are made: taps in depth are one more loop
of the kernels (`has_deep_taps`).  Taps in depth alone need none of this: planes' pixels are columns
of an image whose rows are depths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from .emitters.copies import Copy, Dim, move
from .emitters.loops import Expr, Scratch, bind, flat, parallel, serial, vector, when, zero
from .machine import Machine
from .wgrad.unpacked import is_apart

_FILLED = 8  # channels of a group
NAME, DEEP = "depth as channels", "depth as taps"


def along_depth(problem: ConvProblem) -> ConvProblem | None:
    """The 2-D problem of a 3-D one whose taps are in depth alone: a plane's pixels are its columns.

    Memory is the same; None for other taps, and where heights and widths do not follow each other.
    """
    p = problem
    plane = (*p.taps[1:], *p.strides[1:], *p.padding[1:3], *p.padding[4:])
    layouts = [p.layout(role) for role in ("data", "grad")]
    if plane != (1, 1, 1, 1, 0, 0, 0, 0) or not all("HW" in layout for layout in layouts):
        return None
    data, grad = (layout.replace("HW", "W").replace("D", "H") for layout in layouts)
    kernel = p.kernel_layout.replace("H", "").replace("W", "").replace("D", "HW")
    return ConvProblem(
        p.kind, p.n, p.c, p.d, p.h * p.w, p.k, p.t, 1, strides=(p.strides[0], 1),
        dilation=(p.dilation[0], 1), groups=p.groups, padding=(p.padding[0], 0, p.padding[3], 0),
        data_layout=data, kernel_layout=kernel, grad_layout=grad, data_dtype=p.data_dtype,
        weight_dtype=p.weight_dtype, grad_dtype=p.grad_dtype,
    )  # fmt: skip


def has_deep_taps(problem: ConvProblem, m: Machine) -> bool:
    """Whether taps in depth are better a loop of their own than columns.

    There are columns; of a data gradient channels fill a vector by themselves, and of a weight
    gradient a tile's rows; and there windows overlap, so that columns are copies of the same.
    """
    p = problem
    channels = p.c // p.groups
    if p.kind is ConvKind.DGRAD and channels < m.lanes(p.accum_dtype):
        return False
    if p.kind is ConvKind.WGRAD and (is_apart(p) or channels < _FILLED):
        return False
    return not _in_place(p, "data")


def flattened(problem: ConvProblem) -> ConvProblem:
    """The 2-D problem that a 3-D one becomes."""
    accum, z = problem.accum_dtype, problem.z
    return ConvProblem(
        problem.kind, problem.n * z, problem.c * problem.t, problem.h, problem.w,
        problem.k, problem.r, problem.s,
        strides=problem.strides[1:], dilation=problem.dilation[1:], groups=problem.groups,
        padding=(*problem.padding[1:3], *problem.padding[4:]),
        data_layout=_flat_layout(problem, "data"), kernel_layout="OHWI",
        grad_layout=_flat_layout(problem, "grad"),
        data_dtype=problem.data_dtype if _in_place(problem, "data") else accum,
        weight_dtype=accum,
        grad_dtype=problem.grad_dtype if _in_place(problem, "grad") else accum,
    )  # fmt: skip


def _in_place(problem: ConvProblem, role: str) -> bool:
    """Whether the caller's memory is that of the flattened problem's tensor."""
    if role == "data" and not (
        problem.t == 1 and problem.strides[0] == 1 and problem.z == problem.d
        and not (problem.padding[0] or problem.padding[3])
    ):  # fmt: skip
        return False
    return "ND" in problem.layout(role)


def _flat_layout(problem: ConvProblem, role: str) -> str:
    return problem.layout(role).replace("ND", "N") if _in_place(problem, role) else "NHWC"


def write(
    problem: ConvProblem,
    m: Machine,
    buffers: dict[str, Expr],
    inner: Callable[[dict[str, Any]], None],
) -> None:
    """The kernel: `inner(buffers)` writes that of the flattened problem."""
    v = Volume(problem, m, buffers)
    tensors = {role: v.tensor(role) for role in problem.roles}
    result = problem.roles[2]
    for role, tensor in tensors.items():
        if tensor is not buffers[role] and role != result:
            v.copy(role, tensor, to_core=True)
    inner(tensors)
    if tensors[result] is not buffers[result]:
        v.copy(result, tensors[result], to_core=False)
    v.scratch.keep()


def _add(sums: Expr, core: Expr, here: Expr, there: Expr, c: Expr, lanes: int) -> None:
    place = vector(here + c, lanes)
    T.buffer_store(sums, sums[place] + core[vector(there + c, lanes)], [place])


@dataclass(frozen=True)
class Tap:
    """A tap in depth: the outputs [first, last) that it reaches, of which `first` meets `start`."""

    index: int
    first: int
    last: int
    start: int


def taps_of(problem: ConvProblem) -> list[Tap]:
    """The taps in depth; one that all outputs have on the padding reaches none."""
    p, found = problem, []
    for t in range(p.t):
        offset = t * p.dilation[0] - p.padding[0]
        first = min(max(0, -(offset // p.strides[0])), p.z)
        last = max(first, min(p.z, (p.d - 1 - offset) // p.strides[0] + 1))
        found.append(Tap(t, first, last, first * p.strides[0] + offset))
    return found


class Volume:
    """Makes the copies of one kernel."""

    def __init__(self, problem: ConvProblem, m: Machine, buffers: dict[str, Expr]) -> None:
        self.problem, self.flattened, self.buffers = problem, flattened(problem), buffers
        self.accum = problem.accum_dtype
        self.lanes = m.lanes(self.accum)
        self.scratch = Scratch()
        self._flats = {
            role: flat(buffers[role], problem.dtype(role), problem.shape(role))
            for role in problem.roles
        }

    def tensor(self, role: str) -> Expr:
        """Memory for a tensor of the flattened problem: the caller's own, or some more."""
        if role != "weight" and _in_place(self.problem, role):
            return self.buffers[role]
        return self.scratch.new(f"{role}_flat", math.prod(self.flattened.shape(role)), self.accum)

    def flat(self, role: str) -> Expr:
        """The caller's memory of a tensor."""
        return self._flats[role]

    def channels_last(self, role: str, filled: bool) -> Expr:
        """Memory for an activation as NDHWC in the accumulator's dtype, with the caller's in it."""
        shape = self.problem.canonical_shape(role)
        made = self.scratch.new(f"{role}_last", math.prod(shape), self.accum)
        if filled:
            self._move(role, made, True, shape[2], shape[1], (1, 0))
        return made

    def to_caller(self, role: str, core: Expr) -> None:
        """An activation of `channels_last` to the caller's tensor."""
        _, channels, depth, _, _ = self.problem.canonical_shape(role)
        self._move(role, core, False, depth, channels, (1, 0))

    def copy(self, role: str, core: Expr, to_core: bool) -> None:
        """Between the caller's tensor and the flattened problem's."""
        if role == "weight":
            self._move_weight(core, to_core)
        elif role == "grad":
            self._move(role, core, to_core, self.problem.z, self.problem.k, (1, 0))
        elif to_core:
            self._columns(core)
        elif self._is_apart():
            for tap in taps_of(self.problem):
                self._move_tap(core, False, tap)
        else:
            self._sum_columns(core)

    # ---- words ---------------------------------------------------------------------------------

    def steps(self, role: str) -> dict[str, int]:
        """Step of each letter of a tensor's layout."""
        shape, layout = self.problem.shape(role), self.problem.layout(role)
        return {x: math.prod(shape[i + 1 :]) for i, x in enumerate(layout)}

    def _move(
        self, role: str, core: Expr, to_core: bool, depth: int, channels: int,
        taps: tuple[int, int], tap: Tap | None = None, stride: int = 1,
    ) -> None:  # fmt: skip
        """Copies an activation: all its depths, or those that a tap meets; `taps` is among how many
        it stands, and where."""
        step, (_, _, _, h, w) = self.steps(role), self.problem.canonical_shape(role)
        count, index = taps
        groups = self.problem.groups if count > 1 else 1
        lane = channels // groups
        row = channels * count  # of all channels of a pixel
        first, last, start = (tap.first, tap.last, tap.start) if tap else (0, depth, 0)
        if first == last:
            return
        letters = {
            "N": Dim(self.problem.n, step["N"], depth * h * w * row),
            "D": Dim(last - first, stride * step["D"], h * w * row),
            "H": Dim(h, step["H"], w * row),
            "W": Dim(w, step["W"], row),
            "C": Dim(groups, lane * step["C"], lane * count),
        }
        dims = [letters[x] for x in self.problem.layout(role) if x != "C" or groups > 1]
        block = 1 << 30  # one block: channels of a group are contiguous
        move(
            Copy(
                self.flat(role), self.problem.dtype(role), core, self.accum,
                first * h * w * row + index * lane, dims, Dim(lane, step["C"], 1), block, block,
                to_core, start * step["D"],
            ),
            self.lanes,
        )  # fmt: skip

    def _move_weight(self, core: Expr, to_core: bool) -> None:
        p, step = self.problem, self.steps("weight")
        cg = p.c // p.groups
        letters = {
            "O": Dim(p.k, step["O"], p.r * p.s * p.t * cg),
            "D": Dim(p.t, step["D"], cg),
            "H": Dim(p.r, step["H"], p.s * p.t * cg),
            "W": Dim(p.s, step["W"], p.t * cg),
        }
        dims, block = [letters[x] for x in p.layout("weight") if x != "I"], 1 << 30
        lane = Dim(cg, step["I"], 1)
        move(
            Copy(self.flat("weight"), p.weight_dtype, core, self.accum, 0, dims, lane, block,
                 block, to_core),
            self.lanes,
        )  # fmt: skip

    # ---- columns -------------------------------------------------------------------------------

    def _columns(self, core: Expr) -> None:
        """core[n, z, h, w, g, t, c] = data[n, z*stride + t*dilation - front, h, w, g, c]"""
        p = self.problem
        for tap in taps_of(p):
            self._move_tap(core, True, tap)
            for begin, end in ((0, tap.first), (tap.last, p.z)):
                if begin < end:
                    self._clear(core, tap.index, begin, end)

    def _move_tap(self, core: Expr, to_core: bool, tap: Tap) -> None:
        """Between the data and the columns of a tap."""
        p = self.problem
        self._move("data", core, to_core, p.z, p.c, (p.t, tap.index), tap, p.strides[0])

    def _is_apart(self) -> bool:
        """Whether each depth of the data is in one column: windows lie side by side."""
        p = self.problem
        ends = (p.padding[0], p.padding[3], p.dilation[0] - 1)
        return p.strides[0] == p.t and p.d == p.z * p.t and not any(ends)

    def _clear(self, core: Expr, tap: int, begin: int, end: int) -> None:
        """Zeros where a tap meets the padding before or behind the data."""
        p, cg = self.problem, self.problem.c // self.problem.groups
        with parallel(p.n, end - begin, p.h) as (n, z, h):
            row = bind(((n * p.z + begin + z) * p.h + h) * p.w)
            with serial(p.w) as w, serial(p.groups) as g:
                place = bind((((row + w) * p.groups + g) * p.t + tap) * cg)
                self._each(cg, lambda c, lanes: T.buffer_store(
                    core, zero(self.accum, lanes), [vector(place + c, lanes)]
                ))  # fmt: skip

    def _each(self, count: int, body: Any) -> None:
        """`body(start, lanes)` over `count` elements."""
        full, tail = divmod(count, self.lanes)
        if full:
            with serial(full) as v:
                body(v * self.lanes, self.lanes)
        if tail:
            body(full * self.lanes, tail)

    def _sum_columns(self, core: Expr) -> None:
        """data[n, d, h, w, g, c] = the sum of core[n, z, h, w, g, t, c] with
        d = z*stride + t*dilation - front"""
        p, cg = self.problem, self.problem.c // self.problem.groups
        plain = p.layout("data") == "NDHWC" and p.data_dtype == self.accum
        count = math.prod(p.shape("data"))
        sums = self.flat("data") if plain else self.scratch.new("sums", count, self.accum)
        with parallel(p.n, p.d, p.h) as (n, d, h):
            row = bind(((n * p.d + d) * p.h + h) * (p.w * p.c))
            self._each(p.w * p.c, lambda c, lanes: T.buffer_store(
                sums, zero(self.accum, lanes), [vector(row + c, lanes)]
            ))  # fmt: skip
            for t in range(p.t):
                # Never negative, so that quotient and remainder are what they are elsewhere.
                ahead = (p.t - 1) * p.dilation[0] // p.strides[0] + 1
                at = bind(d + (p.padding[0] - t * p.dilation[0] + ahead * p.strides[0]))
                z = bind(at // p.strides[0] - ahead)
                reached = tirx.all(at % p.strides[0] == 0, z >= 0, z < p.z)
                with when(reached):
                    source = bind(((n * p.z + z) * p.h + h) * (p.w * p.t * p.c) + t * cg)
                    with serial(p.w) as w, serial(p.groups) as g:
                        here = bind(row + w * p.c + g * cg)
                        there = bind(source + w * (p.t * p.c) + g * (p.t * cg))

                        self._each(cg, partial(_add, sums, core, here, there))
        if not plain:
            self._move("data", sums, False, p.d, p.c, (1, 0))
