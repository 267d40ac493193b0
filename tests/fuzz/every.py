"""All generators in turn: `python -m tests.fuzz.every --minutes 10`, or `make fuzz`."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from relay_wgrad import output

from .child import HERE
from .harness import load

PLANTED = "planted"  # whose cases are meant to fail


def names() -> list[str]:
    """The modules beside this one that are generators."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    found = [f.stem for f in files if "\nGENERATOR = Generator(" in f.read_text(encoding="utf-8")]
    return [name for name in found if name != PLANTED]


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    console = Console(soft_wrap=True, highlight=False)
    table = Table("generator", "what is compared", "exit status", title="all generators")
    status = 0
    for name in args.names:
        command = [sys.executable, "-m", f"tests.fuzz.{name}", "--minutes", str(args.minutes)]
        command += ["--seed", str(args.seed)]
        if args.json:
            command += ["--json", str(args.json / f"{name}.json")]
        done = subprocess.run(command, cwd=HERE, check=False)
        status = max(status, abs(done.returncode))
        table.add_row(name, load(name).about, str(done.returncode))
    console.print(table)
    return min(status, 1)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz.every",
        description="Runs every generator; each has a command line of its own.",
        epilog="Exit status: 0 when no case fails, 1 when one does, 2 for a wrong command line.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    parser.add_argument("--minutes", type=float, default=10.0, help="for each (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="names the run's cases (default 0)")
    parser.add_argument("--json", type=Path, metavar="DIR", help="write NAME.json for each there")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(names())):
        parser.error(f"unknown {', '.join(unknown)}; known: {', '.join(names())}")
    if args.minutes <= 0:
        parser.error(f"--minutes: must be more than 0, got {args.minutes:g}")
    if args.json:
        for name in args.names or names():
            output.check(args.json / f"{name}.json")
    args.names = args.names or names()
    return args


if __name__ == "__main__":
    sys.exit(main())
