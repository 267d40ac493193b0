"""`python -m relay_wgrad train`: from an ONNX file to a training step and its report."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import tvm
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import registry
from .frontend import TrainingGraph, from_onnx
from .problem import ConvProblem
from .training import Trainer

# A kernel agrees with its second opinion when the relative error is below this.  Both sum N·P·Q or
# C·R·S products in the result's own precision, in different orders: the error grows like the root
# of the number of terms times the unit roundoff (6e-8), which for a million terms is 6e-5.
# Half-precision operands are the same for both; a half-precision result is rounded once, by half a
# unit in the last place, and the stock composite may round in between.
AGREES = {"float32": 1e-4, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}


class _Report:
    """Progress on standard error where that is a terminal, results on standard output."""

    def __init__(self, quiet: bool) -> None:
        self.out = Console()
        err = Console(stderr=True)
        self.progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=err,
            disable=quiet or not err.is_terminal,
        )

    @contextlib.contextmanager
    def part(self, what: str, total: int | None = None) -> Iterator[Any]:
        task = self.progress.add_task(what, total=total)
        yield lambda: self.progress.advance(task)
        self.progress.update(task, total=total or 1, completed=total or 1)

    @contextlib.contextmanager
    def parts(self) -> Iterator[Callable[[str], None]]:
        """Gives a function that ends one part and begins the next, named by its argument."""
        with contextlib.ExitStack() as now:

            def begin(what: str) -> None:
                now.close()
                now.enter_context(self.part(what))

            yield begin


def train(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Runs the command; returns all figures, and whether the run went well."""
    registry.register()
    from legalize.cpu import configure_threads, host_target

    report = _Report(args.quiet)
    threads, target = configure_threads(), host_target()
    figures: dict[str, Any] = {"arguments": vars(args), "tvm": tvm.__version__,
                               "threads": threads, "target": str(target)}  # fmt: skip
    with report.progress:
        with report.part("importing"):
            master = "float64" if args.dtype == "float64" else "float32"
            graph = from_onnx(
                args.model, batch=args.batch, image_size=args.image_size, dtype=master,
                bn=args.bn, seed=args.seed, dropout=args.dropout, checkpoint=args.checkpoint,
            )  # fmt: skip
        start = time.perf_counter()
        with report.parts() as begin:
            trainer = Trainer(
                graph, target, optimizer=args.optimizer, lr=args.lr, dtype=args.dtype,
                loss_scale=args.loss_scale, layout=args.layout, progress=begin,
            )  # fmt: skip
        figures["compile_seconds"] = time.perf_counter() - start
        ok = _steps(args, report, graph, trainer, figures)
        with report.part("timing every kernel"):
            kernels = trainer.profile(graph.random_batch(args.seed))
        figures["kernel_seconds"] = kernels
        opinions = {} if args.no_check else _check(args, report, trainer, target)
    _print(report.out, graph, trainer, figures, opinions)
    figures["convolutions"] = [_row(conv, opinions) for conv in trainer.compiled.convolutions]
    wrong = [o for o in opinions.values() if not o.error <= AGREES[args.dtype]]
    if wrong:
        worst = max(wrong, key=lambda o: o.error)
        report.out.print(f"[red]{len(wrong)} kernels disagree, the worst: {worst.problem}[/]")
    return figures, ok and not wrong


def _steps(
    args: argparse.Namespace,
    report: _Report,
    graph: TrainingGraph,
    trainer: Trainer,
    figures: dict[str, Any],
) -> bool:
    """Trains on one fixed batch; whether the loss came down."""
    batch = graph.random_batch(args.seed)
    losses, times = [], []
    _reset_peak()
    with report.part("training", args.steps) as advance:
        for _ in range(args.steps):
            start = time.perf_counter()
            losses.append(trainer.step(batch))
            times.append(time.perf_counter() - start)
            advance()
        losses.append(trainer.loss(batch))
    figures.update(
        losses=losses, step_seconds=times, peak_bytes=_peak_bytes(), skipped=trainer.skipped,
        planned_bytes=trainer.compiled.planned_bytes, learning_rate=trainer.lr,
        layout_changes=trainer.layout_changes[1], layout_changes_before=trainer.layout_changes[0],
    )  # fmt: skip
    report.out.print("loss: " + " → ".join(f"{x:.4f}" for x in losses))
    finite = all(math.isfinite(x) for x in losses)
    if not finite or losses[-1] >= losses[0]:
        report.out.print("[red]the loss did not come down[/]: try a smaller --lr or more --steps")
        return False
    return True


