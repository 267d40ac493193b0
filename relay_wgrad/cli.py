"""The command line: `python -m relay_wgrad`.

Results go to standard output, progress to standard error.  Exit codes: 0 done, 1 the run failed or
disagreed with its second opinion, 2 wrong arguments, 130 interrupted.

Each command is a file of its own, `<name>_command.py`, with `add_parser(commands)` and `run(args)`,
which gives the exit code.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__

COMMANDS = ("train", "inspect", "partition", "emit", "tune", "bench", "env")
EPILOG = """\
`python -m relay_wgrad COMMAND --help` has every command's options and examples.  Start with

  python -m relay_wgrad env
  python -m relay_wgrad train squeezenet
  python -m relay_wgrad inspect resnet50 --report report.html
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m relay_wgrad",
        description="Convolution gradients as first-class operators in Apache TVM.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"relay-wgrad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        import_module(f".{name}_command", __package__).add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    args = _parser().parse_args(argv)
    command = import_module(f".{args.command}_command", __package__)
    try:
        code = int(command.run(args))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output has gone, as in `… | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, TypeError, OSError, RuntimeError, MemoryError, ImportError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return code
