"""`python -m relay_wgrad inspect`: a training step as a report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tvm

from .. import output, registry
from ..display import Display, warn
from ..facts import Lowered
from ..inspection import Inspection, inspect_step
from ..problem import ConvProblem
from ..training.trainer import Trainer
from . import arguments

FORMATS = {".html": "html", ".htm": "html", ".json": "json", ".md": "markdown"}
ROUNDS = 3  # evaluations, of which each kernel's shortest time counts
EPILOG = """\
The HTML report is one file that needs no network: the training graph as a picture to zoom into,
every convolution with its problem, layout, backend and reason, layout changes, memory over time.
Without --measure nothing is compiled.  Exit codes: 0 done; 1 the model cannot be differentiated;
2 wrong arguments; 130 interrupted.

examples:
  python -m relay_wgrad inspect resnet50 --report report.html
  python -m relay_wgrad inspect mine.onnx --batch 8 --layout NHWC --report report.html --measure
  python -m relay_wgrad inspect squeezenet --format markdown
"""


def add_parser(commands: Any) -> None:
    """Adds `inspect` to the subparsers of the command line."""
    parser = commands.add_parser(
        "inspect",
        help="write a report on a training graph: picture, convolutions, layouts, memory",
        description=(
            "Makes the training graph of a model, forward and backward, and reports what it is\n"
            "made of, what libraries would take, and, with --measure, how long its convolutions\n"
            "take on this machine's CPU."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser)
    parser.add_argument("--report", metavar="FILE",
                        help="write to FILE; standard output if not given")  # fmt: skip
    parser.add_argument("--format", choices=("html", "json", "markdown"), default=None,
                        help="by default what FILE ends in, .html, .json or .md; markdown"
                             " on standard output")  # fmt: skip
    parser.add_argument("--backends", type=arguments.backends, default="cudnn",
                        help="libraries, joined by commas, the preferred first")  # fmt: skip
    parser.add_argument("--measure", action="store_true",
                        help="compile the step for this CPU and time its convolutions")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def run(args: argparse.Namespace) -> int:
    """Writes the report."""
    form = args.format or "markdown"
    if args.report and args.format is None:
        ending = Path(args.report).suffix.lower()
        if ending not in FORMATS:
            print(f"inspect: --report must end in {' or '.join(FORMATS)}, or --format say what it"
                  f" is, got {args.report!r}", file=sys.stderr)  # fmt: skip
            return 2
        form = FORMATS[ending]
    output.check_all({"--report": args.report}, {"MODEL": args.model})
    found = _inspected(args)
    text = {"html": found.to_html, "json": found.to_json, "markdown": found.to_markdown}[form]()
    if args.report:
        output.write(args.report, text)
        if not args.quiet:
            print(f"wrote {args.report}", file=sys.stderr)
    else:
        sys.stdout.write(text)
    return 0


def _inspected(args: argparse.Namespace) -> Inspection:
    registry.register()
    from byoc_cudnn import partition

    display = Display(args.quiet)
    measured: Sequence[Lowered] = ()
    floor: Callable[[ConvProblem], float] | None = None
    with display.progress:
        with display.part("importing"):
            graph = arguments.graph_of(args)
        facts: dict[str, Any] = {
            "model": graph.name, "batch": graph.batch, "dtype": args.dtype, "layout": args.layout,
            "batch_normalization": args.bn, "tvm": tvm.__version__,
        }  # fmt: skip
        planned = 0
        if args.measure:
            module, measured, floor, planned = _measured(args, graph, display, facts)
        else:
            with display.part("differentiating"):
                module = arguments.step_of(args, graph)
        with display.part("partitioning"):
            entries = partition(module, args.backends)[1].entries
        with display.part("inspecting"):
            found = inspect_step(
                module, facts=facts, inputs=[spec.name for spec in graph.inputs],
                entries=entries, measured=measured, floor=floor,
            )  # fmt: skip
    if planned:
        found.data["totals"]["planned_bytes"] = planned
    return found


def _measured(
    args: argparse.Namespace, graph: Any, display: Display, facts: dict[str, Any]
) -> tuple[tvm.IRModule, list[Lowered], Callable[[ConvProblem], float], int]:
    from legalize.cpu import configure_threads, host_target
    from legalize.cpu.ceilings import ceilings

    threads, target = configure_threads(), host_target()
    with display.part("measuring the machine"):
        limits = ceilings(target, threads)
    with display.parts() as begin:
        trainer = Trainer(graph, target, dtype=args.dtype, layout=args.layout, progress=begin)
    with display.part("timing every kernel"):
        trainer.profile(graph.random_batch(args.seed), ROUNDS)
    facts.update(
        cpu=str(target.attrs["mcpu"]), threads=threads,
        multiply_adds=f"{limits.flops / 1e9:.0f} GFLOP/s", copy=f"{limits.bytes / 1e9:.1f} GB/s",
    )  # fmt: skip
    compiled = trainer.compiled
    warn(compiled.scatter)
    return trainer.module, compiled.convolutions, limits.floor, compiled.planned_bytes