def _check(args: Any, report: _Report, trainer: Trainer, target: Any) -> dict[str, Any]:
    """Every distinct kernel against the stock composite on random operands."""
    from legalize import compare

    distinct = list(dict.fromkeys(c.problem for c in trainer.compiled.convolutions))
    problems = [ConvProblem.parse(text) for text in distinct]
    opinions: dict[str, Any] = {}
    if not problems:
        return opinions
    kernels = {conv.problem: conv.kernel for conv in trainer.compiled.convolutions}
    with report.part("compiling the stock composites"):
        stock = compare.build_stock(problems, target)
    with report.part("second opinion on every kernel", len(problems)) as advance:
        for i, (text, problem) in enumerate(zip(distinct, problems, strict=True)):
            kernel = trainer.compiled.kernel(kernels[text])
            opinions[text] = compare.second_opinion(problem, kernel, stock, i)
            advance()
    return opinions


def _row(conv: Any, opinions: dict[str, Any]) -> dict[str, Any]:
    row = {"op": conv.op, "problem": conv.problem, "lowering": conv.source,
           "kernel": conv.kernel, "seconds": conv.seconds}  # fmt: skip
    opinion = opinions.get(conv.problem)
    if opinion is not None:
        row.update(error=opinion.error, stock_seconds=opinion.stock_seconds,
                   alone_seconds=opinion.seconds)  # fmt: skip
    return row


def _print(
    out: Console,
    graph: TrainingGraph,
    trainer: Trainer,
    figures: dict[str, Any],
    opinions: dict[str, Any],
) -> None:
    """The table of convolutions, then the totals."""
    convolutions = trainer.compiled.convolutions
    table = Table(title=f"{graph.name}: what became of each convolution", title_justify="left")
    for name, justify in (("op", "left"), ("×", "right"), ("problem", "left"), ("layout", "left"),
                          ("lowering", "left"), ("ms", "right"), ("GFLOP/s", "right"),
                          ("stock ms", "right"), ("speed-up", "right"),
                          ("rel. error", "right")):  # fmt: skip
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
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
        cells = [conv.op, str(counts[key]), _short(problem),
                 f"{problem.data_layout}/{problem.kernel_layout}", conv.source,
                 f"{seconds * 1e3:.2f}", f"{problem.flop / seconds / 1e9:.0f}"]  # fmt: skip
        if opinion is not None:
            fast_total += seconds * counts[key]
            stock_total += opinion.stock_seconds * counts[key]
            cells += [f"{opinion.stock_seconds * 1e3:.3g}",
                      f"{opinion.stock_seconds / seconds:.3g}×",
                      f"{opinion.error:.1e}"]  # fmt: skip
        table.add_row(*cells)
    # A table wider than the terminal would be cut: then it gets the width it needs.
    Console(width=max(out.width, 150)).print(table)
    steps = figures["step_seconds"]
    out.print(
        f"{len(convolutions)} convolutions ({len(seen)} distinct); a training step takes"
        f" {min(steps):.2f} s (batch {graph.batch}, {figures['threads']} threads),"
        f" peak memory of the process while training {figures['peak_bytes'] / 2**20:.0f} MiB,"
        f" intermediate results by plan {figures['planned_bytes'] / 2**20:.1f} MiB"
    )
    before, after = figures["layout_changes_before"], figures["layout_changes"]
    out.print(
        f"{args_text(figures['arguments'])}: {after} layout changes in the step"
        + (f", {before} before conversion" if before != after else "")
    )
    share = sum(c.seconds or 0.0 for c in convolutions) / sum(figures["kernel_seconds"].values())
    out.print(f"compiled in {figures['compile_seconds']:.0f} s; convolutions take {share:.0%}")
    if opinions:
        worst = max(o.error for o in opinions.values())
        figures.update(worst_error=worst, fast_seconds=fast_total, stock_seconds=stock_total)
        out.print(
            f"second opinion (historical composite, TVM's own rules): largest relative error"
            f" {worst:.1e}; all convolutions of a step {fast_total:.3g} s against"
            f" {stock_total:.3g} s, {stock_total / fast_total:.3g} times faster"
        )


def args_text(arguments: dict[str, Any]) -> str:
    """What was asked for, in the command line's own words."""
    words = [arguments["dtype"], arguments["layout"], f"{arguments['optimizer']}"]
    if arguments["checkpoint"] is not None:
        words.append("checkpointed")
    return ", ".join(words)


def _short(p: ConvProblem) -> str:
    """`8×64×56×56 → 64 3×3`, with what is not the default."""
    text = f"{p.n}×{p.c}×{p.h}×{p.w} → {p.k} {p.r}×{p.s}"
    if p.strides != (1, 1):
        text += f" s{p.strides[0]}" if len(set(p.strides)) == 1 else f" s{p.strides}"
    if any(p.padding):
        text += f" p{p.padding[0]}" if len(set(p.padding)) == 1 else f" p{p.padding}"
    if p.dilation != (1, 1):
        text += f" d{p.dilation[0]}" if len(set(p.dilation)) == 1 else f" d{p.dilation}"
    return text + (f" g{p.groups}" if p.groups > 1 else "")


def _reset_peak() -> None:
    """Starts a new high-water mark of this process's memory, where the system lets us."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        found = re.search(r"VmHWM:\s+(\d+) kB", file.read())
    return int(found[1]) * 1024 if found else 0
