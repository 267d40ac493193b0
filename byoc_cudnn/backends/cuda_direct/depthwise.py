"""Depthwise convolutions: which kernels there are, for what, and how long they should take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...decision import YES, Decision, no
from .family import Family, Numbers

MOST_TAPS = 31  # along an axis
MOST_UNROLLED = 7  # the same, of kernels that hold their filters in registers

# An H200, as our kernels see it.
_BANDWIDTH = 3.9e6  # bytes per microsecond
_SMS = 132
_ISSUED = _SMS * 128 * 1.75e3  # instructions of threads per microsecond
_REGISTERS, _MOST_REGISTERS = 65536, 215
_THREADS = 128
_SHARED, _MOST_SHARED = 227 << 10, 48 << 10  # bytes of an SM, and of a block
_LAUNCH = 3.0  # microseconds


def _is_depthwise(problem: ConvProblem, epilogue: str) -> Decision:
    if problem.groups != problem.c:
        return no(f"groups={problem.groups} of C={problem.c}: not depthwise")
    if max(problem.r, problem.s) > MOST_TAPS:
        return no(f"a kernel of {problem.r}x{problem.s}; there are up to {MOST_TAPS} along an axis")
    return YES


def _in_registers(problem: ConvProblem, epilogue: str) -> Decision:
    if not (decision := _is_depthwise(problem, epilogue)):
        return decision
    if problem.data_layout != "NHWC" or problem.k != problem.c:
        return no("channels that do not come last, or several filters for each")
    if max(problem.r, problem.s) > MOST_UNROLLED or max(problem.dilation) > 1:
        return no(f"a kernel beyond {MOST_UNROLLED} taps along an axis, or dilation")
    if max(problem.strides) > 4:
        return no(f"strides={problem.strides}: there are up to 4")
    return YES


def _forward(problem: ConvProblem, epilogue: str) -> Decision:
    if problem.kind is ConvKind.WGRAD:
        return no("a weight's gradient")
    return _in_registers(problem, epilogue)


def _backward(problem: ConvProblem, epilogue: str) -> Decision:
    if problem.kind is not ConvKind.WGRAD:
        return no("not a weight's gradient")
    return _in_registers(problem, epilogue)


@dataclass(frozen=True)
class Strip:
    """How a thread slides: V channels, `across` results of a row (of dgrad: blocks of pixels of a
    stride); at most `threads` in a block, `fit` blocks on an SM.  `ahead`: steps in shared memory.
    """

    problem: ConvProblem
    vector: int
    across: int
    threads: int
    fit: int
    ahead: int = 0

    @property
    def _scatters(self) -> bool:
        return self.problem.kind is ConvKind.DGRAD and self.problem.strides != (1, 1)

    @property
    def columns(self) -> int:
        """Packs of a row that are read."""
        p = self.problem
        if self._scatters:
            return self.across + -(-p.s // p.strides[1])
        stride = 1 if p.kind is ConvKind.DGRAD else p.strides[1]
        return (self.across - 1) * stride + p.s

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        p, v = self.problem, self.vector
        raw = -(-v * DTYPE_BYTES[p.data_dtype] // 4)
        under_way = -(-p.r // (1 if p.kind is ConvKind.DGRAD else p.strides[0]))
        results = self.across * (p.strides[1] if self._scatters else 1)
        taps, held = p.r * p.s * v, 1 if self.ahead else 2
        if p.kind is ConvKind.WGRAD:
            own = raw * (held * self.columns + (held - 1) * self.across)
            return 34 + taps + under_way * self.across * v + own
        return 34 + taps + under_way * results * v + held * raw * self.columns

    @property
    def shared(self) -> int:
        """Bytes of a block."""
        p, size = self.problem, DTYPE_BYTES[self.problem.data_dtype]
        rows = p.strides[0] * self.columns if p.kind is not ConvKind.DGRAD else self.columns
        packs = self.ahead * (rows + (self.across if p.kind is ConvKind.WGRAD else 0))
        taps = p.s * 4 * self.threads if p.kind is ConvKind.WGRAD else p.r * p.s * 64 * size
        return self.vector * (packs * size * self.threads + taps)

    @property
    def strips(self) -> int:
        p = self.problem
        if p.kind is ConvKind.DGRAD:
            return int(-(-p.w // (self.across * p.strides[1])))
        return int(-(-p.q // self.across))

    def chunk(self, rows: int, ramp: int) -> int:
        """`chunk_of` of `depthwise_tiles.h`."""
        p, best, least = self.problem, rows, 0.0
        for cut in range(1, rows + 1):
            chunk = -(-rows // cut)
            threads = p.n * self.strips * -(-rows // chunk) * (p.c // self.vector)
            waves = threads / (_SMS * self.fit * self.threads)
            cost = (chunk + ramp + 3) * (1 if waves < 1 else waves + 0.3)
            if cut == 1 or cost < 0.99 * least:
                least, best = cost, chunk
        return best

    def us(self) -> float:
        """Expected: the slower of memory and instructions, and what the last blocks leave idle."""
        p, v = self.problem, self.vector
        rows = -(-p.h // p.strides[0]) if p.kind is ConvKind.DGRAD else p.p
        ramp = -(-p.r // p.strides[0]) - 1
        down = self.chunk(rows, ramp)
        threads = p.n * self.strips * -(-rows // down) * p.c / v
        steps = down + ramp
        pixels = p.strides[0] if p.kind is not ConvKind.DGRAD else 1  # rows read in a step
        fma = p.r * p.s * self.across * v
        loaded = pixels * self.columns + (self.across if p.kind is ConvKind.WGRAD else 0)
        each = steps * (fma + loaded * (3 + v) + self.across * (v + 4) + 12)
        each += 3 * p.r * p.s * v + 60
        waves = threads / (_SMS * self.fit * self.threads)
        tail = 1.0 / waves if waves < 1 else 1 + 0.25 / waves
        instructions = 1.15 * threads * each / _ISSUED
        memory = p.bytes * (1 + 0.3 * (steps / down - 1)) / _BANDWIDTH
        busy = max(instructions, memory) + 0.25 * min(instructions, memory)
        busy *= 0.999 if self.ahead else 1  # measured the same
        return _LAUNCH * (2 if p.kind is ConvKind.WGRAD else 1) + busy * tail


def _strips(problem: ConvProblem) -> Iterator[Strip]:
    size = DTYPE_BYTES[problem.data_dtype]
    for vector in (8, 4, 2, 1):
        if problem.c % vector or vector * size > 16:
            continue
        for across in (1, 2, 3, 4, 7):
            for ahead in (0, 4):
                strip = Strip(problem, vector, across, _THREADS, 1, ahead)
                if (ahead and vector * size < 4) or strip.shared > _MOST_SHARED:
                    continue
                if strip.registers <= _MOST_REGISTERS and strip.columns <= 32:
                    fit = _REGISTERS // (_THREADS * ((strip.registers + 7) // 8 * 8))
                    yield replace(strip, fit=max(1, min(fit, _SHARED // (strip.shared + 1024))))


def _of_strip(strip: Strip) -> Numbers:
    p = strip.problem
    head: Numbers = (strip.vector, p.r, p.s, *p.strides)
    if p.kind is ConvKind.DGRAD:
        head += (p.padding[0] % p.strides[0], p.padding[1] % p.strides[1])
    return (*head, strip.across, strip.threads, strip.fit, strip.ahead)


def _rows(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> list[Numbers]:
    return [_of_strip(strip) for strip in _strips(problem)]


def _rows_us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    return Strip(problem, numbers[0], *numbers[-4:]).us()


def _rows_alignment(problem: ConvProblem, numbers: Numbers) -> int:
    result = problem.dtype(problem.roles[2])
    return min(16, numbers[0] * max(DTYPE_BYTES[d] for d in (problem.data_dtype, result)))


def _any(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> list[Numbers]:
    return [()]


def _any_us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Each element is read again for each tap, by single loads."""
    loads = problem.flop / 2
    slow = 8.0 if problem.kind is ConvKind.WGRAD else 1.0
    return _LAUNCH + slow * loads / 1.2e6 + problem.bytes / _BANDWIDTH


FAMILIES = (
    Family(
        "depthwise_rows", ("depthwise_tiles.h", "depthwise_rows.h"), _forward, _rows, _rows_us,
        _rows_alignment,
    ),
    Family(
        "depthwise_sums", ("depthwise_tiles.h", "depthwise_sums.h"), _backward, _rows, _rows_us,
        _rows_alignment,
    ),
    Family(
        "depthwise_any", ("depthwise_any.h",), _is_depthwise, _any, _any_us,
        lambda problem, numbers: DTYPE_BYTES[problem.data_dtype],
    ),
)  # fmt: skip
