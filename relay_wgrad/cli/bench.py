"""`python -m relay_wgrad bench`: this package's CPU kernels on a model's convolutions, timed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

import numpy as np
import tvm

from .. import output, registry
from ..display import Display, columns, duration, milliseconds, print_whole, short, warn
from ..operands import poisoned, random_operands
from ..ops.view import family_def, problem_of
from ..problem import ConvKind, ConvProblem
from ..timing import shortest
from ..training.step import ADJOINT
from . import arguments
from .emit import problem_argument

MODEL = "resnet50"
EPILOG = """\
GFLOP/s count a multiply and an add for each tap.  The floor is the time at which this machine's own
multiply-adds in registers, or its copy through memory, would be the limit; both are measured first.
A kernel can be below it: Winograd's algorithm multiplies less, and small tensors stay in caches.
Exit codes: 0 done; 1 the model cannot be differentiated; 2 wrong arguments; 130 interrupted.
In a checkout of this project `python -m benchmarks.cpu` compares with PyTorch.

examples:
  python -m relay_wgrad bench resnet50 --batch 8 --layout NHWC
  python -m relay_wgrad bench squeezenet --kinds wgrad,dgrad --json times.json
  python -m relay_wgrad bench --problem "wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1"
"""


def add_parser(commands: Any) -> None:
    """Adds `bench` to the subparsers of the command line."""
    parser = commands.add_parser(
        "bench",
        help="time the CPU kernels of a model's convolutions against this machine's limits",
        description=(
            "Compiles a kernel for each distinct convolution of a model's training graph, by\n"
            f"default of {MODEL}'s, or for given problems, and times each alone on random operands."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser, model=MODEL)
    parser.set_defaults(model=None)  # to tell it from one that is given beside --problem
    parser.add_argument("--problem", type=problem_argument, action="append", metavar="LINE",
                        help="time this problem, in quotes, instead of a model's; may be repeated;"
                             " `emit --help` says how it is written")  # fmt: skip
    kinds = [kind.value for kind in ConvKind]
    parser.add_argument("--kinds", type=arguments.choices(*kinds), default=",".join(kinds),
                        help="which of them, joined by commas")  # fmt: skip
    parser.add_argument("--rounds", type=arguments.positive, default=5,
                        help="runs of each kernel, at least, of which the shortest counts;"
                             " small kernels run for a tenth of a second")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    if args.model is not None and args.problem:
        print("bench: give a model, or problems with --problem", file=sys.stderr)
        return 2
    output.check_all({"--json": args.json}, {"MODEL": args.model})
    registry.register()
    from legalize.cpu import configure_threads, host_target
    from legalize.cpu.ceilings import ceilings

    display = Display(args.quiet)
    threads, target = configure_threads(), host_target()
    with display.progress:
        with display.part("measuring the machine"):
            limits = ceilings(target, threads)
        name, problems = _problems(args, display)
        rows = []
        with display.part("compiling and timing", len(problems)) as advance:
            for problem, count in problems.items():
                rows.append(_row(problem, count, args.rounds, target, limits))
                advance()
    figures = {"arguments": arguments.vars_of(args), "threads": threads, "target": str(target),
               "gflops": limits.flops / 1e9, "copy_gbytes": limits.bytes / 1e9,
               "rows": rows}  # fmt: skip
    _print(display, name, figures)
    warn(max((row["scatter"] for row in rows), default=1.0))
    if args.json:
        output.write_json(args.json, figures, default=str)
    return 0


def _problems(args: argparse.Namespace, display: Display) -> tuple[str, Counter[ConvProblem]]:
    """What to time, and how often a step has it."""
    if args.problem:
        return "given problems", Counter(args.problem)
    args.model = args.model or MODEL
    with display.part("importing"):
        graph = arguments.graph_of(args)
    with display.part("differentiating"):
        function = arguments.step_of(args, graph)[ADJOINT]
    calls = [b.value for block in function.body.blocks for b in block.bindings]
    problems = [problem_of(call) for call in calls if family_def(call) is not None]
    return graph.name, Counter(p for p in problems if p.kind.value in args.kinds)


def _row(problem: ConvProblem, count: int, rounds: int, target: Any, limits: Any) -> dict[str, Any]:
    from legalize.cpu import prim_func

    kernel = tvm.compile(prim_func(problem, target), target=target)["main"]
    operands = [tvm.runtime.tensor(x) for x in random_operands(problem, np.random.default_rng(0))]
    out = tvm.runtime.tensor(poisoned(problem))
    timing = shortest(lambda: kernel(*operands, out), rounds)
    if not np.isfinite(out.numpy().astype("float32")).all():
        raise RuntimeError(f"the kernel of {problem} gave values that are not finite")
    return {"problem": problem.repro(), "count": count, "seconds": timing.seconds,
            "scatter": timing.scatter, "flop": problem.flop,
            "floor_seconds": limits.floor(problem)}  # fmt: skip


def _print(display: Display, name: str, figures: dict[str, Any]) -> None:
    table = columns(f"{name}: each distinct convolution", "kind", "problem", "layout", "dtype",
                    "×", "ms", "GFLOP/s", "floor ms", "of floor", left=4)  # fmt: skip
    total = floor = flop = 0.0
    for row in figures["rows"]:
        problem, count, seconds = ConvProblem.parse(row["problem"]), row["count"], row["seconds"]
        total, floor = total + count * seconds, floor + count * row["floor_seconds"]
        flop += count * row["flop"]
        table.add_row(
            problem.kind.value, short(problem), f"{problem.data_layout}/{problem.kernel_layout}",
            problem.data_dtype, str(count), milliseconds(seconds),
            f"{row['flop'] / seconds / 1e9:.0f}", milliseconds(row["floor_seconds"]),
            f"{row['floor_seconds'] / seconds:.0%}",
        )  # fmt: skip
    print_whole(table, display.out)
    display.out.print(
        f"{figures['threads']} threads; multiply-adds in registers {figures['gflops']:.0f}"
        f" GFLOP/s, a copy {figures['copy_gbytes']:.1f} GB/s"
    )
    if total:
        display.out.print(
            f"all convolutions: {duration(total)}, {flop / total / 1e9:.0f} GFLOP/s,"
            f" {floor / total:.0%} of the floor"
        )
