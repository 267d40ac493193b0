"""CUTLASS kernels as values: what is chosen for a problem, named so that the name says it all.

A kernel is a specialization of CUTLASS's templates.  Many problems share one: sizes are arguments,
and only what a template fixes is here.  `Kernel.parse` reads back what `Kernel.name` wrote, so a
generated source tells by its text alone which objects have to be built for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from relay_wgrad.dtypes import HALVES
from relay_wgrad.problem import DTYPE_BYTES, SHORT, ConvKind, ConvProblem

from .check import EPILOGUE_STEPS, EPILOGUES, Options, has_hopper, of_group, too_large
from .hopper import hopper_algorithm

VECTOR = 16  # bytes of a memory access at most
SMALLEST_ASYNC = 4  # bytes: `cp.async`, which a pipeline of more than two stages needs, has no less
MOST_TAPS = 32  # along an axis: an optimized iterator keeps a bit for each

# What multiplies: half and tf32 on tensor cores, f32 not.
MATH_BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "f32": 4}


@dataclass(frozen=True)
class Tile:
    """Sizes of a block's tile of the GEMM, of a warp's, and the pipeline's depth.

    In Hopper's kernels, of two groups of warps, `warp_m` and `warp_n` are a group's part: half of a
    tile, or the whole of one where the groups take tiles in turn.  `cluster` are the blocks along M
    and N that share what they load, `taps` those of the filter that a wgrad's columns are of.
    """

    m: int
    n: int
    k: int
    warp_m: int
    warp_n: int
    stages: int
    cluster: tuple[int, int] = (1, 1)
    taps: int = 1

    @property
    def threads(self) -> int:
        return 32 * (self.m // self.warp_m) * (self.n // self.warp_n)


# By math, from large to small.  A stage is (m + n) * k elements of shared memory; what fits is
# bounded by the smallest of the GPUs: 64 KiB of sm_75 (two stages), 99 KiB of sm_86.
_HALF = (
    Tile(256, 128, 32, 64, 64, 3), Tile(128, 256, 32, 64, 64, 3), Tile(128, 128, 32, 64, 64, 4),
    Tile(128, 64, 32, 64, 32, 4), Tile(64, 128, 32, 32, 64, 4), Tile(64, 64, 32, 32, 32, 5),
)  # fmt: skip
_TF32 = (
    Tile(256, 128, 16, 64, 64, 3), Tile(128, 256, 16, 64, 64, 3), Tile(128, 128, 16, 64, 64, 4),
    Tile(128, 64, 16, 64, 32, 4), Tile(64, 128, 16, 32, 64, 4), Tile(64, 64, 16, 32, 32, 5),
)  # fmt: skip
_SIMT = (
    Tile(128, 128, 8, 32, 64, 4), Tile(128, 64, 8, 64, 32, 4), Tile(64, 128, 8, 32, 64, 4),
    Tile(64, 64, 8, 32, 64, 4),
)  # fmt: skip
TILES = {"f16": _HALF, "bf16": _HALF, "tf32": _TF32, "f32": _SIMT}
# Of Hopper's own instructions, in half precision: one block on an SM, 227 KiB.  First those whose
# groups of warps share a tile, then those that take tiles in turn.
HOPPER_TILES = (
    Tile(128, 256, 64, 64, 256, 4, (2, 1)), Tile(256, 128, 64, 128, 128, 4, (2, 1)),
    Tile(128, 256, 64, 64, 256, 4), Tile(256, 128, 64, 128, 128, 4), Tile(256, 64, 64, 128, 64, 5),
    Tile(128, 128, 64, 128, 128, 6, (2, 1)), Tile(128, 128, 64, 128, 128, 6),
    Tile(128, 64, 64, 128, 64, 8), Tile(64, 256, 64, 64, 256, 5), Tile(64, 128, 64, 64, 128, 8),
    Tile(64, 64, 64, 64, 64, 8),
)  # fmt: skip
# Of a wgrad with few channels and several taps: what is loaded of the gradient serves more of them.
TAP_TILES = (
    Tile(128, 256, 64, 64, 256, 4, taps=2), Tile(128, 192, 64, 64, 192, 5, taps=3),
    Tile(64, 256, 64, 64, 256, 5, taps=2), Tile(64, 192, 64, 64, 192, 6, taps=3),
)  # fmt: skip

OPTIMIZED, ANALYTIC, FEW_CHANNELS = "optimized", "analytic", "few_channels"


@dataclass(frozen=True)
class Kernel:
    """One specialization.

    `sm` is the generation whose instructions it uses: 75 or 80, which newer GPUs run too, or with
    an algorithm of `HOPPER` 90, which no other runs.
    `accesses` are the elements of a memory access to the first operand, the second and the result.
    `strided` tells dgrad's two kernels apart.  A wgrad's result is float32: its sums' slices, which
    a second kernel adds and rounds.
    """

    kind: ConvKind
    math: str
    result: str  # f16, bf16 or f32
    tile: Tile
    algorithm: str
    strided: bool
    accesses: tuple[int, int, int]
    epilogue: tuple[str, ...]
    sm: int

    @property
    def name(self) -> str:
        """An identifier of C, unlike any other kernel's."""
        t = self.tile
        extent = "" if t.cluster == (1, 1) else "c{}x{}".format(*t.cluster)
        extent += "" if t.taps == 1 else f"t{t.taps}"
        parts = [
            self.kind.value, self.math, self.result,
            self.algorithm.replace("_", ""), "strided" if self.strided else "unit",
            f"{t.m}x{t.n}x{t.k}{extent}", f"{t.warp_m}x{t.warp_n}", f"s{t.stages}",
            "a" + "x".join(map(str, self.accesses)), "".join(self.epilogue) or "plain",
            f"sm{self.sm}",
        ]  # fmt: skip
        return PREFIX + "_".join(parts)

    @staticmethod
    def parse(name: str) -> Kernel:
        """The kernel of a name.  Raises ValueError for anything else."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise ValueError(f"not the name of a CUTLASS kernel: {name!r}")
        g = match.groupdict()
        m, n, k, warp_m, warp_n, stages = (
            int(g[x]) for x in ("m", "n", "k", "warp_m", "warp_n", "stages")
        )
        cluster = (int(g["cluster_m"]), int(g["cluster_n"])) if g["cluster_m"] else (1, 1)
        tile = Tile(m, n, k, warp_m, warp_n, stages, cluster, int(g["taps"] or 1))
        a, b, c = (int(x) for x in g["accesses"].split("x"))
        few = g["algorithm"].replace("fewchannels", FEW_CHANNELS)
        epilogue = tuple(() if g["epilogue"] == "plain" else _PART.findall(g["epilogue"]))
        return Kernel(
            ConvKind(g["kind"]), g["math"], g["result"], tile, few, g["strided"] == "strided",
            (a, b, c), epilogue, int(g["sm"]),
        )  # fmt: skip

    @property
    def shared_bytes(self) -> int:
        """Of shared memory that a block's pipeline takes."""
        t = self.tile
        return t.stages * (t.m + t.n) * t.k * MATH_BYTES[self.math]


