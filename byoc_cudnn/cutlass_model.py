"""Which CUTLASS kernel for a problem, and into how many slices its sum is cut, without a device.

A model of three facts, in clock cycles of a streaming multiprocessor (SM):

1. A block's time is the larger of its arithmetic's and its loads': with tiles of M x N, a step of
   the sum costs 2*M*N*K FLOP and (M+N)*K elements from the L2 cache.  Large tiles load less.
2. Blocks run in waves: SMs times the blocks that fit each of them.  A last wave that is not full
   takes as long as its busiest SM.
3. A sum that is cut runs in more blocks, and pays for writing and reading its slices.

The constants are rounded figures of NVIDIA's data sheets; the fixed costs are guesses of the order
of what is known of such kernels.  Nothing is fitted to measurements.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from relay_wgrad.problem import ConvKind, ConvProblem

from .backends.cutlass import MAX_SLICES, Options
from .cutlass_kernels import FEW_CHANNELS, MATH_BYTES, VECTOR, WGMMA, Kernel, candidates

ASSUMED = {"n": 32, "h": 56, "w": 56}  # for sizes that are known at run time only
MOST_WORKSPACE = 64 << 20  # bytes of a weight gradient's slices
_FIXED = 2000  # cycles to fill a block's pipeline and to write its result
_LAUNCH = 5000  # cycles of one more kernel
_L2 = 64  # bytes per cycle and SM
_MEMORY = 16  # the same, of the device's memory
_REGISTERS = 65536  # of an SM
_ADDRESSING = 110  # registers of a thread besides its sums, as ptxas reported for some kernels


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
        {"f16": 2560, "bf16": 2560, "tf32": 1280, "f32": 256, WGMMA: 4096},
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
    """The kernel that the model expects to be fastest, for the GPU `arch` (`options.arch`).

    Symbolic sizes count as `ASSUMED`.  Equal expectations go to the larger tile.
    """
    machine = machine_of(options.arch if arch is None else arch)
    sized = _sized(problem)
    best: Choice | None = None
    for kernel in candidates(problem, epilogue, options):
        if kernel.shared_bytes > machine.shared_bytes:
            continue
        for slices in slice_counts(sized, kernel, options):
            cycles = predict(sized, kernel, slices, machine)
            if best is None or cycles < best.cycles:
                best = Choice(kernel, slices, cycles)
    if best is None:
        raise ValueError(f"no CUTLASS kernel for arch={arch}: {problem}")
    return best


def _sized(problem: ConvProblem) -> ConvProblem:
    missing = {n: v for n, v in ASSUMED.items() if not isinstance(getattr(problem, n), int)}
    if "h" in missing:  # at least one pixel must come out
        missing["h"] = max(missing["h"], problem.dilation[0] * problem.r)
    if "w" in missing:
        missing["w"] = max(missing["w"], problem.dilation[1] * problem.s)
    changes: dict[str, Any] = dict(missing)
    return replace(problem, **changes)


def slice_counts(problem: ConvProblem, kernel: Kernel, options: Options) -> list[int]:
    """Into how many slices the sum may be cut: 1, or what the workspace holds."""
    if problem.kind is not ConvKind.WGRAD:
        return [1]
    sums = 4 * problem.k * problem.c * problem.r * problem.s
    most = max(1, min(MAX_SLICES, MOST_WORKSPACE // sums))
    if options.split_k is not None:
        return [min(options.split_k, most)]
    # A slice should have a few steps, or it does nothing but begin and end.
    steps = -(-problem.gemm[2] // kernel.tile.k)
    most = min(most, max(1, steps // 4))
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts


def predict(problem: ConvProblem, kernel: Kernel, slices: int, machine: Machine) -> float:
    """Cycles that the model expects."""
    tile, size = kernel.tile, MATH_BYTES[kernel.math]
    m, n, _ = problem.gemm
    blocks = -(-m // tile.m) * -(-n // tile.n) * slices
    steps = -(-_steps(problem, kernel) // slices)
    units = WGMMA if kernel.algorithm == WGMMA else kernel.math
    arithmetic = 2 * tile.m * tile.n * tile.k / machine.flop[units]
    # Narrow accesses cost as many instructions as wide ones.
    narrow = VECTOR / (size * min(kernel.accesses[:2])) if kernel.math != "f32" else 1.0
    loads = (tile.m + tile.n) * tile.k * size * min(narrow, 4.0) / _L2
    work = steps * max(arithmetic, loads)
    fit = max(1, min(
        machine.shared_bytes // (kernel.shared_bytes + 1024),
        machine.threads // tile.threads,
        _REGISTERS // (tile.threads * min(255, tile.m * tile.n // tile.threads + _ADDRESSING)),
    ))  # fmt: skip
    wave = machine.sms * fit
    full, rest = divmod(blocks, wave)
    # Blocks that share an SM share its units; filling one's pipeline hides behind the other's work.
    cycles = full * (fit * work + _FIXED)
    if rest:
        cycles += -(-rest // machine.sms) * work + _FIXED
    if problem.kind is ConvKind.WGRAD and (slices > 1 or problem.weight_dtype != "float32"):
        moved = 4 * (2 * slices + 1) * problem.k * problem.c * problem.r * problem.s
        cycles += _LAUNCH + moved / (_MEMORY * machine.sms)
    return cycles


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
