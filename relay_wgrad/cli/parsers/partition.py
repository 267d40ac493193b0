"""What `partition` takes."""

from __future__ import annotations

from typing import Any

from .. import arguments

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
    parser.add_argument("--backends", type=arguments.backends, default=("cudnn",),
                        help="libraries, joined by commas, the preferred first")  # fmt: skip
    parser.add_argument("--strict", action="store_true",
                        help="fail if a convolution stays")  # fmt: skip
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text",
                        help="text joins equal convolutions, the others have them all")  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE",
                        help="write to FILE; standard output if not given")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")