PREFIX = "relay_wgrad_cutlass_"
_WRITTEN = dict.fromkeys(
    e.replace("_", "") or "plain" for names in EPILOGUES.values() for e in names
)
_NAME = re.compile(
    PREFIX + r"(?P<kind>fprop|dgrad|wgrad)_(?P<math>f16|bf16|tf32|f32)_(?P<result>f16|bf16|f32)"
    r"_(?P<algorithm>optimized|analytic|fewchannels|wgmma|gemm)_(?P<strided>strided|unit)"
    r"_(?P<m>\d{1,3})x(?P<n>\d{1,3})x(?P<k>\d{1,3})(c(?P<cluster_m>[12])x(?P<cluster_n>[12]))?"
    r"(t(?P<taps>[2-9]))?"
    r"_(?P<warp_m>\d{1,3})x(?P<warp_n>\d{1,3})"
    r"_s(?P<stages>\d)_a(?P<accesses>\dx\dx\d)_"
    rf"(?P<epilogue>{'|'.join(_WRITTEN)})"
    r"_sm(?P<sm>75|80|90)"
)
_PART = re.compile("|".join(sorted(EPILOGUE_STEPS, key=len, reverse=True)))


def access(channels: int, element_bytes: int) -> int:
    """Elements of the widest memory access that divides every row of `channels` elements."""
    width = VECTOR // element_bytes
    while channels % width:
        width //= 2
    return width


