"""`python -m relay_wgrad train`: from a model to a training step and its report."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import onnx
import tvm

from .. import output, registry
from ..display import Display, columns, duration, milliseconds, print_whole, short, warn
from ..frontend import TrainingGraph, to_onnx
from ..frontend.graph import DRAWN
from ..problem import ConvProblem
from ..training import state
from ..training.data import Data
from ..training.step import ADJOINT
from ..training.trainer import Trainer
from ..transform import count_reasons, layout_changes
from . import arguments

# A kernel agrees with its second opinion when the relative error is below this.  Both sum N·P·Q or
# C·R·S products in the result's own precision, in different orders: the error grows like the root
# of the number of terms times the unit roundoff (6e-8), which for a million terms is 6e-5.
# Half-precision operands are the same for both; a half-precision result is rounded once, by half a
# unit in the last place, and the stock composite may round in between.
AGREES = {"float32": 1e-4, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}
_PARTS = 10  # of the course of the loss, where each step has another batch

EPILOG = """\
Exit codes: 0 the loss came down (with --data: stayed finite) and every kernel agrees; 1 it did not,
or the network cannot be trained; 2 wrong arguments; 130 interrupted.

--data takes a file of numpy.savez with the samples along the first axis of each array: the model's
inputs by their names, and `labels` (integers, one for each sample) or, with --loss mse, `target`.

examples:
  python -m relay_wgrad train resnet50
  python -m relay_wgrad train squeezenet --dtype bf16 --checkpoint auto
  python -m relay_wgrad train mine.onnx --batch 8 --optimizer adam --json out.json
  python -m relay_wgrad train mine.onnx --data mine.npz --steps 500 --export trained.onnx
  python -m relay_wgrad train mine.onnx --steps 100 --no-check --save state.safetensors
  python -m relay_wgrad train mine.onnx --steps 100 --no-check --resume state.safetensors
"""


def add_parser(commands: Any) -> None:
    """Adds `train` to the subparsers of the command line."""
    parser = commands.add_parser(
        "train",
        help="train a network on the CPU and show what became of its convolutions",
        description=(
            "Imports a network, appends a loss, differentiates, compiles for this CPU and trains\n"
            "some steps: on one fixed random batch, or with --data on shuffled minibatches.  Then\n"
            "shows what became of each convolution, and checks every kernel against the\n"
            "historical composite compiled by TVM's own rules."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser, model="resnet50")
    parser.set_defaults(layout="NHWC")  # for kernels that work on channels that are last
    parser.add_argument("--weights", choices=("seeded", "initial"), default=None,
                        help="to start from: seeded random ones, or the file's; by default the"
                             " file's if it has any")  # fmt: skip
    parser.add_argument("--data", type=arguments.ending(".npz"), metavar="FILE",
                        help="train on these samples, shuffled by --seed; see below")  # fmt: skip
    parser.add_argument("--steps", type=arguments.positive, default=5, help="training steps")
    parser.add_argument("--lr", type=arguments.rate, default=None,
                        help="learning rate; by default 0.001, for adam 0.0001, and a tenth of"
                             " that for networks without batch normalization")  # fmt: skip
    parser.add_argument("--optimizer", choices=("sgd", "momentum", "adam"), default=None,
                        help="momentum is sgd with a momentum of 0.9; by default sgd, or with"
                             " --resume the saved one")  # fmt: skip
    parser.add_argument("--loss-scale", type=arguments.loss_scale, default=None,
                        help="a number or 'dynamic'; 1024 with f16, else none")  # fmt: skip
    parser.add_argument("--export", type=arguments.ending(".onnx"), metavar="FILE",
                        help="write the model with its trained weights to FILE.onnx")  # fmt: skip
    parser.add_argument("--save", type=arguments.ending(".safetensors"), metavar="FILE",
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
    output.check_all(
        {"--save": args.save, "--export": args.export, "--json": args.json},
        {"MODEL": args.model, "--data": args.data, "--resume": args.resume},
        same={("--save", "--resume")},
    )
    if Path(args.model).suffix == arguments.PT2:
        if args.export:
            raise ValueError(
                f"--export writes ONNX files; the parameters of {args.model} go to --save"
            )
        if args.weights == "seeded":
            raise ValueError(f"--weights seeded is for ONNX files; {args.model} has its own")
    if args.save:
        state.need()
    if args.resume:
        saved = state.header(args.resume)
        args.optimizer = args.optimizer or saved["optimizer"]
        args.lr = args.lr or float(saved["lr"])
    args.optimizer = args.optimizer or "sgd"
    args.weights = args.weights or "auto"
    figures, ok = train(args)
    if args.json:
        output.write_json(args.json, figures)
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
            if args.resume:
                state.check(args.resume, graph, args.optimizer)
            data = Data.load(args.data, graph, args.seed) if args.data else None
            if args.export:
                to_onnx(graph, graph.params, args.model)  # what it refuses, now and not at the end
        report.out.print(_start(args, graph, data), markup=False, soft_wrap=True)
        start = time.perf_counter()
        with report.parts() as begin:
            trainer = Trainer(
                graph, target, optimizer=args.optimizer, lr=args.lr, dtype=args.dtype,
                loss_scale=args.loss_scale, layout=args.layout, seed=args.seed, progress=begin,
            )  # fmt: skip
        figures.update(
            batch=graph.batch, weights=graph.weights, compile_seconds=time.perf_counter() - start
        )
        if args.resume:
            state.restore(trainer, args.resume)
        ok = _steps(args, report, trainer, data, figures)
        with report.part("timing every kernel"):
            kernels = trainer.profile(graph.random_batch(args.seed))
        figures["kernel_seconds"] = kernels
        opinions = {} if args.no_check else _check(args, report, trainer, target)
    _print(report, graph, trainer, figures, opinions)
    warn(trainer.compiled.scatter)
    figures["convolutions"] = [_row(conv, opinions) for conv in trainer.compiled.convolutions]
    wrong = [o for o in opinions.values() if not o.error <= AGREES[args.dtype]]
    if wrong:
        worst = max(wrong, key=lambda o: o.error)
        report.out.print(f"[red]{len(wrong)} kernels disagree, the worst: {worst.problem}[/]")
    return figures, ok and not wrong


def _start(args: argparse.Namespace, graph: TrainingGraph, data: Data | None) -> str:
    """Where weights and samples are from."""
    weights = f"of {args.resume}" if args.resume else "the file's own"
    if not args.resume and graph.weights == "seeded":
        weights = f"random, by seed {args.seed}"
    samples = f"one random batch of {graph.batch}, by seed {args.seed}"
    if data is not None:
        samples = f"{data.samples} of {args.data}, {data.batches} batches of {graph.batch} an epoch"
    return "\n".join([f"weights: {weights}; samples: {samples}", *graph.notes])


def _steps(
    args: argparse.Namespace,
    report: Display,
    trainer: Trainer,
    data: Data | None,
    figures: dict[str, Any],
) -> bool:
    """Trains; whether the loss came down, or with data of the user's own stayed finite."""
    # The first and the last loss have the same masks; each step between draws its own.
    fixed = trainer.graph.random_batch(args.seed)
    drawn = {spec.name for spec in trainer.graph.inputs if spec.kind in DRAWN}
    samples = {name: value for name, value in fixed.items() if name not in drawn}
    losses: list[float] = []
    times = []
    _reset_peak()
    try:
        with report.part("training", args.steps) as advance:
            for _ in range(args.steps):
                batch = samples if losses else fixed
                if data is not None:
                    batch = data.batch(trainer.steps)
                start = time.perf_counter()
                losses.append(trainer.step(batch))
                times.append(time.perf_counter() - start)
                advance()
            trainer.check_finite()
            if data is None:
                losses.append(trainer.loss(fixed))
    finally:
        if losses:
            report.out.print(_course(losses, data))
    if args.save:
        state.save(trainer, args.save)
    if args.export:
        with output.replacing(args.export) as made:
            onnx.save(to_onnx(trainer.graph, trainer.params, args.model), made)
    for path in (args.save, args.export):
        if path and not args.quiet:
            print(f"saved to {path}", file=sys.stderr)
    figures.update(
        losses=losses, step_seconds=times, peak_bytes=_peak_bytes(), skipped=trainer.skipped,
        planned_bytes=trainer.compiled.planned_bytes, learning_rate=trainer.lr,
        layout_changes=trainer.layout_changes[1], layout_changes_before=trainer.layout_changes[0],
    )  # fmt: skip
    finite = all(math.isfinite(x) for x in losses)
    if not finite or (data is None and losses[-1] >= losses[0]):
        report.out.print("[red]the loss did not come down[/]: try a smaller --lr or more --steps")
        return False
    return True


