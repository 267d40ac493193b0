"""Operands and results as the cores see them: channels innermost, in the accumulator's dtype.

An operand that already is so is used in place; any other is copied, at its own size plus a border
of zeros.  A result likewise is written in place or copied out.  Copies are of some images at a
time, so that they stay in the caches and take little memory.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tvm.tirx.script import builder as T

from relay_wgrad.problem import DTYPE_BYTES, ConvProblem

from ..machine import Machine
from .axes import Taps
from .copies import Copy, Dim, clear, clear_border, move
from .loops import Expr, Scratch, bind, ceildiv, flat, int64, one_core, serial, when

Border = tuple[int, int, int, int]  # top, left, bottom, right
NO_BORDER: Border = (0, 0, 0, 0)
# Bytes of copied activations at a time, at most, unless a single image needs more.
MOST_COPIED = 32 << 20
_L2_WAYS = 8  # of a level-2 cache, at least


@dataclass(frozen=True)
class Image:
    """An activation in memory.  Element (n, h, w) of channel c in group g is at
    base + n*n_step + h*h_step + w*w_step + g*g_step + c; that of a volume's plane d d*d_step on, or
    d % slots * d_step if it is a ring of so many planes."""

    buffer: Expr
    base: Expr
    n_step: Expr
    h_step: Expr
    w_step: Expr
    g_step: Expr
    d_step: Expr = 0
    slots: int = 0

    def at(self, n: Expr, h: Expr, w: Expr, g: Expr, d: Expr = 0) -> Expr:
        place = self.base + n * self.n_step + h * self.h_step + w * self.w_step + g * self.g_step
        return place + self.plane(d)

    def plane(self, d: Expr) -> Expr:
        """The place of plane `d`, which a ring must have, in a volume."""
        return (T.truncmod(int64(d), int64(self.slots)) if self.slots else d) * self.d_step

    def step(self, taps: tuple[Taps, Taps], r: Expr, s: Expr) -> Expr:
        """From what a phase's first tap meets to what its tap (r, s) meets."""
        return r * (taps[0].reach * self.h_step) + s * (taps[1].reach * self.w_step)

    def has_dense_rows(self, w: int) -> bool:
        """Whether an image's pixels follow each other at one step."""
        known = isinstance(self.h_step, int) and isinstance(self.w_step, int)
        return known and self.h_step == w * self.w_step

    def is_dense(self, n: Expr, h: int, w: int) -> bool:
        """Whether the pixels of n images of h x w follow each other at one step."""
        known = isinstance(self.n_step, int) and isinstance(n, int)
        return known and self.has_dense_rows(w) and self.n_step == h * self.h_step


@dataclass(frozen=True)
class Activation:
    """How a core wants an activation, and whether it must be copied for that.

    Channels come as (groups, per group), the latter filled up to `padded` if it is copied.
    `deep`: planes of zeros before and after a volume.
    `interleaved` (depthwise): the groups are the copies that a channel has, and channel
    c * groups + g of the caller is (g, c).
    """

    role: str
    groups: int
    per_group: int
    padded: int
    border: Border
    interleaved: bool
    is_copied: bool
    deep: tuple[int, int] = (0, 0)


