"""Operands and results as the cores see them: channels innermost, in the accumulator's dtype.

An operand that already is so is used in place; any other is copied once, at its own size plus a
border of zeros.  A result likewise is written in place or copied out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from relay_wgrad.problem import ConvProblem

from .emit import Expr, Scratch, flat
from .move import Copy, Dim, clear, clear_border, move

Border = tuple[int, int, int, int]  # top, left, bottom, right
NO_BORDER: Border = (0, 0, 0, 0)


@dataclass(frozen=True)
class Image:
    """An activation in memory.  Element (n, h, w) of channel c in group g is at
    base + n*n_step + h*h_step + w*w_step + g*g_step + c."""

    buffer: Expr
    base: Expr
    n_step: Expr
    h_step: Expr
    w_step: Expr
    g_step: Expr

    def at(self, n: Expr, h: Expr, w: Expr, g: Expr) -> Expr:
        return self.base + n * self.n_step + h * self.h_step + w * self.w_step + g * self.g_step

    def has_dense_rows(self, w: int) -> bool:
        """Whether an image's pixels follow each other at one step."""
        known = isinstance(self.h_step, int) and isinstance(self.w_step, int)
        return known and self.h_step == w * self.w_step

    def is_dense(self, n: Expr, h: int, w: int) -> bool:
        """Whether the pixels of n images of h x w follow each other at one step."""
        known = isinstance(self.n_step, int) and isinstance(n, int)
        return known and self.has_dense_rows(w) and self.n_step == h * self.h_step


