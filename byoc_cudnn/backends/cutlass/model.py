"""Which CUTLASS kernel for a problem, and into how many slices its sum is cut, without a device.

A model of four facts, in clock cycles of a streaming multiprocessor (SM):

1. A block's step of the sum takes the largest of its arithmetic (2*M*N*K FLOP), its loads
   ((M+N)*K elements from the L2 cache), and computing the addresses of its memory accesses.  Large
   tiles have fewer of both, and wide accesses are fewer.
2. With few warps on an SM nothing hides what a warp waits for.
3. Blocks run in waves: SMs times the blocks that fit each of them.  A last wave that is not full
   takes as long as its busiest SM.
4. A sum that is cut runs in more blocks, and pays for writing and reading its slices.

FLOP and bytes are rounded figures of NVIDIA's data sheets.  The other constants were fitted to 100
kernels' times on an H200 (ResNet-50's layers, float16, batch 256; docs/howto/cutlass.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...codegen.regions import Region
from ..assumed_sizes import sized
from .check import MAX_SLICES, Options, check, of_group
from .hopper import HOPPER, WGMMA
from .kernels import FEW_CHANNELS, MATH_BYTES, VECTOR, Kernel, candidates, math_of

MOST_WORKSPACE = 64 << 20  # bytes of a weight gradient's slices
_FIXED = 400  # cycles to fill a block's pipeline
_STORE = 0.23  # to write an element of its result
_ACCESS = 0.47  # of a memory access: its address and its predicate
_LATENCY = 0.6  # the same where no other warp hides it
_HIDING = 256  # threads of an SM: two warps for each scheduler, which hide each other's waiting
_ALONE = 1.3  # one block waits at its barriers
_NARROW = 2.5  # times as much for an access of less than a vector
LAUNCH = 5000  # cycles of one more kernel
_L2 = 64  # bytes per cycle and SM
MEMORY = 16  # the same, of the device's memory
_L2_TMA = 42  # bytes per cycle and SM that blocks of Hopper's kernels get
_SHARED = 0.82  # of what it takes to load rows that another block of the cluster gets too
_CLUSTER = 1.07  # blocks of a cluster wait for each other
_FIXED_TILE = 270  # cycles between two tiles
_STORE_HALF, _STORE_F32 = 0.064, 0.21  # to write an element of a tile, of one block
_REGISTERS = 65536  # of an SM
_ADDRESSING = 110  # registers of a thread besides its sums, as ptxas reported for some kernels
_NEAR = 2.5  # times the best expectation: what the model takes to be slower is not tried
_SLICES = 2  # counts of slices to try for a kernel


@dataclass(frozen=True)
class Machine:
    """A GPU, as far as the model knows it.  `flop` are per cycle and SM, by what multiplies."""

    sms: int
    shared_bytes: int  # of an SM
    threads: int  # that an SM holds
    flop: dict[str, int]


# `mma.sync` reaches some six tenths of what wgmma does on sm_90.
MACHINES = {
    75: Machine(40, 64 << 10, 1024, {"f16": 1024, "bf16": 1024, "tf32": 128, "f32": 128}),
    80: Machine(108, 164 << 10, 2048, {"f16": 2048, "bf16": 2048, "tf32": 1024, "f32": 128}),
    86: Machine(84, 100 << 10, 1536, {"f16": 1024, "bf16": 1024, "tf32": 512, "f32": 256}),
    89: Machine(128, 100 << 10, 1536, {"f16": 1024, "bf16": 1024, "tf32": 512, "f32": 256}),
    90: Machine(
        132, 228 << 10, 2048,
        {"f16": 2560, "bf16": 2560, "tf32": 1280, "f32": 256, WGMMA: 3400},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    kernel: Kernel
    slices: int
    cycles: float  # that the model expects


def machine_of(arch: int) -> Machine:
    """The newest known machine that is no newer than `arch`; the oldest for what is older."""
    return MACHINES[max((known for known in MACHINES if known <= arch), default=min(MACHINES))]


def choose(
    problem: ConvProblem, epilogue: tuple[str, ...], options: Options, arch: int | None = None
) -> Choice:
    """The kernel that the model expects to be fastest, for the GPU `arch` (the oldest in
    the options).

    Symbolic sizes count as `assumed_sizes` has them.

    Raises ValueError if there is none, or if `options.kernel` names none of the problem's.
    """
    found = ranked(problem, epilogue, options, arch)
    if not found:
        wanted = f" of the name {options.kernel}" if options.kernel else ""
        raise ValueError(f"no CUTLASS kernel{wanted} for arch={arch}: {problem}")
    return found[0]


def ranked(
    problem: ConvProblem, epilogue: tuple[str, ...], options: Options, arch: int | None = None
) -> list[Choice]:
    """All kernels with all counts of slices, the one that the model expects to be fastest first.

    Of several that wait for memory, the one with the least to do comes first.
    """
    machine = machine_of(options.archs[0] if arch is None else arch)
    known = sized(problem)
    found = [
        Choice(kernel, slices, predict(known, kernel, slices, machine))
        for kernel in candidates(problem, epilogue, options)
        if kernel.shared_bytes <= machine.shared_bytes and options.kernel in (None, kernel.name)
        for slices in slice_counts(known, kernel, options)
    ]
    return sorted(found, key=lambda c: (c.cycles, _busy(known, c.kernel, c.slices, machine)))


def tried(region: Region, arch: int, most: int) -> list[dict[str, Any]]:
    """The kernels that the model ranks highest for a GPU, each with some counts of slices."""
    choices = ranked(region.problem, region.epilogue, Options(**region.options), arch)
    near: list[Choice] = []
    for c in choices:
        same = sum(other.kernel == c.kernel for other in near)
        if c.cycles <= _NEAR * choices[0].cycles and same < _SLICES:
            near.append(c)
    return [{"kernel": c.kernel.name, "split_k": c.slices} for c in near[:most]]


def wider_channels(problem: ConvProblem, options: Options) -> ConvProblem | None:
    """The problem with channels of zeros, where the model expects that to pay; else None.

    The data, the weight and the gradient that get them are copied, and so is a result that loses
    them: bytes that are read and written at the rate of the device's memory.
    """
    width = VECTOR // MATH_BYTES[math_of(problem, options)]
    wide = {name: -(-getattr(problem, name) // width) * width for name in ("c", "k")}
    if problem.groups != 1 or all(getattr(problem, name) == n for name, n in wide.items()):
        return None
    machine = machine_of(options.archs[0])

    def cost(new: ConvProblem) -> float:
        larger, old = sized(new), sized(problem)
        copied = 0
        for role in new.roles:
            if new.shape(role) != problem.shape(role):
                sizes = (math.prod(p.canonical_shape(role)) for p in (larger, old))
                copied += DTYPE_BYTES[new.dtype(role)] * sum(sizes)
        launches = sum(new.shape(role) != problem.shape(role) for role in new.roles)
        cycles = choose(new, (), options).cycles
        return cycles + launches * LAUNCH + copied / (MEMORY * machine.sms)

    some: list[dict[str, Any]] = [{"c": wide["c"]}, {"k": wide["k"]}, dict(wide)]
    tried = [problem, *(replace(problem, **new) for new in some)]
    best = min((p for p in tried if check(p, "", options)), key=cost)
    return None if best == problem else best


def slice_counts(problem: ConvProblem, kernel: Kernel, options: Options) -> list[int]:
    """Into how many slices the sum may be cut: 1, or what the workspace holds."""
    if problem.kind is not ConvKind.WGRAD:
        return [1]
    sums = 4 * problem.k * problem.c * problem.r * problem.s // problem.groups
    problem = of_group(problem)
    most = max(1, min(MAX_SLICES, MOST_WORKSPACE // sums))
    if options.split_k is not None:
        return [min(options.split_k, most)]
    # A slice should have a few steps, or it does nothing but begin and end.
    steps = -(-problem.gemm[2] // kernel.tile.k)
    most = min(most, max(1, steps // 4))
    counts = {1}
    while max(counts) * 2 <= most:
        counts.add(max(counts) * 2)
    if kernel.algorithm in HOPPER:
        tiles = _tiles(problem, kernel)
        resident = MACHINES[90].sms // math.prod(kernel.tile.cluster)
        # Whole waves of blocks that stay, or equal shares of all steps.
        waves = {wave * resident // tiles for wave in range(1, 5)} | {-(-resident // tiles) + 1}
        counts |= {count for count in waves if 1 <= count <= most}
    return sorted(counts)


def shares(tiles: int, steps: int, slices: int, resident: int) -> bool:
    """Whether blocks get equal shares of all steps, instead of slices (`cutlass_hopper.h`)."""
    if slices == 1 or tiles * slices <= resident:
        return False
    return -(-steps * resident // (tiles * steps)) + 1 <= slices


def _tiles(problem: ConvProblem, kernel: Kernel) -> int:
    """Tiles of the result; of clusters of blocks, in Hopper's kernels."""
    m, n, _ = problem.gemm
    tile, taps = kernel.tile, 1
    if problem.kind is ConvKind.WGRAD and kernel.algorithm in HOPPER:
        taps = problem.r * problem.s  # a tile's columns are channels of some taps
        n //= taps
    parts = -(-n // (tile.n // tile.taps)) * taps
    rows, columns = -(-m // tile.m), -(-parts // tile.taps)
    return -(-rows // tile.cluster[0]) * -(-columns // tile.cluster[1])


def predict(problem: ConvProblem, kernel: Kernel, slices: int, machine: Machine) -> float:
    """Cycles that the model expects; the groups' kernels run one after another."""
    floor = _tensor_bytes(problem) / (MEMORY * machine.sms)
    return max(_busy(problem, kernel, slices, machine), floor)


def _tensor_bytes(problem: ConvProblem) -> float:
    """Bytes of the tensors, but for pixels that no tap meets: those are not read."""
    met = 1.0
    if problem.kind is not ConvKind.DGRAD:
        for taps, stride in zip((problem.r, problem.s), problem.strides, strict=True):
            met *= min(1.0, taps / stride)
    data = math.prod(problem.canonical_shape("data")) * DTYPE_BYTES[problem.data_dtype]
    return float(problem.bytes - (1.0 - met) * data)


def _busy(problem: ConvProblem, kernel: Kernel, slices: int, machine: Machine) -> float:
    """The same, if memory were as fast as it need be."""
    groups, problem = problem.groups, of_group(problem)
    cycles = (_stays if kernel.algorithm in HOPPER else _waves)(problem, kernel, slices, machine)
    if problem.kind is ConvKind.WGRAD and (slices > 1 or problem.weight_dtype != "float32"):
        moved = 4 * (2 * slices + 1) * problem.k * problem.c * problem.r * problem.s
        cycles += LAUNCH + moved / (MEMORY * machine.sms)
    return groups * cycles + (groups - 1) * LAUNCH


def _stays(problem: ConvProblem, kernel: Kernel, slices: int, machine: Machine) -> float:
    """Cycles of blocks that stay, one on an SM, and take one tile after another."""
    tile, size = kernel.tile, MATH_BYTES[kernel.math]
    steps = -(-_steps(problem, kernel) // slices)
    arithmetic = 2 * tile.m * tile.n * tile.k / machine.flop[WGMMA]
    along_m, along_n = tile.cluster
    rows = tile.m * (_SHARED if along_n > 1 else 1.0) + tile.n * (_SHARED if along_m > 1 else 1.0)
    whole = _FIXED_TILE + steps * max(arithmetic, rows * tile.k * size / _L2_TMA)
    store = tile.m * tile.n * (_STORE_F32 if kernel.result == "f32" else _STORE_HALF)
    # Groups that take tiles in turn write while the other multiplies.
    tile_cycles = max(whole, store / 2) if tile.warp_m == tile.m else whole + store
    tiles, resident = _tiles(problem, kernel), machine.sms // (along_m * along_n)
    waves: float = -(-tiles * slices // resident)
    if shares(tiles, int(_steps(problem, kernel)), slices, resident):
        # As many steps as in so many waves, in one part more than tiles.
        waves = tiles * slices / resident
        tile_cycles += (_FIXED_TILE + store) / waves
    return waves * tile_cycles * (_CLUSTER if along_m * along_n > 1 else 1.0)


def _waves(problem: ConvProblem, kernel: Kernel, slices: int, machine: Machine) -> float:
    """Cycles of blocks that come in waves, each with one tile."""
    tile = kernel.tile
    blocks = _tiles(problem, kernel) * slices
    steps = -(-_steps(problem, kernel) // slices)
    fit = max(1, min(
        machine.shared_bytes // (kernel.shared_bytes + 1024),
        machine.threads // tile.threads,
        _REGISTERS // (tile.threads * min(255, tile.m * tile.n // tile.threads + _ADDRESSING)),
    ))  # fmt: skip
    fixed = _FIXED + _STORE * tile.m * tile.n
    full, rest = divmod(blocks, machine.sms * fit)
    # Blocks that share an SM share its units.
    cycles = full * (steps * _step(kernel, fit, machine) + fit * fixed)
    if rest:
        together = -(-rest // machine.sms)
        cycles += steps * _step(kernel, together, machine) + together * fixed
    return cycles


def _step(kernel: Kernel, together: int, machine: Machine) -> float:
    """Cycles in which each of `together` blocks on an SM takes one step of its sum."""
    tile, size = kernel.tile, MATH_BYTES[kernel.math]
    arithmetic = 2 * tile.m * tile.n * tile.k / machine.flop[kernel.math]
    loads = (tile.m + tile.n) * tile.k * size / _L2
    accesses = 0.0
    for rows, width in zip((tile.m, tile.n), kernel.accesses[:2], strict=True):
        narrow = kernel.math != "f32" and width * size < VECTOR
        accesses += tile.k * rows / width * (_NARROW if narrow else 1.0)
    busy = together * max(arithmetic, loads, _ACCESS * accesses)
    if together * tile.threads < _HIDING:
        return max(busy, arithmetic + _LATENCY * accesses)
    return busy * (_ALONE if together == 1 else 1.0)


def _steps(problem: ConvProblem, kernel: Kernel) -> float:
    """Steps of depth `tile.k` in a block's whole sum, as the iterators count them."""
    taps = problem.r * problem.s
    if problem.kind is ConvKind.WGRAD or kernel.algorithm == FEW_CHANNELS:
        return int(-(-problem.gemm[2] // kernel.tile.k))
    if problem.kind is ConvKind.FPROP:
        return int(taps * -(-problem.c // kernel.tile.k))
    # A strided dgrad's block sees only the taps that meet its pixels; this is the mean.
    seen = taps / (problem.strides[0] * problem.strides[1])
    return float(seen * -(-problem.k // kernel.tile.k))