def _course(losses: list[float], data: Data | None) -> str:
    """The losses; of many different batches the means of up to ten parts."""
    if data is None or len(losses) <= _PARTS:
        return "loss: " + " → ".join(f"{x:.4f}" for x in losses)
    size = math.ceil(len(losses) / _PARTS)
    parts = [losses[i : i + size] for i in range(0, len(losses), size)]
    means = " → ".join(f"{math.fsum(part) / len(part):.4f}" for part in parts)
    return f"loss, mean of every {size} steps: {means}"


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
    row = {"op": conv.op, "problem": conv.problem, "lowering": conv.source, "reason": conv.reason,
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
                    "layout", "lowering", "ms", "GFLOP/s",
                    *(("stock ms", "speed-up", "rel. error") if opinions else ()),
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
                 milliseconds(seconds), f"{problem.flop / seconds / 1e9:.0f}"]  # fmt: skip
        if opinion is not None:
            fast_total += seconds * counts[key]
            stock_total += opinion.stock_seconds * counts[key]
            cells += [f"{opinion.stock_seconds * 1e3:.3g}",
                      f"{opinion.stock_seconds / seconds:.3g}×",
                      f"{opinion.error:.1e}"]  # fmt: skip
        table.add_row(*cells)
    print_whole(table, out)
    for source, reason in dict.fromkeys((c.source, c.reason) for c in convolutions):
        out.print(f"{source}: {reason}")
    steps = figures["step_seconds"]
    out.print(
        f"{len(convolutions)} convolutions ({len(seen)} distinct); a training step takes"
        f" {duration(min(steps))} (batch {graph.batch}, {figures['threads']} threads),"
        f" peak memory of the process while training {figures['peak_bytes'] / 2**20:.0f} MiB,"
        f" intermediate results by plan {figures['planned_bytes'] / 2**20:.1f} MiB"
    )
    out.print(f"{_asked(figures['arguments'])}: {_layouts(trainer)}")
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


# Where a change of layout is -> how it is said; `relay_wgrad.transform.REASONS` says more.
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
    parts = [f"{counts[reason]} {text}" for reason, text in _PLACES.items() if counts[reason]]
    none = "" if counts["between"] else "; none between operators"
    return f"{sum(counts.values())} layout changes in the step: {', '.join(parts)}{none}"


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
