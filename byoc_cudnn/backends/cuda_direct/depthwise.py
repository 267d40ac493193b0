"""Depthwise convolutions: which kernels there are, for what, and how long they should take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from relay_wgrad.problem import DTYPE_BYTES, ConvKind, ConvProblem

from ...decision import YES, Decision, no
from .depthwise_variants import FACTORS, THREADS, Form
from .family import Family, Numbers
from .launch_time import BANDWIDTH, ITEM, MULTIPROCESSORS, REGISTERS, SHARED, STAGED, TAP, Work

MOST_TAPS = 31  # along an axis
MOST_UNROLLED = 7  # the same, of kernels that hold their filters in registers

_MOST_REGISTERS, _MOST_SHARED = 215, 48 << 10  # of a thread; bytes of a block
_MOST_PACKS = 64  # of a block
_BEGIN, _ALONE = 3, 1.3  # as in `chunk_of`


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


def _together(problem: ConvProblem) -> int:
    """Rows of a step, each asked for one before."""
    return 1 if problem.kind is ConvKind.DGRAD else problem.strides[0]


def _size(problem: ConvProblem) -> int:
    return DTYPE_BYTES[problem.dtype(problem.roles[0])]


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
    def form(self) -> Form:
        return self.vector, self.across, self.threads, self.ahead

    @property
    def size(self) -> int:
        """Bytes of an operand's element."""
        return _size(self.problem)

    @property
    def columns(self) -> int:
        """Packs of a row that are read."""
        p = self.problem
        if self._scatters:
            return self.across + -(-p.s // p.strides[1])
        stride = 1 if p.kind is ConvKind.DGRAD else p.strides[1]
        return (self.across - 1) * stride + p.s

    @property
    def _results(self) -> int:
        """Packs that a step has done."""
        p = self.problem
        return self.across * (p.strides[0] * p.strides[1] if self._scatters else 1)

    @property
    def registers(self) -> int:
        """Of a thread, roughly."""
        p, v = self.problem, self.vector
        raw = 0 if self.ahead else -(-v * self.size // 4)
        under_way = -(-p.r // (1 if p.kind is ConvKind.DGRAD else p.strides[0]))
        results = self.across * (p.strides[1] if self._scatters else 1)
        columns = self.columns + (self.across if p.kind is ConvKind.WGRAD else 0)
        return 28 + v * (p.r * p.s + under_way * results) + raw * columns

    @property
    def issued(self) -> float:
        """Instructions of a step, as nvcc's code has them."""
        p, v, size = self.problem, self.vector, self.size
        widened = v if size < 4 else 0  # by an instruction each; narrowed by one for two
        rows = _together(p)
        pack = widened + (4.5 if self.ahead else 2 + max(1, v * size // 8) + 3 * (rows > 1))
        packs = self.columns * rows
        all_ = p.r * p.s * self.across * v + packs * pack + (25 if self.ahead else 12)
        if p.kind is ConvKind.WGRAD:  # gradients of rows before are moved
            return all_ + self.across * (pack + v * (-(-p.r // p.strides[0]) - 1))
        return all_ + self._results * (widened / 2 + 2) + 15 * self._scatters

    @property
    def shared(self) -> int:
        """Bytes of a block."""
        p, size = self.problem, self.size
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

    def _load(self, blocks: int) -> float:
        """`load_of` of `depthwise_tiles.h`."""
        full, left = divmod(-(-blocks // MULTIPROCESSORS), self.fit)
        return full * max(self.fit, _ALONE) + (max(left, _ALONE) if left else 0)

    def chunk(self, rows: int, ramp: int) -> int:
        """`chunk_of` of `depthwise_tiles.h`."""
        p, best, least = self.problem, rows, 0.0
        for cut in range(1, rows + 1):
            chunk = -(-rows // cut)
            threads = p.n * self.strips * -(-rows // chunk) * (p.c // self.vector)
            cost = (chunk + ramp + _BEGIN) * self._load(-(-threads // self.threads))
            if cut == 1 or cost < 0.99 * least:
                least, best = cost, chunk
        return best

    @cached_property
    def cover(self) -> tuple[int, int, int, float]:
        """`cover_of` of `depthwise_tiles.h`: packs and lanes of a block, groups, use of sectors."""
        packs, best, most = self.problem.c // self.vector, (1, 1, 1, 1.0), 0.0
        pack, pixel = self.vector * self.size, self.problem.c * self.size
        for side in range(1, min(packs, _MOST_PACKS, self.threads) + 1):
            groups, lanes = -(-packs // side), self.threads // side
            threads = lanes * side
            used = packs / (groups * side) * threads / (32 * -(-threads // 32))
            used *= 0.75 + 0.25 * threads / self.threads
            row = side * pack
            apart = groups > 1 and (row % 32 or pixel % 32)
            whole = row / (32 * -(-row // 32) + 24) if apart else 1.0
            score = used * min(1, 0.5 + side / 32) * whole
            if score > most * 1.001:
                most, best = score, (side, lanes, groups, whole)
        return best

    def work(self) -> Work:
        """What a launch does."""
        p, v = self.problem, self.vector
        wgrad, dgrad = p.kind is ConvKind.WGRAD, p.kind is ConvKind.DGRAD
        rows = -(-p.h // p.strides[0]) if dgrad else p.p
        ramp = -(-p.r // p.strides[0]) - 1
        chunk = self.chunk(rows, ramp)
        side, lanes, groups, whole = self.cover
        lines = -(-p.n * self.strips * -(-rows // chunk) // lanes)
        turns = -(-lines // max(1, MULTIPROCESSORS * self.fit // groups)) if wgrad else 1
        pieces = side * v * p.r * p.s * self.size / 16 / (side * lanes)
        begin = turns * ITEM + TAP * p.r * p.s * v if wgrad else STAGED * -(-pieces // 1)
        return Work(
            blocks=-(-lines // turns) * groups, warps=-(-side * lanes // 32), resident=self.fit,
            steps=turns * (chunk + ramp), issued=self.issued,
            waits=1 / (self.ahead - 1) if self.ahead else float(_together(p)),
            begin=begin, bytes=p.bytes / whole,
            access=v * self.size, requests=self._requests(side), second=wgrad,
        )  # fmt: skip

    def _requests(self, side: int) -> float:
        """Copies of several rows in a step go by lines; each item of a warp has its own."""
        p, beside = self.problem, min(side, 32)
        if not self.ahead or p.kind is ConvKind.DGRAD or p.strides[0] == 1:
            return 0.0
        packs = p.strides[0] * self.columns + (self.across if p.kind is ConvKind.WGRAD else 0)
        return packs * 32 / beside * max(1.0, beside * self.vector * self.size / 128)


def _factors(problem: ConvProblem) -> Mapping[Form, float]:
    """Of the forms that were measured for a problem's taps and strides."""
    p = problem
    if p.r != p.s or p.strides[0] != p.strides[1]:
        return {}
    return FACTORS.get((p.kind, p.r, p.strides[0]), {})


def _forms(problem: ConvProblem) -> Iterator[Form]:
    """Those that are considered, whether they fit or not."""
    steps = (0, 4) if _together(problem) == 1 else (0, 2, 3, 4)
    for vector in (8, 4, 2, 1):
        for across in (1, 2) if vector == 8 else (1, 2, 3, 4, 7):  # wider ones seldom won
            for ahead in steps:
                yield vector, across, THREADS, ahead
    yield from _factors(problem)


def _strips(problem: ConvProblem) -> Iterator[Strip]:
    for vector, across, threads, ahead in dict.fromkeys(_forms(problem)):
        strip, access = Strip(problem, vector, across, threads, 1, ahead), vector * _size(problem)
        if problem.c % vector or access > 16 or strip.shared > _MOST_SHARED:
            continue
        if ahead and access < 4:
            continue
        if strip.registers <= _MOST_REGISTERS and strip.columns <= 32:
            fit = REGISTERS // (threads * ((strip.registers + 7) // 8 * 8))
            yield replace(strip, fit=max(1, min(fit, SHARED // (strip.shared + 1024))))


def _of_strip(strip: Strip) -> Numbers:
    p = strip.problem
    head: Numbers = (strip.vector, p.c, p.r, p.s, *p.strides)
    if p.kind is ConvKind.DGRAD:
        head += (p.padding[0] % p.strides[0], p.padding[1] % p.strides[1])
    return (*head, strip.across, strip.threads, strip.fit, strip.ahead)


def _rows(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> list[Numbers]:
    return [_of_strip(strip) for strip in _strips(problem)]


def strip_of(problem: ConvProblem, numbers: Numbers) -> Strip:
    """Of the numbers of a kernel that slides."""
    return Strip(problem, numbers[0], *numbers[-4:])


def _rows_us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    strip = strip_of(problem, numbers)
    return strip.work().us() * _factors(problem).get(strip.form, 1.0)


def _rows_alignment(problem: ConvProblem, numbers: Numbers) -> int:
    result = DTYPE_BYTES[problem.dtype(problem.roles[2])]
    return min(16, numbers[0] * max(_size(problem), result))


def _any(problem: ConvProblem, epilogue: tuple[str, ...], arch: int) -> list[Numbers]:
    return [()]


def _any_us(problem: ConvProblem, numbers: Numbers, arch: int) -> float:
    """Each element is read again for each tap, by single loads."""
    loads = problem.flop / 2
    slow = 8.0 if problem.kind is ConvKind.WGRAD else 1.0
    return 4 + slow * loads / 1.2e6 + problem.bytes / BANDWIDTH


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
        lambda problem, numbers: _size(problem),
    ),
)  # fmt: skip
