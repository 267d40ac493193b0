"""What `env` takes."""

from __future__ import annotations

import argparse
from typing import Any

EPILOG = """\
examples:
  python -m relay_wgrad env
  python -m relay_wgrad env --json > environment.json
"""


def add_parser(commands: Any) -> None:
    """Adds `env` to the subparsers of the command line."""
    parser = commands.add_parser(
        "env",
        help="print versions, CPU, GPU, libraries, what is missing",
        description="Prints versions, CPU, GPU, the libraries found, what is missing and how to"
        " get it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="no effect: there is no progress")
