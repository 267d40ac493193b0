"""3x3 convolutions of stride 1 by Winograd's algorithm F(4x4, 3x3), for sums in float32.

Along one axis, a tile of 6 inputs x gives 4 outputs y under 3 taps w.  The trilinear form of the
tile is a sum of 6 products instead of 12:

    sum over j, r of  y[j] * x[j + r] * w[r]  =  sum over e of  (A y)[e] * (B x)[e] * (G w)[e]

A and G evaluate polynomials at 5 points and at infinity, B interpolates.  Its partial derivatives
are fprop, A' ((G w) * (B x)), and wgrad, G' ((A y) * (B x)); dgrad is an fprop whose weights are
reversed.  In two dimensions each matrix works on rows and columns: 36 products per tile for 144,
and over channels and tiles these are 36 matrix products, one for each pair of points.

The points 0, ±2/3, ±3/2 were chosen for accuracy: relative to the result's norm the rounding error
is about twice a direct sum's; with the usual 0, ±1, ±2 it would be twice that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tvm import tirx
from tvm.tirx.script import builder as T

from relay_wgrad.problem import ConvKind, ConvProblem

from ..emitters.loops import Expr, bind, conjunction, splat, vector, when, zero
from ..emitters.memory import Image, Panels
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


def applies(problem: ConvProblem) -> bool:
    """Whether the algebra is for this problem; groups and symbolic sizes are left out."""
    return bool(
        problem.is_static
        and problem.accum_dtype == "float32"
        and problem.groups == 1
        and (problem.r, problem.s) == (TAPS, TAPS)
        and problem.strides == problem.dilation == (1, 1)
    )


def pays(problem: ConvProblem, m: Machine, in_tasks: bool) -> bool:
    """Whether the algorithm applies, and should be clearly faster than the direct one.

    in_tasks : whether tasks transform their own weights, so that those stay in their caches.
    """
    lanes = m.lanes("float32")
    if not applies(problem) or min(problem.c, problem.k) < lanes:
        return False
    product, total = problem.c * problem.k, problem.c + problem.k
    if problem.kind is ConvKind.WGRAD and product < m.cores * lanes * lanes:
        return False  # the direct kernel splits the sum over pixels, for more cores
    out = (problem.h, problem.w) if problem.kind is ConvKind.DGRAD else (problem.p, problem.q)
    tiles = problem.n * -(-out[0] // TILE) * -(-out[1] // TILE)
    cycles = tiles * (POINTS * product + _TILE_CYCLES * total)
    is_far = problem.kind is not ConvKind.WGRAD and not (in_tasks or m.has_few_registers)
    is_far = is_far and 4 * POINTS * product > m.l2_bytes * m.cores
    cycles += (_FAR_WEIGHT_CYCLES if is_far else _WEIGHT_CYCLES[problem.kind]) * product
    return bool(cycles < _SHARE * TAPS * TAPS * problem.n * out[0] * out[1] * product)


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


def store_points(
    matrix: Matrix, values: Sequence[Sequence[Expr]], target: Expr, place: Expr, step: int,
    lanes: int,
) -> None:  # fmt: skip
    """Evaluates vectors at all points, each of which has its place, `step` after the last one's."""
    for i, line in enumerate(twice(spread, matrix, values, lanes)):
        for j, value in enumerate(line):
            T.buffer_store(target, value, [vector(place + (i * SIZE + j) * step, lanes)])


def load_points(
    matrix: Matrix, source: Expr, place: Expr, step: int, lanes: int
) -> list[list[Expr]]:
    """What the products at all points, stored as by `store_points`, add up to."""
    values = [
        [bind(source[vector(place + (i * SIZE + j) * step, lanes)]) for j in range(SIZE)]
        for i in range(SIZE)
    ]
    return twice(gather, matrix, values, lanes)


def load_taps(weight: Expr, panels: Panels, place: Expr, lanes: int) -> list[list[Expr]]:
    """Vectors of all taps."""
    return [
        [
            bind(weight[vector(place + r * panels.r_step + s * panels.s_step, lanes)])
            for s in range(TAPS)
        ]
        for r in range(TAPS)
    ]


# ---- tiles -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tiles:
    """The tiles of all images: `high` x `wide` of each, counted in rows."""

    images: int
    height: int  # pixels of the outputs
    width: int

    @property
    def high(self) -> int:
        return -(-self.height // TILE)

    @property
    def wide(self) -> int:
        return -(-self.width // TILE)

    @property
    def count(self) -> int:
        return self.images * self.high * self.wide

    def place(self, tile: Expr) -> tuple[Expr, Expr, Expr]:
        """(image, first row, first column) of a tile's outputs."""
        row = bind(tile // self.wide)
        column = bind(tile % self.wide * TILE)
        return bind(row // self.high), bind(row % self.high * TILE), column


def load(
    image: Image, n: Expr, channel: Expr, first: tuple[Expr, Expr], size: tuple[int, int],
    count: int, lanes: int,
) -> list[list[Expr]]:  # fmt: skip
    """`count` x `count` pixels' vectors of channels from `first` on, zeros outside of `size`."""

    def read(row: Expr, column: Expr) -> Expr:
        return image.buffer[vector(image.at(n, row, column, 0) + channel, lanes)]

    rows = [_inside(first[0], i, size[0]) for i in range(count)]
    columns = [_inside(first[1], j, size[1]) for j in range(count)]
    return [
        [
            bind(
                T.if_then_else(
                    conjunction(rows[i], columns[j]), read(first[0] + i, first[1] + j),
                    zero("float32", lanes),
                )
            )
            for j in range(count)
        ]
        for i in range(count)
    ]  # fmt: skip


def _inside(first: Expr, step: int, size: int) -> Expr:
    return bind(tirx.all(first + step >= 0, first + step < size))


def store(
    image: Image, place: tuple[Expr, Expr, Expr], channel: Expr, tiles: Tiles,
    values: list[list[Expr]], lanes: int,
) -> None:  # fmt: skip
    """Writes the outputs of a tile at `place` that exist."""
    n, *first = place
    for i, row in enumerate(values):
        exists_row = first[0] + i < tiles.height if tiles.height % TILE else True
        with when(exists_row):
            for j, value in enumerate(row):
                exists = first[1] + j < tiles.width if tiles.width % TILE else True
                with when(exists):
                    there = image.at(n, first[0] + i, first[1] + j, 0) + channel
                    T.buffer_store(image.buffer, value, [vector(there, lanes)])