def math_of(problem: ConvProblem, options: Options) -> str:
    """What multiplies the operands of a problem."""
    dtype = problem.dtype(problem.roles[0])
    if dtype in HALVES:
        return SHORT[dtype]
    return "tf32" if options.allow_tf32 and options.archs[0] >= 80 else "f32"


def candidates(
    problem: ConvProblem, epilogue: tuple[str, ...], options: Options
) -> tuple[Kernel, ...]:
    """The kernels for a problem that `backends.cutlass.check` accepts: one for each tile.

    Of several GPUs in the options, the oldest counts.
    """
    hopper = hopper_algorithm(problem) if has_hopper(options) else None
    large = too_large(problem)
    problem = of_group(problem)
    kind, math = problem.kind, math_of(problem, options)
    wgrad = kind is ConvKind.WGRAD
    result = "f32" if wgrad else SHORT[problem.dtype(problem.roles[2])]
    accesses = _accesses(
        problem, math, 4 if wgrad else DTYPE_BYTES[problem.dtype(problem.roles[2])]
    )
    sm = 75 if options.archs[0] < 80 else 80
    shallow = sm == 75 or min(accesses[:2]) * MATH_BYTES[math] < SMALLEST_ASYNC
    strided = kind is ConvKind.DGRAD and max(problem.strides) > 1
    algorithm = _algorithm(problem, math)
    found = [] if large else [
        Kernel(
            kind, math, result,
            Tile(t.m, t.n, t.k, t.warp_m, t.warp_n, 2 if shallow else t.stages),
            algorithm, strided, accesses, epilogue, sm,
        )
        for t in TILES[math]
    ]  # fmt: skip
    if hopper is not None:
        several = kind is ConvKind.WGRAD and problem.r * problem.s > 1
        found += [
            Kernel(kind, math, result, tile, hopper, strided, accesses, epilogue, 90)
            for tile in HOPPER_TILES + (TAP_TILES if several else ())
        ]
    return tuple(found)


def _accesses(problem: ConvProblem, math: str, result_bytes: int) -> tuple[int, int, int]:
    if math == "f32":
        return (1, 1, 1)  # without tensor cores, kernels read and write single elements
    c, k = problem.c, problem.k
    channels = {
        ConvKind.FPROP: (c, c, k), ConvKind.DGRAD: (k, c, c), ConvKind.WGRAD: (k, c, c),
    }[problem.kind]  # fmt: skip
    size = MATH_BYTES[math]
    return (
        access(channels[0], size),
        access(channels[1], size),
        access(channels[2], result_bytes),
    )


def _algorithm(problem: ConvProblem, math: str) -> str:
    if problem.kind is ConvKind.WGRAD:
        return OPTIMIZED
    # A tile's depth runs over the channels of one tap; where a few channels would leave most of it
    # empty, this iterator lets it run over the taps too.
    few = problem.c < VECTOR // MATH_BYTES[math]
    if problem.kind is ConvKind.FPROP and few and math != "f32":
        return FEW_CHANNELS
    return ANALYTIC if max(problem.r, problem.s) > MOST_TAPS else OPTIMIZED
