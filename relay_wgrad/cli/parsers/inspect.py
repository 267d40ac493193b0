"""What `inspect` takes."""

from __future__ import annotations

from typing import Any

from .. import arguments

FORMATS = {".html": "html", ".htm": "html", ".json": "json", ".md": "markdown"}

EPILOG = """\
The HTML report is one file that needs no network: the training graph as a picture to zoom into,
every convolution with its problem, layout, backend and reason, layout changes, memory over time.
Without --measure nothing is compiled.  Exit codes: 0 done; 1 the model cannot be differentiated;
2 wrong arguments; 130 interrupted.

examples:
  python -m relay_wgrad inspect resnet50 --report report.html
  python -m relay_wgrad inspect mine.onnx --batch 8 --layout NHWC --report report.html --measure
  python -m relay_wgrad inspect resnet50 --dtype f16 --layout NHWC --measure --device cuda
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
            "take on this machine's CPU, or all of its kernels on a GPU."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser)
    parser.add_argument("--report", metavar="FILE",
                        help="write to FILE; standard output if not given")  # fmt: skip
    parser.add_argument("--format", choices=tuple(dict.fromkeys(FORMATS.values())), default=None,
                        help="by default what FILE ends in, .html, .json or .md; markdown"
                             " on standard output")  # fmt: skip
    parser.add_argument("--backends", type=arguments.backends, default=("cudnn",),
                        help="libraries, joined by commas, the preferred first")  # fmt: skip
    parser.add_argument("--measure", action="store_true",
                        help="compile the step for this CPU, or --device, and time it")  # fmt: skip
    parser.add_argument("--device", default="cpu", metavar="{cpu,cuda,cuda:N,auto}",
                        help="of --measure; on a GPU each kernel is timed between two events, and"
                             " the report has its bytes and TB/s")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress display")
