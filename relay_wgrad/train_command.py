"""`python -m relay_wgrad train`: from a model to a training step and its report."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import tvm

from . import arguments, registry, state
from .display import Display, columns, print_whole, short
from .frontend import TrainingGraph
from .problem import ConvProblem
from .training import Trainer

# A kernel agrees with its second opinion when the relative error is below this.  Both sum N·P·Q or
# C·R·S products in the result's own precision, in different orders: the error grows like the root
# of the number of terms times the unit roundoff (6e-8), which for a million terms is 6e-5.
# Half-precision operands are the same for both; a half-precision result is rounded once, by half a
# unit in the last place, and the stock composite may round in between.
AGREES = {"float32": 1e-4, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}


EPILOG = """\
Exit codes: 0 the loss came down and every kernel agrees; 1 it did not, or the network cannot be
trained; 2 wrong arguments; 130 interrupted.

examples:
  python -m relay_wgrad train resnet50
  python -m relay_wgrad train squeezenet --dtype bf16 --layout NHWC --checkpoint auto
  python -m relay_wgrad train mine.onnx --batch 8 --optimizer adam --json out.json
  python -m relay_wgrad train mine.onnx --steps 100 --no-check --save state.safetensors
  python -m relay_wgrad train mine.onnx --steps 100 --no-check --resume state.safetensors
"""


def add_parser(commands: Any) -> None:
    """Adds `train` to the subparsers of the command line."""
    parser = commands.add_parser(
        "train",
        help="train a network on the CPU and show what became of its convolutions",
        description=(
            "Imports a network, with seeded random weights where it is an ONNX file, appends a\n"
            "loss, differentiates, compiles for this CPU and trains some steps on one fixed\n"
            "batch.  Then shows what became of each convolution, and checks every kernel against\n"
            "the historical composite compiled by TVM's own rules."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser, model="resnet50")
    parser.add_argument("--steps", type=arguments.positive, default=5, help="training steps")
    parser.add_argument("--lr", type=arguments.rate, default=None,
                        help="learning rate; by default 0.001, for adam 0.0001, and a tenth of"
                             " that for networks without batch normalization")  # fmt: skip
    parser.add_argument("--optimizer", choices=("sgd", "momentum", "adam"), default="sgd",
                        help="momentum is sgd with a momentum of 0.9")  # fmt: skip
    parser.add_argument("--loss-scale", type=arguments.loss_scale, default=None,
                        help="a number or 'dynamic'; 1024 with f16, else none")  # fmt: skip
    parser.add_argument("--save", metavar="FILE",
                        help="write parameters and optimizer state to a .safetensors file after"
                             " the last step")  # fmt: skip
    parser.add_argument("--resume", metavar="FILE",
                        help="start from what --save wrote: the losses go on as if there had been"
                             " no interruption")  # fmt: skip
    parser.add_argument("--no-check", action="store_true",
                        help="leave out the comparison with the stock composite")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def run(args: argparse.Namespace) -> int:
    """Trains; 1 where the loss did not come down or a kernel is wrong."""
    if args.json:
        open(args.json, "a", encoding="utf-8").close()  # better to know before than after
    if args.save and not os.access(Path(args.save).parent, os.W_OK):
        raise FileNotFoundError(f"--save {args.save}: no such folder, or not to be written")
    if args.resume and args.lr is None:
        args.lr = float(state.read(args.resume)[0]["lr"])
    figures, ok = train(args)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    return 0 if ok else 1


def train(args: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Runs the command; returns all figures, and whether the run went well."""
    registry.register()
    from legalize.cpu import configure_threads, host_target

    report = Display(args.quiet)
    threads, target = configure_threads(), host_target()
    figures: dict[str, Any] = {"arguments": arguments.vars_of(args), "tvm": tvm.__version__,
                               "threads": threads, "target": str(target)}  # fmt: skip
    with report.progress:
        with report.part("importing"):
            graph = arguments.graph_of(args)
        start = time.perf_counter()
        with report.parts() as begin:
            trainer = Trainer(
                graph, target, optimizer=args.optimizer, lr=args.lr, dtype=args.dtype,
                loss_scale=args.loss_scale, layout=args.layout, progress=begin,
            )  # fmt: skip
        figures.update(batch=graph.batch, compile_seconds=time.perf_counter() - start)
        if args.resume:
            state.restore(trainer, args.resume)
        ok = _steps(args, report, graph, trainer, figures)
        with report.part("timing every kernel"):
            kernels = trainer.profile(graph.random_batch(args.seed))
        figures["kernel_seconds"] = kernels
        opinions = {} if args.no_check else _check(args, report, trainer, target)
    _print(report, graph, trainer, figures, opinions)
    figures["convolutions"] = [_row(conv, opinions) for conv in trainer.compiled.convolutions]
    wrong = [o for o in opinions.values() if not o.error <= AGREES[args.dtype]]
    if wrong:
        worst = max(wrong, key=lambda o: o.error)
        report.out.print(f"[red]{len(wrong)} kernels disagree, the worst: {worst.problem}[/]")
    return figures, ok and not wrong


def _steps(
    args: argparse.Namespace,
    report: Display,
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
    if args.save:
        state.save(trainer, args.save)
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


def _check(args: Any, report: Display, trainer: Trainer, target: Any) -> dict[str, Any]:
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
    display: Display,
    graph: TrainingGraph,
    trainer: Trainer,
    figures: dict[str, Any],
    opinions: dict[str, Any],
) -> None:
    """The table of convolutions, then the totals."""
    out = display.out
    convolutions = trainer.compiled.convolutions
    table = columns(f"{graph.name}: what became of each convolution", "op", "×", "problem",
                    "layout", "lowering", "ms", "GFLOP/s", "stock ms", "speed-up", "rel. error",
                    left=5)  # fmt: skip
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
                 f"{seconds * 1e3:.2f}", f"{problem.flop / seconds / 1e9:.0f}"]  # fmt: skip
        if opinion is not None:
            fast_total += seconds * counts[key]
            stock_total += opinion.stock_seconds * counts[key]
            cells += [f"{opinion.stock_seconds * 1e3:.3g}",
                      f"{opinion.stock_seconds / seconds:.3g}×",
                      f"{opinion.error:.1e}"]  # fmt: skip
        table.add_row(*cells)
    print_whole(table, out)
    steps = figures["step_seconds"]
    out.print(
        f"{len(convolutions)} convolutions ({len(seen)} distinct); a training step takes"
        f" {min(steps):.2f} s (batch {graph.batch}, {figures['threads']} threads),"
        f" peak memory of the process while training {figures['peak_bytes'] / 2**20:.0f} MiB,"
        f" intermediate results by plan {figures['planned_bytes'] / 2**20:.1f} MiB"
    )
    before, after = figures["layout_changes_before"], figures["layout_changes"]
    out.print(
        f"{_asked(figures['arguments'])}: {after} layout changes in the step"
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


def _asked(arguments: dict[str, Any]) -> str:
    """What was asked for, in the command line's own words."""
    words = [arguments["dtype"], arguments["layout"], f"{arguments['optimizer']}"]
    if arguments["checkpoint"] is not None:
        words.append("checkpointed")
    return ", ".join(words)


def _reset_peak() -> None:
    """Starts a new high-water mark of this process's memory, where the system lets us."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak_bytes() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        found = re.search(r"VmHWM:\s+(\d+) kB", file.read())
    return int(found[1]) * 1024 if found else 0
