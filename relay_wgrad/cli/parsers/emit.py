"""What `emit` takes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import arguments

EXAMPLE = (
    "dgrad n=8 c=128 h=16 w=16 k=256 r=2 s=2 stride=2,2 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
)
EPILOG = f"""\
A problem is one line: fprop, dgrad or wgrad; the sizes n c h w of the data and k r s of the
weight; and, where it differs from these defaults,

  stride=1,1 pad=0,0,0,0 dil=1,1 groups=1 layout=NCHW/OIHW/NCHW dtype=f32/f32/f32

Padding is top, left, bottom, right.  Layouts and dtypes (f16, bf16, f32, f64) are of the data, the
weight and the output or its gradient.  Letters are those of the forward convolution, for
gradients too.  The package's reports and errors print problems in this form.

Keras' Conv2DTranspose(128, 2, strides=2) on a batch of 8 images of 8x8 with 256 channels:

  python -m relay_wgrad emit --problem \\
    "{EXAMPLE}"
"""


def add_parser(commands: Any) -> None:
    """Adds `emit` to the subparsers of the command line."""
    parser = commands.add_parser(
        "emit",
        help="write a stand-alone C++ program that runs one convolution on cuDNN",
        description=(
            "Writes a commented C++ program for one convolution or gradient: it runs it on\n"
            "cuDNN, compares the result with a loop in double precision, and prints the time.\n"
            "The program needs a host compiler, cuDNN 9 and CUDA's runtime, no nvcc; writing\n"
            "it needs none of these."
        ),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=("cudnn",), default="cudnn",
                        help="the library that the program calls")  # fmt: skip
    parser.add_argument("--problem", type=arguments.problem_argument, required=True, metavar="LINE",
                        help="the problem, in quotes; see below")  # fmt: skip
    parser.add_argument("-o", "--output", type=_cc_file, metavar="FILE",
                        help="a .cc file to write; standard output if not given")  # fmt: skip
    parser.add_argument("--no-tf32", action="store_true",
                        help="refuse engines that round float32 operands to TF32")  # fmt: skip
    parser.add_argument("--workspace-limit", type=_bytes, metavar="BYTES",
                        help="device memory of an engine (else by the tensors)")  # fmt: skip
    parser.add_argument("--run", action="store_true",
                        help="build it and run it here, instead of printing it")  # fmt: skip
    parser.add_argument("--quiet", action="store_true",
                        help="do not say what was written and how to build it")  # fmt: skip


def _cc_file(text: str) -> Path:
    if Path(text).suffix not in (".cc", ".cpp", ".cxx"):
        raise argparse.ArgumentTypeError(f"must end in .cc, .cpp or .cxx, got {text!r}")
    return Path(text)


def _bytes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"must be a number of bytes, got {text!r}")
    return int(text)
