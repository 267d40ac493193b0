"""What all generators share: a case is one line of text, found by seed and index, run in a child.

A generator is a module `tests/fuzz/NAME.py` that ends with

    GENERATOR = Generator(
        "NAME", "what is compared with what", case=case, labels=labels, check=check
    )

    if __name__ == "__main__":
        sys.exit(main(GENERATOR))

`case(seed, index)` gives the line that names a case whole, `labels(line)` what it is counted under
(such as {"op": "relu", "dtype": "float32"}; it must not import what is tested), and `check(line)`
runs it and returns None or "" where it is right, "refused: …" where it was refused as promised, and
otherwise what is wrong.  An exception is a failure too; so is a process that dies, hangs, or needs
more memory than it may.

    python -m tests.fuzz.NAME --minutes 60 --json found.json
    python -m tests.fuzz.NAME --only op=relu,dtype=float32 --count 100
    python -m tests.fuzz.NAME --repro "LINE"

A test run's share is `assert not failures(GENERATOR, range(10))`, in its own process.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import platform
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from relay_wgrad import output

from .child import Child

REFUSED = "refused: "
GIB = 1 << 30


@dataclass(frozen=True)
class Generator:
    name: str
    about: str
    case: Callable[[int, int], str]
    labels: Callable[[str], dict[str, str]]
    check: Callable[[str], str | None]
    timeout: float = 300.0
    """Seconds that one case may take."""
    recycle: int = 40
    """Cases of one process."""
    memory: int = 16 * GIB
    """Of one process, bytes of private writable memory."""

    def answer(self, line: str) -> dict[str, str]:
        """A case's outcome: a status (passed, refused, failed) and its message."""
        try:
            said = self.check(line) or ""
        except Exception:
            return {"status": "failed", "message": traceback.format_exc(limit=-8).strip()}
        status = "refused" if said.startswith(REFUSED) else "failed" if said else "passed"
        return {"status": status, "message": said.removeprefix(REFUSED)}

    def command(self, line: str) -> str:
        """What to paste to run one case alone."""
        return f"python -m tests.fuzz.{self.name} --repro '{line}'"


def load(name: str) -> Generator:
    found = import_module(f"tests.fuzz.{name}").GENERATOR
    assert isinstance(found, Generator)
    return found


def failures(generator: Generator, indices: Iterable[int], seed: int = 0) -> list[str]:
    """What is wrong with these cases, run in this process."""
    lines = [generator.case(seed, index) for index in indices]
    answers = [(line, generator.answer(line)) for line in lines]
    return [
        f"{answer['message']}\n{generator.command(line)}"
        for line, answer in answers
        if answer["status"] == "failed"
    ]


@dataclass
class Tally:
    """What a run has found so far."""

    statuses: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    labels: dict[str, Counter[str]] = field(default_factory=dict)
    failed: list[dict[str, Any]] = field(default_factory=list)

    def add(self, index: int, line: str, labels: dict[str, str], answer: dict[str, str]) -> None:
        self.statuses[answer["status"]] += 1
        for key, value in labels.items():
            self.labels.setdefault(key, Counter())[f"{value} {answer['status']}"] += 1
        if answer["status"] == "refused":
            self.refusals[answer["message"][:200]] += 1
        elif answer["status"] != "passed":
            self.failed.append({"index": index, "line": line, **answer})

    @property
    def line(self) -> str:
        return ", ".join(f"{n} {status}" for status, n in sorted(self.statuses.items()))


def main(generator: Generator, argv: Sequence[str] | None = None) -> int:
    args = _arguments(generator, argv)
    console = Console(soft_wrap=True, highlight=False)
    tally, began = Tally(), time.monotonic()
    if args.repro is not None:
        cases: Iterator[tuple[int, str]] = iter([(0, args.repro)])
        args.jobs, args.minutes = 1, None
    else:
        cases = _cases(generator, args)
    lock = threading.Lock()

    def work() -> None:
        with Child(
            generator.name, tree=args.tree, timeout=args.timeout, recycle=generator.recycle,
            memory=generator.memory,
        ) as child:  # fmt: skip
            while args.minutes is None or time.monotonic() - began < 60 * args.minutes:
                with lock:
                    index, line = next(cases, (-1, ""))
                if index < 0:
                    return
                answer = child.run(line)
                with lock:
                    tally.add(index, line, generator.labels(line), answer)
                    if answer["status"] in ("failed", "died"):
                        console.print(f"FAILED {answer['message']}", markup=False)
                        console.print(f"  {generator.command(line)}", markup=False)
                    elif args.repro is not None:
                        console.print(f"{answer['status']} {answer['message']}", markup=False)
                    progress.update(task, tally=tally.line)

    columns = (SpinnerColumn(), TextColumn(generator.name), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[tally]}"), console=console) as progress:
        task = progress.add_task("", total=None, tally="")
        with ThreadPoolExecutor(args.jobs) as pool:
            for done in [pool.submit(work) for _ in range(args.jobs)]:
                done.result()
    seconds = time.monotonic() - began
    if args.repro is None:
        _show(console, generator, tally, seconds)
    if args.json:
        output.write_json(args.json, _record(generator, args, tally, seconds))
    return 1 if tally.failed else 0


