"""Command line of the fuzzer: `python -m tests.fuzz --help`."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from relay_wgrad.dtypes import FLOATS

from .case import MAX_FLOP, OPS, ORDERS, Case, parse, random_case
from .check import Outcome, Unit, default_target, run_batch

BATCH = 8  # cases compiled into one module


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Random convolution problems and their gradients, against PyTorch in float64.",
        epilog="Exit status: 0 when all cases pass, 1 when one fails, 2 for a wrong command line.",
    )
    parser.add_argument("--count", type=int, default=25, help="problems for each op (default 25)")
    parser.add_argument("--orders", default="1,2", help="of 0, 1, 2 (default 1,2; 1 checks 0 too)")
    parser.add_argument("--ops", default=",".join(OPS), help="default: all")
    parser.add_argument("--dtypes", default=",".join(FLOATS), help="default: all four")
    parser.add_argument("--seed", type=int, default=0, help="names the run's problems (default 0)")
    parser.add_argument("--start", type=int, default=0, help="index of the first problem")
    parser.add_argument("--max-flop", type=float, default=MAX_FLOP, help="of one convolution")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes; 0: in this one"
    )
    parser.add_argument("--batch", type=int, default=BATCH, help="problems compiled together")
    parser.add_argument(
        "--target",
        choices=("host", "generic"),
        default=default_target(),
        help="host: kernels generated for this CPU; generic: the plain expression of each op",
    )
    parser.add_argument("--repro", metavar="LINE", help="run the one case that a failure printed")
    args = parser.parse_args(argv)
    for name, known in (("orders", [str(x) for x in ORDERS]), ("ops", OPS), ("dtypes", FLOATS)):
        values = getattr(args, name).split(",")
        unknown = [x for x in values if x not in known]
        if unknown:
            parser.error(f"--{name}: unknown {', '.join(unknown)}; known: {', '.join(known)}")
        setattr(args, name, values)
    if args.repro is not None:
        try:
            args.repro = parse(args.repro)
        except ValueError as error:
            parser.error(f"--repro: {error}")
    return args


def command(line: str, target: str) -> str:
    """What to paste to run one case alone."""
    extra = "" if target == default_target() else f" --target {target}"
    return f'python -m tests.fuzz{extra} --repro "{line}"'


def run_all(
    batches: Sequence[list[Unit]], jobs: int, target: str
) -> Iterator[tuple[list[Outcome], dict[str, float]]]:
    """Each batch's outcomes, as they come.  Where one kills its process, its units run alone."""
    if jobs < 1:
        yield from (run_batch(batch, target) for batch in batches)
        return
    lost: list[Unit] = []
    with _pool(jobs) as pool:
        waiting = {pool.submit(run_batch, batch, target): batch for batch in batches}
        for future in as_completed(waiting):
            if isinstance(future.exception(), BrokenProcessPool):
                lost += waiting[future]  # perhaps not its fault: the pool breaks as a whole
            else:
                yield future.result()
    yield from (_run_alone(unit, target) for unit in lost)


def _run_alone(unit: Unit, target: str) -> tuple[list[Outcome], dict[str, float]]:
    """One unit in a process of its own."""
    try:
        with _pool(1) as pool:
            return pool.submit(run_batch, [unit], target).result()
    except BrokenProcessPool:
        case, order = unit
        message = "the process died while it compiled or ran this case"
        return [Outcome(case.op, order, case.line(order), failure=message)], {}


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Spawned, not forked: a fork would copy the runtime's thread pool without its threads.
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _batches(cases: Sequence[Case], orders: Sequence[int], size: int) -> list[list[Unit]]:
    return [
        [(case, order) for case in cases[i : i + size] for order in orders]
        for i in range(0, len(cases), size)
    ]


def _report(
    console: Console, outcomes: Sequence[Outcome], times: Counter[str], wall: float
) -> None:
    counts = Table(title="functions checked")
    for column in ("op", "order", "passed", "failed", "symbolic"):
        counts.add_column(column, justify="left" if column == "op" else "right")
    for op in OPS:
        for order in ORDERS:
            found = [x for x in outcomes if (x.op, x.order) == (op, order)]
            if found:
                failed = sum(x.failure is not None for x in found)
                symbolic = sum(x.symbolic for x in found)
                row = (len(found) - failed, failed, symbolic)
                counts.add_row(op, str(order), *(str(x) for x in row))
    console.print(counts)
    lines: list[str] = []
    errors = Table(title="worst error of each dtype")
    for column in ("dtype", "cases", "error", "of its tolerance"):
        errors.add_column(column, justify="left" if column == "dtype" else "right")
    for dtype in FLOATS:
        found = [(x.worst[dtype], x.line) for x in outcomes if dtype in x.worst]
        if found:
            (error, share), line = max(found, key=lambda x: x[0][1])
            errors.add_row(dtype, str(len(found)), f"{error:.2g}", f"{share:.2f}")
            lines.append(f"  {dtype}: {line}")
    console.print(errors)
    console.print("\n".join(lines), markup=False)
    stages = ", ".join(f"{k} {v:.1f}" for k, v in times.most_common())
    console.print(f"{wall:.1f} s; processor seconds by stage: {stages}")


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console(soft_wrap=True, highlight=False)
    if args.repro is not None:
        case, order = args.repro
        batches, jobs = [[(case, order)]], 0
    else:
        orders = sorted({int(x) for x in args.orders})
        cases = [
            random_case(op, args.seed, i, dtypes=args.dtypes, max_flop=args.max_flop)
            for i in range(args.start, args.start + args.count)
            for op in args.ops
        ]
        batches, jobs = _batches(cases, orders, args.batch), args.jobs
    start, outcomes, times = time.perf_counter(), [], Counter()
    progress = Progress(
        TextColumn("fuzz"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[failed]} failed"),
        console=console,
    )
    with progress:
        task = progress.add_task("fuzz", total=sum(len(b) for b in batches), failed=0)
        for found, spent in run_all(batches, jobs, args.target):
            outcomes += found
            times.update(spent)
            for outcome in found:
                if outcome.failure is not None:
                    console.print(f"FAILED {outcome.failure}", markup=False)
                    console.print(f"  {command(outcome.line, args.target)}", markup=False)
            failed = sum(x.failure is not None for x in outcomes)
            progress.update(task, advance=len(found), failed=failed)
    _report(console, outcomes, times, time.perf_counter() - start)
    return 1 if any(x.failure is not None for x in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
