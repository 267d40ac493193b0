"""`python -m relay_wgrad env`: the command; what it prints is in `env`."""

from __future__ import annotations

import argparse


def run(args: argparse.Namespace) -> int:
    """Prints; always 0."""
    from ..inspection.environment import print_env

    return print_env(as_json=args.json)
