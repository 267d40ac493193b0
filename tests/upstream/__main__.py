"""Runs Relay's own tests and prints what became of them.

    python -m tests.upstream CHECKOUT [--files 'test_op_*'] [--jobs 2] [--json FILE]

The exit status is 1 where a test failed that is not in reasons.txt, or where one passed that is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .reasons import REASONS, read_reasons
from .runner import Result, run_files
from .scope import OUT_OF_SCOPE, in_scope

# Of the tests that passed or failed at first, how many are to pass, and how many may be listed.
AIM, OF, LISTED = 1450, 1581, 131


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="tests.upstream", description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="of TVM 0.19: has tests/python/relay")
    parser.add_argument("--files", default="*", help="a pattern of files, below tests/python/relay")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a test may take")
    parser.add_argument("--json", type=Path, help="where each test's result goes")
    parser.add_argument("--failures", action="store_true", help="print each failure")
    parser.add_argument("--scope", action="store_true", help="print what is out of scope, and why")
    return parser.parse_args()


def scope_table() -> Table:
    """What is left out."""
    table = Table("out of scope", "why")
    for pattern, why in OUT_OF_SCOPE.items():
        table.add_row(pattern, why)
    return table


def table_of(results: dict[str, dict[str, Result]], reasons: dict[str, str]) -> Table:
    """A row a file, and their sum: "failed" are those that are not listed."""
    table = Table("file", title="Relay 0.19's own tests")
    for name in ("passed", "failed", "skipped", "listed"):
        table.add_column(name, justify="right")
    total = Counter[str]()
    for name, tests in results.items():
        row = Counter(_kind(test, result, reasons) for test, result in tests.items())
        total += row
        table.add_row(name, *(str(row[kind]) for kind in ("passed", "failed", "skipped", "listed")))
    table.add_section()
    table.add_row("all", *(str(total[kind]) for kind in ("passed", "failed", "skipped", "listed")))
    return table


def _kind(test: str, result: Result, reasons: dict[str, str]) -> str:
    return "listed" if result.outcome == "failed" and test in reasons else result.outcome


def write(path: Path, results: dict[str, dict[str, Result]], seconds: float) -> None:
    """Each test's result, as JSON."""
    tests = {test: asdict(result) for part in results.values() for test, result in part.items()}
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    path.write_text(
        json.dumps({"date": date, "seconds": round(seconds), "results": tests}, indent=1)
    )


def main() -> int:
    """Runs, prints, and gives the exit status."""
    args = arguments()
    console = Console(width=None if sys.stdout.isatty() else 100)
    if args.scope:
        console.print(scope_table())
    names = in_scope(args.checkout, args.files)
    reasons = read_reasons(REASONS.read_text())
    os.nice(5)
    start, results = perf_counter(), dict[str, dict[str, Result]]()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("files", total=len(names))
        failed = Counter[str]()

        def told(name: str, tests: dict[str, Result]) -> None:
            results.update({name: tests})
            failed.update(result.outcome for result in tests.values())
            words = f"{failed['passed']} passed, {failed['failed']} failed"
            progress.update(task, advance=1, description=words)
            if args.json:  # what has run is kept when a run is broken off
                write(args.json, results, perf_counter() - start)

        results = run_files(args.checkout, names, args.jobs, args.timeout, told)
    if args.json:
        write(args.json, results, perf_counter() - start)
    console.print(table_of(results, reasons))
    every = {test: result for tests in results.values() for test, result in tests.items()}
    count = Counter(_kind(test, result, reasons) for test, result in every.items())
    ran = count["passed"] + count["failed"] + count["listed"]
    console.print(
        f"{count['passed']:,} of {ran:,} that passed or failed (aim: {AIM:,} of {OF:,});"
        f" {len(reasons)} in the list (at most {LISTED})"
    )
    if args.failures:
        for test, result in every.items():
            if _kind(test, result, reasons) == "failed":
                console.print(
                    f"{test}\n    {result.error}  {result.where}", markup=False, soft_wrap=True
                )
    needless = [test for test in reasons if test in every and every[test].outcome == "passed"]
    for test in needless:
        console.print(f"in the list, and passes: {test}", markup=False)
    return 1 if count["failed"] or needless else 0


if __name__ == "__main__":
    sys.exit(main())