class Memory:
    """Makes the copies of one kernel."""

    def __init__(
        self, problem: ConvProblem, buffers: dict[str, Expr], accum: str, m: Machine
    ) -> None:
        self.problem = problem
        self.accum = accum
        self.lanes = m.lanes(accum)
        self.line_bytes = m.line_bytes
        # What the level-2 caches of all cores hold together is read faster than it was written.
        self.copied_bytes = min(m.l2_bytes * m.cores, MOST_COPIED)
        self._l2_bytes, self._cores = m.l2_bytes, m.cores
        self.scratch = Scratch()
        self._flat = {
            role: flat(buffers[role], problem.dtype(role), problem.shape(role))
            for role in problem.roles
        }

    def exchanged(self, problem: ConvProblem) -> Memory:
        """The same memory for a problem whose data are this one's gradient, and the reverse."""
        other = copy.copy(self)
        other.problem = problem
        other._flat = self._flat | {"data": self._flat["grad"], "grad": self._flat["data"]}
        return other

    def of(self, problem: ConvProblem) -> Memory:
        """The same memory for a problem of the same elements, each tensor's in the same order."""
        other = copy.copy(self)
        other.problem = problem
        return other

    def flat(self, role: str) -> Expr:
        """The caller's memory of a tensor."""
        return self._flat[role]

    def slab_bytes(self, panels: Panels) -> int:
        """Of some planes' copies: half of what all weights leave of the level-2 caches, or a block
        of them where all are too many, since the lines of the next planes wait there too."""
        kept = panels.size * DTYPE_BYTES[self.accum]
        if kept > self._l2_bytes // 2:
            kept //= panels.groups * panels.blocks
        of_core = max(self._l2_bytes // 8, (self._l2_bytes - kept) // 2)
        return min(of_core * self._cores, MOST_COPIED // 2)

    def strides(self, role: str) -> dict[str, Expr]:
        """Step of each letter of a tensor's layout."""
        shape, layout = self.problem.shape(role), self.problem.layout(role)
        return {x: math.prod(shape[i + 1 :]) for i, x in enumerate(layout)}

    # ---- activations -------------------------------------------------------------------------

    def operand(
        self,
        role: str,
        groups: int,
        per_group: int,
        *,
        border: Border = NO_BORDER,
        block: int = 1,
        interleaved: bool = False,
        deep: tuple[int, int] = (0, 0),
    ) -> Activation:
        """An activation to read, with zeros in the border and channels a multiple of `block`."""
        direct = (
            self.problem.layout(role)[-1] == "C"
            and self.problem.dtype(role) == self.accum
            and per_group % block == 0
            and not interleaved
            and border == NO_BORDER
            and deep == (0, 0)
        )
        padded = ceildiv(per_group, block) * block
        return Activation(role, groups, per_group, padded, border, interleaved, not direct, deep)

    def result(
        self, groups: int, per_group: int, *, block: int = 1, interleaved: bool = False
    ) -> Activation:
        """The result, an activation to write, with channels a multiple of `block`."""
        role = self.problem.roles[2]
        return self.operand(role, groups, per_group, block=block, interleaved=interleaved)

    def batch(self, *activations: Activation, near: Sequence[Activation] = ()) -> Batch:
        """All images, as many at a time as copies of these activations have room for, and of those
        that are to stay `near` while one block of weights after another reads them."""
        return Batch(self, activations, near)

    def in_place(self, wanted: Activation) -> Image:
        """The caller's own memory."""
        step = self.strides(wanted.role)
        steps = step["N"], step["H"], step["W"], wanted.per_group, step.get("D", 0)
        return Image(self._flat[wanted.role], 0, *steps)

    def size(self, wanted: Activation) -> tuple[int, int, int]:
        """(rows, columns, channels) of an image's copy."""
        *_, h, w = self.problem.canonical_shape(wanted.role)
        top, left, bottom, right = wanted.border
        return h + top + bottom, w + left + right, wanted.groups * wanted.padded

    def planes(self, wanted: Activation) -> int:
        """Of a volume's copy; one of an image."""
        *_, depth, _, _ = self.problem.canonical_shape(wanted.role)
        return depth + sum(wanted.deep) if self.problem.rank == 3 else 1

    def image_bytes(self, *activations: Activation) -> int:
        """Of the copies of an image, or a volume."""
        copied = [x for x in activations if x.is_copied]
        count = sum(self.planes(x) * math.prod(self.size(x)) for x in copied)
        return count * DTYPE_BYTES[self.accum]

    def room(self, wanted: Activation, images: int, planes: int | None = None) -> Image:
        """Memory for copies of so many images, of volumes of so many planes, all of them if None;
        the border and channels too many are zeros."""
        top, left, *_ = wanted.border
        rows, columns, channels = self.size(wanted)
        planes, plane = planes or self.planes(wanted), rows * columns * channels
        count = images * planes * plane
        buffer = self.scratch.new(f"{wanted.role}_core", count, self.accum)
        if wanted.role != self.problem.roles[2]:
            if wanted.padded != wanted.per_group:
                clear(buffer, self.accum, count, self.lanes)
            elif wanted.border != NO_BORDER:
                size = (images * planes, rows, columns, channels)
                clear_border(buffer, self.accum, size, wanted.border, self.lanes)
            if any(wanted.deep) and wanted.padded == wanted.per_group:
                size = (images, planes, plane, 1)
                clear_border(buffer, self.accum, size, _around(wanted.deep), self.lanes)
        return Image(
            buffer,
            wanted.deep[0] * plane + (top * columns + left) * channels,
            planes * plane,
            columns * channels,
            channels,
            wanted.padded,
            plane,
        )

    def move_images(self, wanted: Activation, image: Image, first: Expr, count: Expr) -> None:
        """Copies `count` images from `first` on in, or those of the result out."""
        step, (*_, depth, _, _) = (
            self.strides(wanted.role), self.problem.canonical_shape(wanted.role)
        )  # fmt: skip
        outer = {
            "N": Dim(count, step["N"], image.n_step),
            "D": Dim(depth, step.get("D", 0), image.d_step),
        }
        self._move(wanted, image, outer, image.base, first * step["N"])

    def move_planes(
        self, wanted: Activation, ring: Image, n: Expr, planes: tuple[Expr, Expr]
    ) -> None:
        """Copies the planes [begin, end) of image `n` to their slots of a ring, or out of them."""
        step, (begin, end) = self.strides(wanted.role), planes
        with serial(end, begin) as d:
            at = n * step["N"] + d * step["D"]
            self._move(wanted, ring, {}, ring.base + ring.plane(d), at)

    def _move(
        self, wanted: Activation, image: Image, outer: dict[str, Dim], to: Expr, user: Expr
    ) -> None:
        """Copies planes: those of `outer`, which begin `to` and at `user` of the caller's."""
        problem, step, groups = self.problem, self.strides(wanted.role), wanted.groups
        *_, h, w = problem.canonical_shape(wanted.role)
        lane_step, group_step = step["C"], step["C"] * wanted.per_group
        if wanted.interleaved:
            lane_step, group_step = lane_step * groups, lane_step
        letters = outer | {
            "H": Dim(h, step["H"], image.h_step),
            "W": Dim(w, step["W"], image.w_step),
            "C": Dim(groups, group_step, image.g_step),
        }
        dims = [
            letters[x]
            for x in problem.layout(wanted.role)
            if x in letters and (x != "C" or groups > 1)
        ]
        block = 1 << 30  # one block: channels of a group are contiguous
        move(
            Copy(
                self._flat[wanted.role], problem.dtype(wanted.role), image.buffer, self.accum,
                to, dims, Dim(wanted.per_group, lane_step, 1), block, block,
                wanted.role != problem.roles[2], user,
            ),
            self.lanes,
        )  # fmt: skip

    # ---- weights -----------------------------------------------------------------------------

    def panels(
        self, lane: str, groups: int, lanes: int, reduced: int, block: int
    ) -> tuple[Expr, Panels]:
        """Memory for `copied_panels`."""
        panels = self.copied_panels(lane, groups, lanes, reduced, block)
        return self.scratch.new("weight_core", panels.size, self.accum), panels

    def copied_panels(self, lane: str, groups: int, lanes: int, reduced: int, block: int) -> Panels:
        """Weights [group][block of lanes][t][r][s][reduced][lane within the block].

        `lane` is the letter that counts lanes, O or I; `reduced` counts the other one's length.
        """
        blocks = -(-lanes // block)
        tap = reduced * block
        return Panels(
            lane, groups, lanes, reduced, block, blocks,
            tap, tap * self.problem.s, tap * math.prod(self.problem.taps),
            tap * self.problem.s * self.problem.r, block,
        )  # fmt: skip

    def copied_weight(self, panels: Panels, reverse: bool) -> Expr:
        """A copy of all weights, in memory of its own."""
        weight = self.scratch.new("weight_core", panels.size, self.accum)
        self.move_weight(weight, panels, True, reverse=reverse)
        return weight

    def weights_in_place(
        self, lane: str, lanes: int, reduced: int, block: int
    ) -> tuple[Expr, Panels] | None:
        """A 1x1 kernel's weights where the caller has them, or None where that does not suit: lanes
        must be neighbours, blocks whole, and a block's rows not fall on few places of a cache.

        What one core has copied the others read from it, more slowly than what none has written.
        """
        problem, bytes_ = self.problem, DTYPE_BYTES[self.accum]
        step, way = self.strides("weight"), self._l2_bytes // _L2_WAYS
        row = step["I" if lane == "O" else "O"]
        rows_of_place = ceildiv(reduced, way // math.gcd(row * bytes_, way))
        suits = (
            set(problem.taps) == {1} and problem.groups == 1 and step[lane] == 1
            and problem.dtype("weight") == self.accum and lanes % block == 0
            and rows_of_place <= _L2_WAYS - 2
        )  # fmt: skip
        if not suits:
            return None
        panels = Panels(
            lane, 1, lanes, reduced, block, lanes // block,
            s_step=0, r_step=0, block_step=block, t_step=0, c_step=row,
        )  # fmt: skip
        return self.flat("weight"), panels

    def move_weight(
        self,
        buffer: Expr,
        panels: Panels,
        to_core: bool,
        *,
        interleaved: bool = False,
        reverse: bool = False,
    ) -> None:
        """Copies the weights in, or the result out; `reverse` stores the last tap first.

        Of panels that begin with a block, that block alone, by the thread that calls.
        """
        problem, step = self.problem, self.strides("weight")
        k = problem.k
        other = "I" if panels.lane == "O" else "O"
        sign = -1 if reverse else 1
        base, deep = 0, problem.t if problem.rank == 3 else 1
        if reverse:
            base = (problem.r - 1) * panels.r_step + (problem.s - 1) * panels.s_step
            base += (deep - 1) * panels.t_step
        letters = {
            other: Dim(panels.reduced, step[other], panels.block),
            "D": Dim(deep, step.get("D", 0), sign * panels.t_step),
            "H": Dim(problem.r, step["H"], sign * panels.r_step),
            "W": Dim(problem.s, step["W"], sign * panels.s_step),
        }
        group_step, lane_step = step["O"] * (k // panels.groups), step[panels.lane]
        if interleaved:
            group_step, lane_step = lane_step, lane_step * panels.groups
        group = Dim(panels.groups, group_step, panels.blocks * panels.block_step)
        dims = [letters[x] for x in problem.layout("weight") if x != panels.lane]
        if panels.groups > 1:
            dims = [group, *dims]

        def copy_lanes(count: int, size: int, user: Expr = 0) -> None:
            if to_core and count % panels.block:
                clear(buffer, self.accum, size, self.lanes)
            move(
                Copy(
                    self._flat["weight"], problem.dtype("weight"), buffer, self.accum, base,
                    dims, Dim(count, lane_step, 1), panels.block, panels.block_step, to_core, user,
                ),
                self.lanes,
            )  # fmt: skip

        if panels.first is None:
            copy_lanes(panels.lanes, panels.size)
            return
        for count, has_so_many in panels.widths(panels.first):
            with when(has_so_many), one_core(True):
                first = bind(panels.first * (panels.block * lane_step))
                copy_lanes(count, panels.block_step, first)


@dataclass(frozen=True)
class Panels:
    """Steps of weights in memory; see `Memory.panels`."""

    lane: str
    groups: int
    lanes: int
    reduced: int
    block: int
    blocks: int
    s_step: int
    r_step: int
    block_step: int
    t_step: int
    c_step: int  # from one of the reduced channels to the next
    first: Expr | None = None  # the block that memory begins with; None: the first one of all

    @property
    def size(self) -> int:
        return self.blocks * self.block_step * (self.groups if self.are_copied else self.reduced)

    @property
    def are_copied(self) -> bool:
        """Whether a block is one run of memory: in the caller's a row of all of them is."""
        return self.c_step == self.block

    def at(self, g: Expr, b: Expr, r: Expr, s: Expr) -> Expr:
        block = g * self.blocks + b if self.first is None else b - self.first
        return block * self.block_step + r * self.r_step + s * self.s_step

    def step(self, taps: tuple[Taps, Taps], r: Expr, s: Expr) -> Expr:
        """From the place of a phase's first tap to that of its tap (r, s)."""
        return r * (taps[0].step * self.r_step) + s * (taps[1].step * self.s_step)

    def widths(self, block: Expr) -> list[tuple[int, Expr]]:
        """(lanes that exist of a block, the condition that it is one with so many)"""
        last = self.lanes - (self.blocks - 1) * self.block
        if last == self.block or self.blocks == 1:
            return [(last, True)]
        return [(self.block, block < self.blocks - 1), (last, block == self.blocks - 1)]


def _around(deep: tuple[int, int]) -> Border:
    """Planes of zeros as rows of them."""
    return deep[0], 0, deep[1], 0


class Batch:
    """The images of a problem, some at a time; see `Memory.batch`."""

    def __init__(
        self, memory: Memory, activations: tuple[Activation, ...], near: Sequence[Activation]
    ) -> None:
        self._memory = memory
        self._activations = activations
        self._n = n = memory.problem.n
        each = memory.image_bytes(*activations, *near)
        self.images: Expr = n  # at a time
        if each:
            self.images = most = max(1, memory.copied_bytes // each)
            if isinstance(n, int):
                self.images = max(x for x in range(1, min(most, n) + 1) if n % x == 0)
        self.bytes = each * self.images if each else 0  # of all copies, and what is near
        self.tensors = [
            memory.room(x, self.images) if x.is_copied else memory.in_place(x) for x in activations
        ]

    @property
    def is_whole(self) -> bool:
        """Whether all images are taken at once."""
        return not self.bytes or (isinstance(self._n, int) and self.images == self._n)

    @contextlib.contextmanager
    def each(self) -> Iterator[tuple[Expr, Expr, list[Image]]]:
        """A loop over parts of the batch: (number of the part, its images, where they are).

        Operands are copied in before what is written inside, the result is copied out after it.
        """
        # One where there are no images: it clears what sums over them go to.
        parts = ceildiv(self._n, self.images)
        parts = parts if isinstance(parts, int) else T.max(parts, 1)
        loop = contextlib.nullcontext(0) if self.is_whole else serial(parts)
        with loop as number:
            first, count = bind(number * self.images), self.images
            if self.is_whole:
                first, count = 0, self._n
            elif not isinstance(self._n, int):
                count = bind(T.min(int64(self.images), self._n - first))
            staged = list(zip(self._activations, self.tensors, strict=True))
            result = self._memory.problem.roles[2]
            for wanted, image in staged:
                if wanted.is_copied and wanted.role != result:
                    self._memory.move_images(wanted, image, first, count)
            yield (
                number,
                count,
                [
                    image if wanted.is_copied else replace(image, base=first * image.n_step)
                    for wanted, image in staged
                ],
            )
            for wanted, image in staged:
                if wanted.is_copied and wanted.role == result:
                    self._memory.move_images(wanted, image, first, count)
