"""What `train` prints: the course of the loss, the table of convolutions, the totals."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

from legalize.sampled import ROWS

from ..display import Display, columns, duration, milliseconds, print_whole, short
from ..frontend import TrainingGraph
from ..problem import ConvProblem
from ..training.step import ADJOINT
from ..training.trainer import Trainer
from ..transform import count_reasons, layout_changes
from ..transform.layout.report import REASONS
from . import arguments

_PARTS = 10  # of the course of the loss, where each step has another batch


class Memory:
    """What training takes: of a GPU all that is in use there, else the process's high-water mark.

    `look` asks; `now` is the last answer, `most` the largest, bytes.
    """

    def __init__(self, of_device: Callable[[], tuple[int, int]] | None) -> None:
        self._of_device = of_device
        self.now = self.most = 0
        if of_device is None:
            reset_peak()

    def look(self) -> None:
        if self._of_device is None:
            self.now = peak_bytes()
        else:
            free, whole = self._of_device()
            self.now = whole - free
        self.most = max(self.most, self.now)


def course(losses: list[float], data: Any) -> str:
    """The losses; of many different batches the means of up to ten parts."""
    if data is None or len(losses) <= _PARTS:
        return "loss: " + " → ".join(f"{x:.4f}" for x in losses)
    size = math.ceil(len(losses) / _PARTS)
    parts = [losses[i : i + size] for i in range(0, len(losses), size)]
    means = " → ".join(f"{math.fsum(part) / len(part):.4f}" for part in parts)
    return f"loss, mean of every {size} steps: {means}"


def row(conv: Any, opinions: dict[str, Any]) -> dict[str, Any]:
    """A convolution as the results file has it."""
    found = {"op": conv.op, "problem": conv.problem, "lowering": conv.source, "reason": conv.reason,
           "kernel": conv.kernel, "seconds": conv.seconds}  # fmt: skip
    opinion = opinions.get(conv.problem)
    if opinion is not None:
        found["error"] = opinion.error
        if not math.isnan(opinion.stock_seconds):
            found.update(alone_seconds=opinion.seconds, stock_seconds=opinion.stock_seconds)
    return found


def print_report(
    display: Display,
    graph: TrainingGraph,
    trainer: Trainer,
    figures: dict[str, Any],
    opinions: dict[str, Any],
) -> None:
    """The table of convolutions, then the totals."""
    out = display.out
    convolutions = trainer.compiled.convolutions
    by_composite = bool(opinions) and figures["arguments"]["against"] == "composite"
    beside = (*(("stock ms", "speed-up") if by_composite else ()),
              *(("rel. error",) if opinions else ()))  # fmt: skip
    table = columns(f"{graph.name}: what became of each convolution", "op", "×", "problem",
                    "layout", "lowering", "ms", "GFLOP/s",
                    *beside, left=5)  # fmt: skip
    counts: dict[tuple[str, str], int] = {}
    for conv in convolutions:
        counts[conv.op, conv.problem] = counts.get((conv.op, conv.problem), 0) + 1
    seen = set()
    fast_total = stock_total = 0.0
    for conv in convolutions:
        key = (conv.op, conv.problem)
        if key in seen:
            continue
        seen.add(key)
        problem, opinion = ConvProblem.parse(conv.problem), opinions.get(conv.problem)
        seconds = conv.seconds or math.nan
        cells = [conv.op, str(counts[key]), short(problem),
                 f"{problem.data_layout}/{problem.kernel_layout}", conv.source,
                 *_speed(problem, seconds)]  # fmt: skip
        if opinion is not None:
            fast_total += seconds * counts[key]
            stock_total += opinion.stock_seconds * counts[key]
            if by_composite:
                cells += [f"{opinion.stock_seconds * 1e3:.3g}",
                          f"{opinion.stock_seconds / seconds:.3g}×"]  # fmt: skip
            cells.append(f"{opinion.error:.1e}")
        table.add_row(*cells)
    print_whole(table, out)
    for source, reason in dict.fromkeys((c.source, c.reason) for c in convolutions):
        out.print(f"{source}: {reason}")
    steps = figures["step_seconds"]
    on_gpu = trainer.place.is_gpu
    where = figures["target"] if on_gpu else f"{figures['threads']} threads"
    memory = "memory in use there" if on_gpu else "peak memory of the process while training"
    takes = f"takes {duration(min(steps))}" if steps else "was too short a run to be timed"
    rate = figures["images_per_second"]
    where = f"{where}, {rate:.3g} images/s" if on_gpu and rate else where
    out.print(
        f"{len(convolutions)} convolutions ({len(seen)} distinct); a training step"
        f" {takes} (batch {graph.batch}, {where}),"
        f" {memory} {figures['peak_bytes'] / 2**20:.0f} MiB,"
        f" intermediate results by plan {figures['planned_bytes'] / 2**20:.1f} MiB"
    )
    out.print(f"{_command_line(figures['arguments'], graph)}: {_layouts(trainer)}")
    share = sum(c.seconds or 0.0 for c in convolutions) / sum(figures["kernel_seconds"].values())
    seconds = figures["compile_seconds"]
    made = f"ready in {seconds:.1f} s, compiled before" if trainer.compiled.was_kept else (
        f"compiled in {seconds:.0f} s"
    )  # fmt: skip
    out.print(f"{made}; convolutions take {share:.0%}")
    if "loss_error" in figures:
        out.print(
            f"second opinion (the same step on this CPU): relative error of the loss"
            f" {figures['loss_error']:.1e}, of all gradients together"
            f" {figures['gradient_error']:.1e} ({figures['gradient_rounding']:.1e} on the CPU alone"
            f" where the images are moved by a rounding of {figures['arithmetic']})"
        )
    if opinions:
        worst = max(o.error for o in opinions.values())
        figures.update(worst_error=worst, fast_seconds=fast_total)
        told = f"largest relative error {worst:.1e}"
        if by_composite:
            figures["stock_seconds"] = stock_total
            out.print(
                f"second opinion (historical composite, TVM's own rules): {told}; all convolutions"
                f" of a step {fast_total:.3g} s against {stock_total:.3g} s,"
                f" {stock_total / fast_total:.3g} times faster"
            )
        else:
            out.print(
                f"second opinion (at most {ROWS} rows of each kernel's result on random operands,"
                f" in float64 by NumPy): {told}"
            )


def _speed(problem: ConvProblem, seconds: float) -> list[str]:
    """Cells of a time and a rate; empty for a kernel that was not timed."""
    if math.isnan(seconds):
        return ["", ""]
    rate = problem.flop / seconds / 1e9
    return [milliseconds(seconds), f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"]


# Where a change of layout is -> how it is said; `REASONS` says more.
_PLACES = {
    "input": "of inputs on their way in",
    "parameter": "of weights on their way in",
    "result": "of gradients and other results on their way out",
    "vector": "that move nothing in memory",
    "reshape": "at the model's own reshapes",
    "transpose": "the model's own transposes",
    "fixed": "at operators that know one layout",
    "between": "between operators",
}


def _layouts(trainer: Trainer) -> str:
    """How many changes of layout a step has, and where: the model's own layout is kept outside."""
    counts = count_reasons(layout_changes(trainer.module[ADJOINT]))
    if not counts:
        return "no layout changes in the step"
    said = [(reason, _PLACES[reason]) for reason in REASONS]
    parts = [f"{counts[reason]} {text}" for reason, text in said if counts[reason]]
    none = "" if counts["between"] else "; none between operators"
    return f"{sum(counts.values())} layout changes in the step: {', '.join(parts)}{none}"


def _command_line(asked: dict[str, Any], graph: TrainingGraph) -> str:
    """What was asked for, in the command line's own words."""
    layout = arguments.layout_of(asked["layout"], graph)
    words = [asked["dtype"], layout, f"{asked['optimizer']}"]
    if asked["checkpoint"] is not None:
        words.append("checkpointed")
    return ", ".join(words)


def reset_peak() -> None:
    """Starts a new high-water mark of this process's memory, where the system lets us."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        found = re.search(r"VmHWM:\s+(\d+) kB", file.read())
    return int(found[1]) * 1024 if found else 0
