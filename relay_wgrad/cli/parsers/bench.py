"""What `bench` takes."""

from __future__ import annotations

from typing import Any

from ...problem import ConvKind
from .. import arguments

MODEL = "resnet50"
EPILOG = """\
GFLOP/s count a multiply and an add for each tap.  The floor is the time at which this machine's own
multiply-adds in registers, or its copy through memory, would be the limit; both are measured first.
A kernel can be below it: Winograd's algorithm multiplies less, and small tensors stay in caches.
Exit codes: 0 done; 1 the model cannot be differentiated; 2 wrong arguments; 130 interrupted.
In a checkout of this project `python -m benchmarks cpu convolutions` compares with PyTorch.

examples:
  python -m relay_wgrad bench resnet50 --batch 8 --layout NHWC
  python -m relay_wgrad bench squeezenet --kinds wgrad,dgrad --json times.json
  python -m relay_wgrad bench --problem "wgrad n=8 c=64 h=56 w=56 k=64 r=3 s=3 pad=1,1,1,1"
"""


def add_parser(commands: Any) -> None:
    """Adds `bench` to the subparsers of the command line."""
    parser = commands.add_parser(
        "bench",
        help="time the CPU kernels of a model's convolutions against this machine's limits",
        description=(
            "Compiles a kernel for each distinct convolution of a model's training graph, by\n"
            f"default of {MODEL}'s, or for given problems, and times each alone on random operands."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser, model=MODEL)
    parser.set_defaults(model=None)  # to tell it from one that is given beside --problem
    parser.add_argument("--problem", type=arguments.problem_argument,
                        action="append", metavar="LINE",
                        help="time this problem, in quotes, instead of a model's; may be repeated;"
                             " `emit --help` says how it is written")  # fmt: skip
    kinds = [kind.value for kind in ConvKind]
    parser.add_argument("--kinds", type=arguments.choices(*kinds), default=",".join(kinds),
                        help="which of them, joined by commas")  # fmt: skip
    parser.add_argument("--rounds", type=arguments.positive, default=5,
                        help="runs of each kernel, at least, of which the shortest counts;"
                             " small kernels run for a tenth of a second")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
