"""3x3 convolutions of stride 1 by Winograd's algorithm F(4x4, 3x3), for sums in float32.

Along one axis, a tile of 6 inputs x gives 4 outputs y under 3 taps w.  The trilinear form of the
tile is a sum of 6 products instead of 12:

    sum over j, r of  y[j] * x[j + r] * w[r]  =  sum over e of  (A y)[e] * (B x)[e] * (G w)[e]

A and G evaluate polynomials at 5 points and at infinity, B interpolates.  Its partial derivatives
are fprop, A' ((G w) * (B x)), and wgrad, G' ((A y) * (B x)); dgrad is an fprop whose weights are
reversed.  In two dimensions each matrix works on rows and columns: 36 products per tile for 144,
and over channels and tiles these are 36 matrix products, one for each pair of points.

Of a volume the tiles are those of its planes.  Taps in depth are a sum, and sums commute with the
transforms: each plane is transformed once, a plane of results is the sum of the products of those
planes that its taps meet, and is transformed back once.  Depth could have points of its own, 216
products for 1,728: each matrix would double the rounding error once more.

The points 0, ±2/3, ±3/2 were chosen for accuracy: relative to the result's norm the rounding error
is about twice a direct sum's; with the usual 0, ±1, ±2 it would be twice that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ..emitters.axes import Axis
from ..emitters.loops import (
    Expr,
    bind,
    ceildiv,
    conjunction,
    digits,
    int64,
    splat,
    zero,
)
from ..machine import Machine

Matrix = tuple[tuple[Fraction, ...], ...]

TILE, TAPS = 4, 3  # outputs and taps of a tile along one axis
SIZE = TILE + TAPS - 1  # inputs, and points of evaluation
POINTS = SIZE * SIZE  # in two dimensions
# Rows of memory at steps of a power of two would compete for the same lines of a cache.
APART = 16
_AT = tuple(Fraction(*x) for x in ((0, 1), (2, 3), (-2, 3), (3, 2), (-3, 2)))

# Cycles per vector of channels, measured roughly: of a tile's transforms, and of a weight's, which
# in fprop and dgrad goes through memory; vectors of 16 floats wait longer for it.
_TILE_CYCLES, _WEIGHT_CYCLES = 250, {ConvKind.FPROP: 800, ConvKind.DGRAD: 800, ConvKind.WGRAD: 150}
_FAR_WEIGHT_CYCLES = 3000
# Winograd is taken where it should need less than this share of the direct algorithm's time.
_SHARE = 0.8


def _evaluation(count: int) -> Matrix:
    """Values of a polynomial of `count` coefficients at all points; at infinity its last one."""
    rows = [tuple(point**j for j in range(count)) for point in _AT]
    return (*rows, (*[Fraction(0)] * (count - 1), Fraction(1)))


def _matrices() -> tuple[Matrix, Matrix, Matrix]:
    """(A, B, G), each row of B scaled to end in 1, and that of G against it."""
    # The product of polynomials y and w has the values (A y) * (G w); x pairs with its
    # coefficients.  So B is the inverse of the evaluation, transposed.
    size = SIZE
    rows = [
        [*row, *(Fraction(int(i == j)) for j in range(size))]
        for i, row in enumerate(_evaluation(size))
    ]
    for i in range(size):  # Gauss and Jordan, exactly
        pivot = next(j for j in range(i, size) if rows[j][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for j in range(size):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i], strict=True)]
    b = [[rows[j][size + i] for j in range(size)] for i in range(size)]
    scales = [next(x for x in reversed(row) if x) for row in b]
    b_scaled = tuple(tuple(x / s for x in row) for row, s in zip(b, scales, strict=True))
    g = _evaluation(TAPS)
    g_scaled = tuple(tuple(x * s for x in row) for row, s in zip(g, scales, strict=True))
    return _evaluation(TILE), b_scaled, g_scaled


A, B, G = _matrices()


def even(count: int, most: int) -> int:
    """How many at a time, at most, so that all parts have about as many."""
    return ceildiv(count, ceildiv(count, most))


def applies(problem: ConvProblem) -> bool:
    """Whether the algebra is for this problem; groups and symbolic sizes are left out.

    A volume of one tap in depth is left to the kernels of two dimensions: its planes are images.
    """
    return bool(
        problem.is_static
        and problem.accum_dtype == "float32"
        and problem.groups == 1
        and (problem.r, problem.s) == (TAPS, TAPS)
        and problem.dilation[-2:] == (1, 1)
        and set(problem.strides) == {1}
        and not (problem.rank == 3 and problem.t == 1)
    )


def pays(problem: ConvProblem, m: Machine, in_tasks: bool) -> bool:
    """Whether the algorithm applies, and should be clearly faster than the direct one.

    in_tasks : whether tasks transform their own weights, so that those stay in their caches; of
        wgrad, their own tiles, of which all have some.
    """
    lanes = m.lanes("float32")
    if not applies(problem) or min(problem.c, problem.k) < lanes:
        return False
    taps = problem.t if problem.rank == 3 else 1  # in depth
    product, total = problem.c * problem.k, problem.c + problem.k
    is_wgrad = problem.kind is ConvKind.WGRAD
    if is_wgrad and not in_tasks and taps * product < m.cores * lanes * lanes:
        return False  # the direct kernel splits the sum over pixels, for more cores
    pieces = Pieces.of(problem, problem.n, 28)
    tiles, (*_, high, wide) = pieces.tiles.count, _result(problem)
    again = pieces.read / pieces.size - 1  # planes that the next piece transforms once more
    moved = {ConvKind.FPROP: problem.c, ConvKind.DGRAD: problem.k, ConvKind.WGRAD: problem.c}
    total += again * moved[problem.kind]
    cycles = tiles * (POINTS * taps * product + _TILE_CYCLES * total)
    is_far = not (is_wgrad or in_tasks or m.has_few_registers)
    is_far = is_far and 4 * POINTS * taps * product > m.l2_bytes * m.cores
    cycles += (_FAR_WEIGHT_CYCLES if is_far else _WEIGHT_CYCLES[problem.kind]) * taps * product
    pixels = tiles // (pieces.tiles.high * pieces.tiles.wide) * high * wide
    return bool(cycles < _SHARE * taps * TAPS * TAPS * pixels * product)


def first_pixel(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns from the first pixel that a tile reads to its first output."""
    before = problem.padding[problem.rank - 2 : problem.rank]
    top, left = (TAPS - 1 - b if problem.kind is ConvKind.DGRAD else b for b in before)
    return top, left