def _cases(generator: Generator, args: argparse.Namespace) -> Iterator[tuple[int, str]]:
    count = 0
    for index in itertools.count(args.start):
        if args.count is not None and count == args.count:
            return
        line = generator.case(args.seed, index)
        labels = generator.labels(line)
        if all(labels.get(key) == value for key, value in args.only):
            count += 1
            yield index, line


def _arguments(generator: Generator, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.fuzz.{generator.name}",
        description=generator.about,
        epilog="Exit status: 0 when no case fails, 1 when one does, 2 for a wrong command line.",
    )
    parser.add_argument("--count", type=int, help="cases (default 25, or what --minutes allow)")
    parser.add_argument("--minutes", type=float, help="begin no case after these")
    parser.add_argument("--seed", type=int, default=0, help="names the run's cases (default 0)")
    parser.add_argument("--start", type=int, default=0, help="index of the first case")
    parser.add_argument("--only", default="", metavar="LABEL=VALUE,…", help="cases with these")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="child processes")
    parser.add_argument(
        "--timeout", type=float, default=generator.timeout, help="seconds for a case"
    )
    parser.add_argument("--tree", metavar="DIR", help="test the packages of another checkout")
    parser.add_argument("--json", metavar="FILE", help="write what was found")
    parser.add_argument("--repro", metavar="LINE", help="run the one case that a failure printed")
    args = parser.parse_args(argv)
    if args.count is None and args.minutes is None:
        args.count = 25
    for name, least in (("jobs", 1), ("count", 0), ("minutes", 0)):
        if (value := getattr(args, name)) is not None and value < least:
            parser.error(f"--{name}: must be at least {least}, got {value}")
    pairs = [item.partition("=") for item in filter(None, args.only.split(","))]
    if any(not mark for _, mark, _ in pairs):
        parser.error(f"--only: expected LABEL=VALUE, got {args.only!r}")
    args.only = [(key, value) for key, _, value in pairs]
    if args.tree is not None and not (Path(args.tree) / "relay_wgrad").is_dir():
        parser.error(f"--tree: no package relay_wgrad in {args.tree!r}")
    if args.json:
        output.check(args.json)
    return args


def _show(console: Console, generator: Generator, tally: Tally, seconds: float) -> None:
    table = Table(title=f"{generator.name}: {generator.about}", title_justify="left")
    for name in ("", "passed", "refused", "failed", "died"):
        table.add_column(name, justify="left" if not name else "right")
    statuses = ("passed", "refused", "failed", "died")
    table.add_row("all", *(str(tally.statuses[s]) for s in statuses))
    for key, counts in tally.labels.items():
        table.add_section()
        for value in sorted({item.rpartition(" ")[0] for item in counts}):
            row = (str(counts[f"{value} {s}"] or "") for s in statuses)
            table.add_row(f"{key} {value}", *row)
    console.print(table)
    for reason, count in tally.refusals.most_common(20):
        console.print(f"refused {count} times: {reason}", markup=False)
    total = sum(tally.statuses.values())
    console.print(f"{total} cases in {seconds:.0f} s: {tally.line}")


def _record(
    generator: Generator, args: argparse.Namespace, tally: Tally, seconds: float
) -> dict[str, Any]:
    return {
        "generator": generator.name,
        "about": generator.about,
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "machine": platform.processor() or platform.machine(),
        "versions": {name: _version(name) for name in ("apache-tvm", "numpy", "torch")},
        "seed": args.seed,
        "start": args.start,
        "only": dict(args.only),
        "seconds": round(seconds),
        "counts": dict(tally.statuses),
        "labels": {key: dict(sorted(found.items())) for key, found in tally.labels.items()},
        "refused": dict(tally.refusals.most_common()),
        "failed": tally.failed,
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # unpacked, not installed
        return "unknown"