class Memory:
    """Makes the copies of one kernel.

    `channels` of an activation come as (groups, per group); with `multiplier` (depthwise) the
    groups are the copies that a channel has, and user channel c * groups + g is (g, c).
    """

    def __init__(
        self, problem: ConvProblem, buffers: dict[str, Expr], accum: str, lanes: int
    ) -> None:
        self.problem = problem
        self.accum = accum
        self.lanes = lanes
        self.scratch = Scratch()
        self._flat = {
            role: flat(buffers[role], problem.dtype(role), problem.shape(role))
            for role in problem.roles
        }

    def strides(self, role: str) -> dict[str, Expr]:
        """Step of each letter of a tensor's layout."""
        shape, layout = self.problem.shape(role), self.problem.layout(role)
        return {x: math.prod(shape[i + 1 :]) for i, x in enumerate(layout)}

    # ---- activations -------------------------------------------------------------------------

    def _direct(self, role: str, block: int, per_group: int, interleaved: bool) -> bool:
        return (
            self.problem.layout(role)[-1] == "C"
            and self.problem.dtype(role) == self.accum
            and per_group % block == 0
            and not interleaved
        )

    def _in_place(self, role: str, per_group: int) -> Image:
        step = self.strides(role)
        return Image(self._flat[role], 0, step["N"], step["H"], step["W"], per_group)

    def _staged(
        self, role: str, border: Border, groups: int, per_group: int, block: int
    ) -> tuple[Image, Expr, tuple[Expr, int, int, int], int]:
        n, _, h, w = self.problem.canonical_shape(role)
        padded = -(-per_group // block) * block
        rows, columns = h + border[0] + border[2], w + border[1] + border[3]
        channels = groups * padded
        buffer = self.scratch.new(f"{role}_core", n * rows * columns * channels, self.accum)
        image = Image(
            buffer,
            (border[0] * columns + border[1]) * channels,
            rows * columns * channels,
            columns * channels,
            channels,
            padded,
        )
        return image, buffer, (n, rows, columns, channels), padded

    def _copy(
        self, role: str, image: Image, groups: int, per_group: int, interleaved: bool, to_core: bool
    ) -> None:
        problem, step = self.problem, self.strides(role)
        n, _, h, w = problem.canonical_shape(role)
        c_step = step["C"]
        lane = Dim(per_group, c_step * groups if interleaved else c_step, 1)
        group = Dim(groups, c_step if interleaved else c_step * per_group, image.g_step)
        letters = {
            "N": Dim(n, step["N"], image.n_step),
            "H": Dim(h, step["H"], image.h_step),
            "W": Dim(w, step["W"], image.w_step),
            "C": group,
        }
        dims = [letters[x] for x in problem.layout(role) if x != "C" or groups > 1]
        block = 1 << 30  # one block: channels of a group are contiguous
        move(
            Copy(
                self._flat[role], problem.dtype(role), image.buffer, self.accum, image.base,
                dims, lane, block, block, to_core,
            ),
            self.lanes,
        )  # fmt: skip

    def operand(
        self,
        role: str,
        groups: int,
        per_group: int,
        *,
        border: Border = NO_BORDER,
        block: int = 1,
        interleaved: bool = False,
    ) -> Image:
        """An activation to read, with zeros in the border and channels a multiple of `block`."""
        if border == NO_BORDER and self._direct(role, block, per_group, interleaved):
            return self._in_place(role, per_group)
        image, buffer, size, padded = self._staged(role, border, groups, per_group, block)
        if padded != per_group:
            clear(buffer, self.accum, math.prod(size), self.lanes)
        elif border != NO_BORDER:
            clear_border(buffer, self.accum, size, border, self.lanes)
        self._copy(role, image, groups, per_group, interleaved, True)
        return image

    def result(
        self, groups: int, per_group: int, *, block: int = 1, interleaved: bool = False
    ) -> Image:
        """Where to write the result, an activation with channels a multiple of `block`."""
        role = self.problem.roles[2]
        if self._direct(role, block, per_group, interleaved):
            return self._in_place(role, per_group)
        return self._staged(role, NO_BORDER, groups, per_group, block)[0]

    def finish(
        self, image: Image, groups: int, per_group: int, *, interleaved: bool = False
    ) -> None:
        """Copies the result out, unless it was written in place."""
        role = self.problem.roles[2]
        if image.buffer is not self._flat[role]:
            self._copy(role, image, groups, per_group, interleaved, False)

    # ---- weights -----------------------------------------------------------------------------

    def panels(
        self, lane: str, groups: int, lanes: int, reduced: int, block: int
    ) -> tuple[Expr, Panels]:
        """Memory for weights [group][block of lanes][r][s][reduced][lane within the block].

        `lane` is the letter that counts lanes, O or I; `reduced` counts the other one's length.
        """
        blocks = -(-lanes // block)
        tap = reduced * block
        panels = Panels(
            lane, groups, lanes, reduced, block, blocks,
            tap, tap * self.problem.s, tap * self.problem.s * self.problem.r,
        )  # fmt: skip
        return self.scratch.new(
            "weight_core", groups * blocks * panels.block_step, self.accum
        ), panels

    def move_weight(
        self,
        buffer: Expr,
        panels: Panels,
        to_core: bool,
        *,
        interleaved: bool = False,
        reverse: bool = False,
    ) -> None:
        """Copies the weights in, or the result out; `reverse` stores the last tap first."""
        problem, step = self.problem, self.strides("weight")
        k = problem.k
        other = "I" if panels.lane == "O" else "O"
        sign = -1 if reverse else 1
        base = (problem.r - 1) * panels.r_step + (problem.s - 1) * panels.s_step if reverse else 0
        letters = {
            other: Dim(panels.reduced, step[other], panels.block),
            "H": Dim(problem.r, step["H"], sign * panels.r_step),
            "W": Dim(problem.s, step["W"], sign * panels.s_step),
        }
        group_step, lane_step = step["O"] * (k // panels.groups), step[panels.lane]
        if interleaved:
            group_step, lane_step = lane_step, lane_step * panels.groups
        group = Dim(panels.groups, group_step, panels.blocks * panels.block_step)
        if to_core and panels.lanes % panels.block:
            count = panels.groups * panels.blocks * panels.block_step
            clear(buffer, self.accum, count, self.lanes)
        dims = [letters[x] for x in problem.layout("weight") if x != panels.lane]
        if panels.groups > 1:
            dims = [group, *dims]
        lane = Dim(panels.lanes, lane_step, 1)
        move(
            Copy(
                self._flat["weight"], problem.dtype("weight"), buffer, self.accum, base,
                dims, lane, panels.block, panels.block_step, to_core,
            ),
            self.lanes,
        )  # fmt: skip


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

    def at(self, g: Expr, b: Expr, r: Expr, s: Expr) -> Expr:
        return (g * self.blocks + b) * self.block_step + r * self.r_step + s * self.s_step
