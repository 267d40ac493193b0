"""`python -m relay_wgrad partition`: what libraries take of a training graph, and why."""

from __future__ import annotations

import argparse
import io
import sys

from rich.console import Console
from rich.markup import escape

from byoc_cudnn import partition
from byoc_cudnn.report import Report

from .. import output, registry
from ..display import Display, print_whole
from . import arguments


def run(args: argparse.Namespace) -> int:
    """Prints the report; 1 where a convolution stays with `--strict`."""
    output.check_all({"--output": args.output}, {"MODEL": args.model})
    registry.register()
    display = Display(args.quiet)
    with display.progress:
        with display.part("importing"):
            graph = arguments.graph_of(args)
        with display.part("differentiating"):
            module = arguments.step_of(args, graph)
        with display.part("partitioning"):
            _, report = partition(module, args.backends)
    if args.output is None:
        _write(args.format, graph.name, report, Console(width=display.out.width))
    else:
        text = io.StringIO()
        _write(args.format, graph.name, report, Console(file=text, width=10_000))
        output.write(args.output, text.getvalue())
    if args.strict and report.left:
        print(f"{len(report.left)} of {report.total} convolutions stay", file=sys.stderr)
        return 1
    return 0


def _write(form: str, name: str, report: Report, out: Console) -> None:
    if form == "json":
        out.file.write(report.to_json() + "\n")
    elif form == "markdown":
        out.file.write(report.to_markdown())
    else:
        _text(name, report, out)


def _text(name: str, report: Report, out: Console) -> None:
    print_whole(report.table(f"{name}: where each convolution goes"), out)
    out.print(escape(str(report)), highlight=False)
