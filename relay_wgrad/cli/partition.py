"""`python -m relay_wgrad partition`: what libraries take of a training graph, and why."""

from __future__ import annotations

import argparse
import io
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from .. import output, registry
from ..display import Display, print_whole
from . import arguments

if TYPE_CHECKING:
    from byoc_cudnn.report import Report

EPILOG = """\
Nothing is compiled: this needs no GPU and no library.  Exit codes: 0 done; 1 the model cannot be
differentiated, or with --strict a convolution stays; 2 wrong arguments; 130 interrupted.

examples:
  python -m relay_wgrad partition resnet50 --layout NHWC --dtype f16
  python -m relay_wgrad partition mine.onnx --backends cutlass,cudnn --strict
  python -m relay_wgrad partition densenet121 --format json -o report.json
"""


def add_parser(commands: Any) -> None:
    """Adds `partition` to the subparsers of the command line."""
    parser = commands.add_parser(
        "partition",
        help="show what of a training graph goes to cuDNN or CUTLASS, and why the rest does not",
        description=(
            "Makes the training graph of a model, forward and backward, sends its convolutions to\n"
            "libraries, and reports for each one where it went, or why it stays."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser)
    parser.add_argument("--backends", type=arguments.backends, default="cudnn",
                        help="libraries, joined by commas, the preferred first")  # fmt: skip
    parser.add_argument("--strict", action="store_true",
                        help="fail if a convolution stays")  # fmt: skip
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text",
                        help="text joins equal convolutions, the others have them all")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="write to FILE; standard output if not given")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def run(args: argparse.Namespace) -> int:
    """Prints the report; 1 where a convolution stays with `--strict`."""
    from byoc_cudnn import partition

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