def _result(problem: ConvProblem) -> tuple[int, ...]:
    """Sizes of what is cut into tiles: of the result, or of wgrad's gradient."""
    return problem.spatial if problem.kind is ConvKind.DGRAD else problem.pixels


# ---- transforms --------------------------------------------------------------------------------


def _combination(terms: Sequence[tuple[Fraction, Expr]], lanes: int) -> Expr | None:
    """A sum of multiples of vectors; None for none."""
    total = None
    for factor, value in sorted(
        terms, key=lambda x: abs(x[0]) != 1
    ):  # those without a product first
        if factor == 0:
            continue
        if abs(factor) == 1:
            if total is None:
                total = value if factor > 0 else zero("float32", lanes) - value
            else:
                total = total + value if factor > 0 else total - value
        else:
            term = value * splat(tirx.const(float(factor), "float32"), lanes)
            total = term if total is None else total + term
    return total


def _sum(a: Expr | None, b: Expr | None, sign: int, lanes: int) -> Expr:
    if b is None:
        return zero("float32", lanes) if a is None else a
    if a is None:
        return b if sign > 0 else zero("float32", lanes) - b
    return a + b if sign > 0 else a - b


def spread(matrix: Matrix, values: Sequence[Expr], lanes: int) -> list[Expr]:
    """`matrix` times a column of vectors.  Rows of opposite points share their two halves."""
    out: list[Expr] = [None] * SIZE
    for i in (0, SIZE - 1):
        total = _combination(list(zip(matrix[i], values, strict=True)), lanes)
        out[i] = bind(zero("float32", lanes) if total is None else total)
    for i in (1, 3):
        same, opposite = _halves(matrix, i, values, lanes)
        out[i], out[i + 1] = (bind(_sum(same, opposite, sign, lanes)) for sign in (1, -1))
    return out


