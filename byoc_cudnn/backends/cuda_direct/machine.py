"""How long a launch takes on a GPU: what its blocks do, and an H200's constants.

The constants are fitted to the times of 234 depthwise kernels (`gpu_depthwise_h200.json` of the
benchmarks' results), with the registers and the instructions that nvcc gave them.
"""

from __future__ import annotations

from dataclasses import dataclass

MULTIPROCESSORS = 132
REGISTERS, SHARED = 65536, 227 << 10  # of a multiprocessor; bytes
CLOCK = 1750.0  # cycles per microsecond
BANDWIDTH = 4.5e6  # bytes per microsecond
STAGED, ITEM, TAP = 300.0, 3000.0, 45.0  # cycles, as `Work.begin` says
LAUNCH, SECOND = 4.0, 1.5  # microseconds
_ISSUE, _ALONE = 0.92, 1.3  # cycles of an instruction, of many warps and of one
_LATENCY = 600.0  # cycles until a row is there


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
    second: bool = False

    def us(self) -> float:
        """Microseconds: instructions and memory, which hide each other in part."""
        busy = _norm(1.4, self._cycles() / CLOCK, self.bytes / BANDWIDTH)
        return LAUNCH + SECOND * self.second + busy

    def _cycles(self) -> float:
        each = -(-self.blocks // MULTIPROCESSORS)
        rounds, left = divmod(each, self.resident)
        return rounds * self._round(self.resident) + (self._round(left) if left else 0.0)

    def _round(self, blocks: int) -> float:
        """Of so many blocks side by side on a multiprocessor, which has four schedulers."""
        together = _ISSUE * blocks * self.warps / 4 * self.issued
        step = _norm(2.3, together, _ALONE * self.issued, _LATENCY * self.waits)
        return self.steps * step + self.begin


def _norm(power: float, *values: float) -> float:
    return float(sum(value**power for value in values) ** (1 / power))
