"""What `tune` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...backend_names import STOCK
from .. import arguments

BATCH = 32  # a GPU is to have something to do
EPILOG = """\
The record is a JSON file: of this user, or the one that --record names, which may be shared.
Measurements that it has for this GPU and these versions are not made again.  It is used by

  byoc_cudnn.partition(module, ("cutlass", "cudnn"), select="measured", record="FILE")

Examples:

  python -m relay_wgrad tune resnet50 --batch 32 --dtype f16
  python -m relay_wgrad tune --problem \\
    "wgrad n=64 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"

Exit codes: 0 done, 1 no GPU, no compiler or a failure, 2 wrong arguments.
"""


def add_parser(commands: Any) -> None:
    """Adds `tune` to the subparsers of the command line."""
    parser = commands.add_parser(
        "tune",
        help="time cuDNN, CUTLASS and TVM's kernels on this GPU, and keep a record",
        description=(
            "Builds the CUTLASS kernels that a model of the GPU ranks highest for each\n"
            "convolution of a training graph, times them beside cuDNN and TVM's own kernels, and\n"
            "keeps what was fastest."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser, model="", batch=BATCH)
    parser.set_defaults(layout="NHWC")
    parser.add_argument("--problem", type=arguments.problem_argument,
                        action="append", metavar="LINE",
                        help="a problem instead, as reports print it; may be repeated")  # fmt: skip
    parser.add_argument("--backends", type=arguments.backends_or_tvm,
                        default=("cutlass", "cudnn", STOCK), metavar="A,B,…",
                        help="some of them, joined by commas")  # fmt: skip
    parser.add_argument("--no-tf32", action="store_true", help="float32 is not rounded to tf32")
    parser.add_argument("--wgmma", action="store_true",
                        help="Hopper's own CUTLASS kernels too: a partition needs"
                        " cutlass={'arch': 90, 'wgmma': True} then")  # fmt: skip
    parser.add_argument("--candidates", type=arguments.positive, default=8,
                        help="kernels of a backend to try for a problem, at most")  # fmt: skip
    parser.add_argument("--record", type=Path, metavar="FILE", help="instead of the user's own")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