def _halves(
    matrix: Matrix, i: int, values: Sequence[Expr], lanes: int
) -> tuple[Expr | None, Expr | None]:
    """The parts of row i that the row of the opposite point has too, and has with another sign."""
    halves = []
    for sign in (1, -1):
        terms = [
            (a, x)
            for a, b, x in zip(matrix[i], matrix[i + 1], values, strict=True)
            if a == sign * b
        ]
        total = _combination(terms, lanes)
        halves.append(None if total is None else bind(total))
    return halves[0], halves[1]


def gather(matrix: Matrix, values: Sequence[Expr], lanes: int) -> list[Expr]:
    """The transposed `matrix` times a column of vectors."""
    pairs = [(i, bind(values[i] + values[i + 1]), bind(values[i] - values[i + 1])) for i in (1, 3)]
    out = []
    for column in range(len(matrix[0])):
        terms = [(matrix[i][column], values[i]) for i in (0, SIZE - 1)]
        for i, plus, minus in pairs:
            same = matrix[i][column] == matrix[i + 1][column]
            terms.append((matrix[i][column], plus if same else minus))
        total = _combination(terms, lanes)
        out.append(bind(zero("float32", lanes) if total is None else total))
    return out


Transform = Callable[[Matrix, Sequence[Expr], int], list[Expr]]


