"""How wgrad cuts the gradient's pixels into units that a level-1 cache holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvProblem

from ...quotient import quotient
from ..emitters.loops import Expr, bind, ceildiv
from ..emitters.memory import Batch, Image


@dataclass(frozen=True)
class Pixels:
    """The gradient's pixels, cut into units of `images` x `rows` x all columns."""

    n: Expr
    p: Expr
    q: int
    images: int
    rows: int
    total: Expr = None  # of pixels, where rows are cut from one long row whose end is not full
    planes: int = 1  # of a volume, each of which is an image here

    @property
    def units(self) -> tuple[Expr, Expr]:
        return ceildiv(self.n, self.images), ceildiv(self.p, self.rows)

    def of_images(self, images: Expr, *tensors: Image) -> tuple[Pixels, list[Image]]:
        """The pixels of so many images, and the tensors as they index them."""
        if self.total is None:
            return replace(self, n=images * self.planes), list(tensors)
        return self, [replace(tensor, h_step=self.q * tensor.w_step) for tensor in tensors]


def cut(problem: ConvProblem, batch: Batch, target: int) -> Pixels:
    """Units of about `target` pixels of the images that are taken at a time."""
    planes = problem.z if problem.rank == 3 else 1
    n, p, q = batch.images * planes, problem.p, problem.q
    pointwise = set(problem.taps) == {1} and problem.strides == (1, 1)
    images = n if problem.is_static else problem.n
    dense = all(tensor.is_dense(images, p, q) for tensor in batch.tensors)
    if pointwise and problem.padding == (0, 0, 0, 0) and dense:
        total = n * p * q
        blocks = ceildiv(total, target)
        long = ceildiv(total, blocks)
        return Pixels(1, blocks, long, 1, 1, total)
    rows = max(1, min(p, target // q))
    rows = ceildiv(p, ceildiv(p, rows))
    images = max(1, target // (p * q))
    if isinstance(n, int):
        images = ceildiv(n, ceildiv(n, min(images, n)))
    return Pixels(n, p, q, images, rows, planes=planes)


def reach(problem: ConvProblem, axis: int, tap: Expr, limit: int) -> tuple[Expr, Expr]:
    """The pixels along an axis, of `limit`, whose position under a tap is on the data."""
    size = (problem.h, problem.w)[axis]
    at = axis + problem.rank - 2
    stride, dilation = problem.strides[at], problem.dilation[at]
    before, kernel = problem.padding[at], problem.taps[at]

    def low(t: Expr) -> Expr:
        return -quotient(t * dilation - before, stride, -before)

    def high(t: Expr) -> Expr:
        rest = t * dilation - before - size + stride
        return 1 - quotient(rest, stride, -before - size)

    if low(0) <= 0 and high(kernel - 1) >= limit:
        return 0, limit
    return T.max(low(tap), 0), T.min(high(tap), limit)


def at_least(high: Expr, low: Expr) -> Expr:
    """The end of a range, moved to its start if it is before it."""
    if isinstance(high, int) and isinstance(low, int):
        return max(high, low)
    return bind(T.max(high, low))
