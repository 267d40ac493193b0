"""Which kernel computes a problem on a CPU: one ordered table, the first rule that applies.

A rule has a name, which reports print, the reason that goes with it, and what writes it.
What the written loops then do with registers and caches is the kernel's own affair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relay_wgrad.problem import ConvKind, ConvProblem

from .depthwise import cache_lines as depthwise_lines
from .depthwise import kernels as depthwise_kernels
from .direct import affine, outside, patches
from .emitters.memory import Memory
from .machine import Machine
from .matrix import affine as matrix
from .matrix import wgrad as matrix_wgrad
from .wgrad import outside as wgrad_outside
from .wgrad import packed, unpacked
from .winograd import algorithm, weights
from .winograd import kernels as winograd_kernels
from .winograd import wgrad as winograd_wgrad

Applies = Callable[[ConvProblem, Machine], bool]


@dataclass(frozen=True)
class Rule:
    """`applies(problem, machine)`; `write(problem, machine, memory)` writes the kernel."""

    name: str
    reason: str
    applies: Applies
    write: Callable[[ConvProblem, Machine, Memory], None]
    reads: str = ""  # the dtype that operands are read in, if not the sums'
    of_volumes: bool = False  # whether `applies` is asked of volumes as they are, too


def _depthwise_wgrad(problem: ConvProblem, m: Machine) -> bool:
    return bool(problem.is_depthwise) and problem.kind is ConvKind.WGRAD


def _lines(problem: ConvProblem, m: Machine) -> bool:
    return _depthwise_wgrad(problem, m) and depthwise_lines.pays(problem, m)


def _winograd(problem: ConvProblem, m: Machine) -> bool:
    own = winograd_wgrad if problem.kind is ConvKind.WGRAD else weights
    in_tasks = algorithm.applies(problem) and own.pays(problem, m)
    return m.allows_winograd and algorithm.pays(problem, m, in_tasks)


def _winograd_wgrad(problem: ConvProblem, m: Machine) -> bool:
    return problem.kind is ConvKind.WGRAD and _winograd(problem, m)


def _winograd_tasks(problem: ConvProblem, m: Machine) -> bool:
    return _winograd_wgrad(problem, m) and winograd_wgrad.pays(problem, m)


def _weights(problem: ConvProblem, m: Machine) -> bool:
    return _winograd(problem, m) and weights.pays(problem, m)


def _packed(problem: ConvProblem, m: Machine) -> bool:
    return problem.kind is ConvKind.WGRAD and packed.pays(problem, m)


def _is_wgrad(problem: ConvProblem, m: Machine) -> bool:
    return problem.kind is ConvKind.WGRAD


def _tiles(problem: ConvProblem, m: Machine) -> bool:
    return m.has_tiles and matrix.applies(problem)


def _pairs(problem: ConvProblem, m: Machine) -> bool:
    return m.has_bfloat16 and matrix.applies(problem)


def _of_wgrad(applies: Applies) -> Applies:
    return lambda problem, m: problem.kind is ConvKind.WGRAD and applies(problem, m)


def _pointwise(problem: ConvProblem, m: Machine) -> bool:
    return problem.r == problem.s == 1


RULES = (
    *(
        Rule(name + suffix, reason, applies, write, "bfloat16")
        for name, has, reason in (
            ("tiles", _tiles, "bfloat16 on AMX's tiles, with float32 sums"),
            ("pairs", _pairs, "bfloat16 by AVX512_BF16's products of pairs, with float32 sums"),
        )
        for suffix, applies, write in (
            (" wgrad", _of_wgrad(has), matrix_wgrad.write), ("", has, matrix.write),
        )
    ),
    Rule(
        "depthwise lines", "one channel per group: blocks of pixels with all channels, as they lie"
        " in memory", _lines, depthwise_kernels.write_lines,
    ),
    Rule(
        "depthwise sums", "one channel per group: its taps' sums wait in registers",
        _depthwise_wgrad, depthwise_kernels.write_sums,
    ),
    Rule(
        "depthwise", "one channel per group: channels fill the vectors",
        lambda problem, m: bool(problem.is_depthwise), depthwise_kernels.write_rows,
    ),
    Rule(
        "Winograd wgrad in tasks", "3x3 of stride 1, few weights: each task transforms its own"
        " tiles, and has its own sums", _winograd_tasks, winograd_wgrad.write,
    ),
    Rule(
        "Winograd wgrad", "3x3 of stride 1 with enough channels: 36 products for 144",
        _winograd_wgrad, winograd_kernels.write_wgrad, of_volumes=True,
    ),
    Rule(
        "Winograd weights", "3x3 of stride 1, few pixels and many weights: each task transforms its"
        " own weights", _weights, lambda *given: weights.Kernel(*given).write(), of_volumes=True,
    ),
    Rule(
        "Winograd", "3x3 of stride 1 with enough channels: 36 products for 144",
        _winograd, winograd_kernels.write_affine, of_volumes=True,
    ),
    Rule(
        "wgrad of pixels", "1x1 with channels outside: pixels fill the vectors, nothing is moved",
        wgrad_outside.pays, wgrad_outside.write,
    ),
    Rule(
        "packed wgrad", "1x1, or few registers, or strides with many channels: a product of panels"
        " of both operands", _packed, packed.write,
    ),
    Rule("direct wgrad", "sums over pixels wait in registers", _is_wgrad, unpacked.write),
    Rule(
        "product of patches", "windows side by side with channels outside: pixels fill the vectors,"
        " nothing is transposed", patches.pays, patches.write, of_volumes=True,
    ),
    Rule(
        "product of pixels", "1x1 with channels outside: pixels fill the vectors, nothing is"
        " transposed", outside.pays, outside.write,
    ),
    Rule("product", "1x1: a matrix product of pixels and channels", _pointwise, affine.write),
    Rule(
        "direct", "sums over taps and channels wait in registers", lambda *_: True, affine.write
    ),
)  # fmt: skip


def choose(problem: ConvProblem, m: Machine) -> Rule:
    """The rule for a valid problem of static sizes (the batch excepted), of two dimensions."""
    return next(rule for rule in RULES if rule.applies(problem, m))


def choose_volume(problem: ConvProblem, m: Machine) -> Rule | None:
    """The rule for a volume as it is; None if its depth is to become channels, images or taps."""
    rules = (rule for rule in RULES if rule.of_volumes)
    return next((rule for rule in rules if rule.applies(problem, m)), None)