def twice(
    transform: Transform, matrix: Matrix, values: Sequence[Sequence[Expr]], lanes: int
) -> list[list[Expr]]:
    """A transform (`spread` or `gather`) of rows and then of columns; out[i][j] as in[i][j]."""
    rows = [transform(matrix, row, lanes) for row in values]
    columns = [transform(matrix, column, lanes) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


# ---- tiles -------------------------------------------------------------------------------------


Place = tuple[Expr, Expr, Expr, Expr]  # image, plane, row, column of a pixel
Where = tuple[Expr, Expr, Expr]  # image, plane, tile within the plane


@dataclass(frozen=True)
class Tiles:
    """The tiles of all planes of all images: `high` x `wide` of each, counted in rows.

    Images that have no depth are one plane.
    """

    images: int
    height: int  # pixels of the outputs
    width: int
    depth: int = 0  # planes of a volume

    @property
    def high(self) -> int:
        return -(-self.height // TILE)

    @property
    def wide(self) -> int:
        return -(-self.width // TILE)

    @property
    def planes(self) -> int:
        return self.depth or 1

    @property
    def plane(self) -> int:
        """Tiles of a plane."""
        return self.high * self.wide * (1 if self.depth else self.images)

    @property
    def count(self) -> int:
        return self.planes * self.plane * (self.images if self.depth else 1)

    def place(self, run: Expr, plane: Expr, tile: Expr) -> Place:
        """Where a plane's tile has its first pixel; without depth the tile is any of all images."""
        row = bind(tile // self.wide)
        column = bind(tile % self.wide * TILE)
        if self.depth:
            return run, plane, bind(row * TILE), column
        return bind(row // self.high), 0, bind(row % self.high * TILE), column


@dataclass(frozen=True)
class Pieces:
    """Outputs' tiles cut into pieces, of each of which what it reads is transformed together.

    A piece has some tiles of some planes that follow each other, a row for each: first those of its
    first plane.  It reads the same tiles of as many planes and of `reach` more, so that a tap in
    depth is a step of some rows.  Planes off the volume count as planes, and are zeros.  Of images,
    which have no such taps, the tiles of all are one plane.
    """

    tiles: Tiles
    depth: Axis | None  # from a plane of outputs to those that its taps meet
    high: int  # planes of a piece
    wide: int  # tiles of each; the last ones may have less

    @staticmethod
    def of(problem: ConvProblem, images: int, rows: int) -> Pieces:
        """Pieces of so many rows, more or less, of as many images as are there at a time."""
        *deep, height, width = _result(problem)
        tiles = Tiles(images, height, width, deep[0] if deep else 0)
        if not deep:
            return Pieces(tiles, None, 1, even(tiles.plane, rows))
        before, dgrad = problem.padding[0], problem.kind is ConvKind.DGRAD
        reach = (problem.t - 1) * problem.dilation[0]
        depth = Axis(
            False, problem.z if dgrad else problem.d, tiles.planes, problem.t, 1,
            problem.dilation[0], reach - before if dgrad else before,
        )  # fmt: skip
        # The more planes, the fewer are transformed for two pieces.
        high = even(tiles.planes, max(rows // 2, 1))
        return Pieces(tiles, depth, high, even(tiles.plane, max(rows // high, 1)))

    @property
    def taps(self) -> int:
        """In depth."""
        return self.depth.kernel if self.depth else 1

    @property
    def tap(self) -> int:
        """Rows from what one tap in depth meets to what the next one meets."""
        return self.depth.dilation * self.wide if self.depth else 0

    @property
    def size(self) -> int:
        """Rows of outputs."""
        return self.high * self.wide

    @property
    def read(self) -> int:
        """Rows that are transformed."""
        return self.size + (self.taps - 1) * self.tap

    @property
    def grid(self) -> tuple[int, int, int]:
        """Pieces of all images: (images, in depth, in planes)."""
        runs = self.tiles.images if self.depth else 1
        return runs, ceildiv(self.tiles.planes, self.high), ceildiv(self.tiles.plane, self.wide)

    @property
    def count(self) -> int:
        return math.prod(self.grid)

    def first(self, piece: Expr) -> Where:
        """(image, first plane, first tile in it) of a piece."""
        run, z, tile = digits(piece, self.grid)
        return run, bind(z * self.high), bind(tile * self.wide)

    def result(self, first: Where, row: Expr) -> tuple[Place, Expr]:
        """(where a row's outputs are, whether they exist)"""
        (run, z, tile), (plane, column) = first, digits(row, (self.high, self.wide))
        z, tile, exists = bind(z + plane), bind(tile + column), True
        if self.tiles.planes % self.high:
            exists = conjunction(exists, z < self.tiles.planes)
        if self.tiles.plane % self.wide:
            exists = conjunction(exists, tile < self.tiles.plane)
        return self.tiles.place(run, z, tile), exists

    def operand(self, first: Where, row: Expr) -> tuple[Place, Expr, Expr]:
        """(where what a row reads is, whether its plane is on the volume, whether its tile is one
        of the plane's)"""
        (run, z, tile), (plane, column) = first, digits(row, (self.read // self.wide, self.wide))
        tile, on = bind(tile + column), True
        is_tile = tile < self.tiles.plane if self.tiles.plane % self.wide else True
        if self.depth:
            z = bind(z + plane - self.depth.before)
            on = bind(tirx.all(z >= 0, z < self.depth.size))
        return self.tiles.place(run, z, tile), on, is_tile

    def reached(self, first: Where, row: Expr, rows: int) -> tuple[Expr, Expr]:
        """The first tap in depth that any of some rows from `row` on needs, a multiple of `rows`,
        and the last but one."""
        if not self.depth:
            return 0, 1
        planes = 1 if self.wide % rows == 0 else 1 + ceildiv(rows - 1, self.wide)
        plane = bind(first[1] + row // self.wide)
        return self.depth.reached(self.depth.taps(0), plane, planes)

    def met(self, first: Where, tap: Expr) -> tuple[Expr, Expr]:
        """The first row whose output is on the volume by a tap in depth, and the last but one."""
        if not self.depth:
            return 0, T.min(int64(self.size), int64(self.tiles.plane - first[2]))
        _, z, _ = first
        ahead = bind(self.depth.before - tap * self.depth.dilation - z)
        low = bind(T.max(int64(ahead), 0))
        high = T.min(int64(ahead + self.depth.size), int64(self.high))
        high = T.max(T.min(high, int64(self.tiles.planes - z)), low)
        return bind(low * self.wide), bind(high * self.wide)
