"""`python -m relay_wgrad export`: a training step as an ONNX model."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .. import output, registry
from ..display import Display
from . import arguments

EPILOG = """\
The model has ONNX's own operators alone, so that any runtime can run it: data gradients of
convolutions are ConvTranspose, weight gradients are Conv.  Its inputs are the batch and the
parameters, which have values in it; its outputs the loss, the logits, updated running statistics
and PARAMETER_grad, with --learning-rate PARAMETER_new too.

Nothing is compiled.  Exit codes: 0 done; 1 the model cannot be differentiated, or has an operator
that cannot be written; 2 wrong arguments; 130 interrupted.

examples:
  python -m relay_wgrad export resnet50 --batch 8 -o step.onnx
  python -m relay_wgrad export mine.onnx --weights initial --learning-rate 0.05 -o step.onnx
"""


def add_parser(commands: Any) -> None:
    """Adds `export` to the subparsers of the command line."""
    parser = commands.add_parser(
        "export",
        help="write a training step, forward and backward, as an ONNX model",
        description=(
            "Makes the training graph of a model and writes its loss and gradients as one ONNX\n"
            "model, which any ONNX runtime runs."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser)
    parser.add_argument("--weights", choices=("seeded", "initial", "auto"), default="auto",
                        help="initial: the file's; seeded: random ones; auto: the file's if it has"
                             " any")  # fmt: skip
    parser.add_argument("--learning-rate", type=arguments.rate, metavar="RATE",
                        help="parameters less their gradients times an input of that default are"
                             " outputs too")  # fmt: skip
    parser.add_argument("-o", "--output", type=arguments.ending(".onnx"), required=True,
                        metavar="FILE", help="an .onnx file to write")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def run(args: argparse.Namespace) -> int:
    """Writes the file; 1 for what cannot be written."""
    from ..frontend import gradient_to_onnx
    from ..training.step import converted

    if args.dtype not in ("float32", "float64"):
        print("export: --dtype must be f32 or f64: mixed precision is not written", file=sys.stderr)
        return 2
    output.check_all({"--output": args.output}, {"MODEL": args.model})
    registry.register()
    display = Display(args.quiet)
    with display.progress:
        with display.part("importing"):
            graph = arguments.graph_of(args)
        with display.part("differentiating"):
            module = converted(graph.gradient(), args.layout)
        with display.part("writing"):
            model = gradient_to_onnx(graph, module=module, learning_rate=args.learning_rate)
            with output.replacing(args.output) as made:
                made.write_bytes(model.SerializeToString())
    if not args.quiet:
        print(f"wrote {args.output}: {len(model.graph.node)} nodes", file=sys.stderr)
    return 0
