"""What `export` takes."""

from __future__ import annotations

from typing import Any

from ...frontend.choices import WEIGHTS
from .. import arguments

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
    parser.add_argument("--weights", choices=WEIGHTS, default="auto",
                        help="initial: the file's; seeded: random ones; auto: the file's if it has"
                             " any")  # fmt: skip
    parser.add_argument("--learning-rate", type=arguments.rate, metavar="RATE",
                        help="parameters less their gradients times an input of that default are"
                             " outputs too")  # fmt: skip
    parser.add_argument("-o", "--output", type=arguments.ending(".onnx"), required=True,
                        metavar="FILE", help="an .onnx file to write")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")
