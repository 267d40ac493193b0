"""`python -m relay_wgrad bench`: this package's CPU kernels on a model's convolutions, timed."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

import numpy as np
import tvm

from legalize.cpu import prim_func
from legalize.cpu.roofline import ceilings

from .. import output, registry
from ..cores import configure_threads
from ..display import Display, columns, duration, milliseconds, print_whole, short, warn
from ..graph.walk import bindings_of
from ..operands import poisoned, random_operands
from ..ops.call_problem import family_def, problem_of
from ..problem import ConvProblem
from ..timing import shortest
from ..training.devices import cpu_target
from ..training.step import ADJOINT
from . import arguments
from .parsers.bench import MODEL


def run(args: argparse.Namespace) -> int:
    """Prints the table."""
    if args.model is not None and args.problem:
        print("bench: give a model, or problems with --problem", file=sys.stderr)
        return 2
    output.check_all({"--json": args.json}, {"MODEL": args.model})
    registry.register()

    display = Display(args.quiet)
    threads, target = configure_threads(), cpu_target()
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
    calls = [binding.value for binding in bindings_of(function)]
    problems = [problem_of(call) for call in calls if family_def(call) is not None]
    return graph.name, Counter(p for p in problems if p.kind.value in args.kinds)


def _row(problem: ConvProblem, count: int, rounds: int, target: Any, limits: Any) -> dict[str, Any]:
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
