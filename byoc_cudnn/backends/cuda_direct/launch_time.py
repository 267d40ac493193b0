"""How long a launch takes on a GPU: what its blocks do, and an H200's constants.

The constants are fitted to the times of depthwise kernels (`gpu_depthwise_*h200.json` of the
benchmarks' results), their errors and the ranking within each problem.
"""

from __future__ import annotations

from dataclasses import dataclass

MULTIPROCESSORS = 132
REGISTERS, SHARED = 65536, 227 << 10  # of a multiprocessor; bytes
CLOCK = 1750.0  # cycles per microsecond
BANDWIDTH = 4.5e6  # bytes per microsecond
STAGED, ITEM, TAP = 34.0, 6400.0, 77.0  # cycles, as `Work.begin` says
LAUNCH, SECOND = 2.9, 1.0  # microseconds
_WIDE, _NARROW = 4.41e6, 1.78  # bytes per microsecond by long accesses; more for short ones
_ISSUE, _ALONE = 0.91, 2.13  # cycles of an instruction, of many warps and of one
_LATENCY = 600.0  # cycles until a row is there
_REQUEST = 7.75  # cycles of a line that is asked for, where `Work.requests` counts them


@dataclass(frozen=True)
class Work:
    """What a launch does.

    blocks, warps : of the launch, and of a block.
    resident : blocks that run at once on a multiprocessor.
    steps, issued : of a thread, and instructions of a step.
    waits : how many times the memory's latency a step takes at least.
    begin : cycles of a block beside its steps: STAGED for each piece of a filter that a thread
        copies, ITEM for each strip after which others follow, TAP for each sum handed on.
    bytes : that are moved, the halves of sectors that are wasted among them.
    access : bytes of a thread's access.
    requests : lines of 128 bytes that a warp asks for in a step, where that is known to hold it up.
    second : whether a second kernel follows.
    """

    blocks: int
    warps: int
    resident: int
    steps: int
    issued: float
    waits: float
    begin: float
    bytes: float
    access: int = 16
    requests: float = 0.0
    second: bool = False

    def us(self) -> float:
        """Microseconds: instructions and memory, which hide each other in part."""
        memory = self.bytes / _WIDE * (1 + _NARROW / self.access)
        asked = self.blocks * self.warps * self.steps * self.requests / MULTIPROCESSORS
        busy = norm(3.06, self._cycles() / CLOCK, memory, _REQUEST * asked / CLOCK)
        return LAUNCH + SECOND * self.second + busy

    def _cycles(self) -> float:
        each = -(-self.blocks // MULTIPROCESSORS)
        rounds, left = divmod(each, self.resident)
        return rounds * self._round(self.resident) + (self._round(left) if left else 0.0)

    def _round(self, blocks: int) -> float:
        """Of so many blocks side by side on a multiprocessor, which has four schedulers."""
        together = _ISSUE * blocks * self.warps / 4 * self.issued
        step = norm(2.0, together, _ALONE * self.issued, _LATENCY * self.waits)
        return self.steps * step + self.begin


def norm(power: float, *values: float) -> float:
    """Between the largest of some times and their sum: how far they go on side by side."""
    return float(sum(value**power for value in values) ** (1 / power))
