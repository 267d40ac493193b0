"""The command line: `python -m relay_wgrad`.

Results go to standard output, progress to standard error.  Exit codes: 0 done, 1 the run failed or
disagreed with its second opinion, 2 wrong arguments, 130 interrupted.

Each command has two files of its own: `parsers/<name>.py` with `add_parser(commands)`, which loads
nothing that takes long, and `<name>.py` with `run(args)`, which gives the exit code.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from .. import __version__
from ..training.processes import launched_rank
from .arguments import Parser, WrongArgumentsError

_PROG = "python -m relay_wgrad"
COMMANDS = ("train", "inspect", "partition", "export", "emit", "tune", "bench", "env")
REPORTED = (
    ValueError, TypeError, OSError, RuntimeError, ArithmeticError, MemoryError, ImportError
)  # fmt: skip
"""Errors whose text is for the user; others are mistakes of this package."""
EPILOG = """\
`python -m relay_wgrad COMMAND --help` has every command's options and examples.  Start with

  python -m relay_wgrad env
  python -m relay_wgrad train squeezenet
  python -m relay_wgrad inspect resnet50 --report report.html
"""


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options; what a command does not know is told of in its own words."""
    parser = Parser(
        prog=_PROG,
        description="Convolution gradients as first-class operators in Apache TVM.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"relay-wgrad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f".parsers.{name}", __package__).add_parser(commands)
    args, rest = parser.parse_known_args(argv)
    if rest:
        commands.choices[args.command].error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed by who called: nobody wants it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")  # a locale without "→" is no reason to fail
    with _noted_interrupts() as interrupts:
        try:
            args = _parsed(argv)
            command = import_module(f".{args.command}", __package__)
            code = int(command.run(args))
            sys.stdout.flush()
        except BrokenPipeError:  # the reader of the output has gone, as in `… | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except (Exception, KeyboardInterrupt) as error:
            # In a callback of TVM, an interrupt comes back as another error.
            if interrupts or isinstance(error, KeyboardInterrupt):
                print("interrupted", file=sys.stderr)
                return 130
            if isinstance(error, WrongArgumentsError):
                print(f"{_PROG} {args.command}: error: {error}", file=sys.stderr)
                return 2
            if not isinstance(error, REPORTED):
                raise
            rank = launched_rank()
            which = "" if rank is None else f"process {rank}: "
            print(f"{which}{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    return code


@contextlib.contextmanager
def _noted_interrupts() -> Iterator[list[int]]:
    """A list that each SIGINT is put into, before it raises KeyboardInterrupt as ever."""
    noted: list[int] = []

    def handler(number: int, frame: Any) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    # Another handler stays, and so does SIG_IGN; only the main thread may set one.
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if ours:
        signal.signal(signal.SIGINT, handler)
    try:
        yield noted
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
