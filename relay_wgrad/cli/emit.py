"""`python -m relay_wgrad emit`: a stand-alone C++ program for one convolution problem."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from byoc_cudnn.backends.cudnn.program import emit
from byoc_cudnn.building import toolchain

from .. import output


def run(args: argparse.Namespace) -> int:
    """Does it.  The exit code is 2 for what cannot be written, 1 if the program failed."""
    try:
        source = emit(
            args.problem, allow_tf32=not args.no_tf32, workspace_limit=args.workspace_limit
        )
        if args.output is not None:
            output.write(args.output, source)
    except (ValueError, OSError) as error:
        print(f"emit: {error}", file=sys.stderr)
        return 2
    if args.output is None and not args.run:
        sys.stdout.write(source)
    if args.output is not None and not args.quiet:
        print(f"wrote {args.output}", file=sys.stderr)
    if args.run:
        return _build_and_run(source)
    if args.output is not None and not args.quiet:
        _say_how_to_build(args.output)
    return 0


def _say_how_to_build(source: Path) -> None:
    found = toolchain.find()
    if found.missing():
        text = f"its head says how to build it; on this machine {found.missing()}"
    else:
        source = source.absolute()  # no name may look like an option
        command = shlex.join(found.command(source, source.with_suffix("")))
        text = f"build it with\n{command}"
    print(text, file=sys.stderr)


def _build_and_run(source: str) -> int:
    with output.working_folder() as folder:
        file, program = folder / "program.cc", folder / "program"
        file.write_text(source, encoding="utf-8")
        try:
            command = toolchain.find().command(file, program)
        except toolchain.ToolchainError as error:
            print(error, file=sys.stderr)
            return 1
        sys.stdout.flush()
        for step in (command, [str(program)]):
            if subprocess.run(step, check=False).returncode != 0:  # noqa: S603
                return 1
    return 0
