"""The command line: `python -m relay_wgrad`.

Results go to standard output, progress to standard error.  Exit codes: 0 done, 1 the run failed or
disagreed with its second opinion, 2 wrong arguments, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from . import __version__, emit_command

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"must be an integer of at least 0, got {text!r}")
    return int(text)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}")
    return value


def _loss_scale(text: str) -> float | str:
    return text if text == "dynamic" else _rate(text)


def _dtype(text: str) -> str:
    if text not in DTYPES and text not in DTYPES.values():
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(DTYPES)}, got {text!r}")
    return DTYPES.get(text, text)


def _checkpoint(text: str) -> str | list[str] | None:
    if text in ("none", "auto"):
        return None if text == "none" else text
    return [name for name in text.split(",") if name]


def _bundled() -> str:
    """The networks by name; `env` must work, and say so, where onnx is missing."""
    try:
        from .frontend import BUNDLED
    except ImportError:
        return "a network that the onnx package ships"
    return f"one of {', '.join(BUNDLED)}"


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults, except where there is none and the text says what happens then."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m relay_wgrad",
        description="Convolution gradients as first-class operators in Apache TVM.",
    )
    parser.add_argument("--version", action="version", version=f"relay-wgrad {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    train = commands.add_parser(
        "train",
        help="train a network on the CPU and show what became of its convolutions",
        description=(
            "Imports an ONNX network with seeded random weights, appends a loss, differentiates,"
            " compiles for this CPU and trains some steps on one fixed batch. Then shows what"
            " became of each convolution, and checks every kernel against the historical composite"
            " compiled by TVM's own rules."
        ),
        epilog=(
            "Exit codes: 0 the loss came down and every kernel agrees; 1 it did not, or the network"
            " cannot be trained; 2 wrong arguments."
        ),
        formatter_class=_Help,
    )
    train.add_argument("model", nargs="?", default="resnet50",
                       help=f"an .onnx file, or {_bundled()}")  # fmt: skip
    train.add_argument("--batch", type=_positive, default=4, help="images in the batch")
    train.add_argument("--image-size", type=_positive, default=None,
                       help="height and width; the model's own if not given; the fully connected"
                            " layers of alexnet, vgg19 and zfnet512 take no other")  # fmt: skip
    train.add_argument("--steps", type=_positive, default=5, help="training steps")
    train.add_argument("--lr", type=_rate, default=None,
                       help="learning rate; by default 0.001, for adam 0.0001, and a tenth of"
                            " that for networks without batch normalization")  # fmt: skip
    train.add_argument("--optimizer", choices=("sgd", "momentum", "adam"), default="sgd",
                       help="momentum is sgd with a momentum of 0.9")  # fmt: skip
    train.add_argument("--bn", choices=("train", "eval"), default="train",
                       help="batch normalization: batch or running statistics")  # fmt: skip
    train.add_argument("--dtype", type=_dtype, default="float32", metavar="{f32,f16,bf16,f64}",
                       help="f16 and bf16 are mixed precision: half-precision operands of"
                            " convolutions and matrix products, float32 for all else")  # fmt: skip
    train.add_argument("--loss-scale", type=_loss_scale, default=None,
                       help="a number or 'dynamic'; 1024 with f16, else none")  # fmt: skip
    train.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW",
                       help="of activations, in the whole training graph")  # fmt: skip
    train.add_argument("--checkpoint", type=_checkpoint, default=None, metavar="{none,auto,A,B,…}",
                       help="recompute intermediate results instead of keeping them: between"
                            " automatically chosen tensors, or the named ones")  # fmt: skip
    train.add_argument("--dropout", choices=("off", "mask"), default="off",
                       help="off: the identity; mask: seeded random masks")  # fmt: skip
    train.add_argument("--seed", type=_seed, default=0, help="of weights and batch")
    train.add_argument("--no-check", action="store_true",
                       help="leave out the comparison with the stock composite")  # fmt: skip
    train.add_argument("--json", metavar="FILE", help="also write all figures to FILE")
    train.add_argument("--quiet", action="store_true", help="no progress display")
    emit_command.add_parser(commands)
    env = commands.add_parser("env", help="print versions, CPU, GPU, libraries, what is missing")
    env.add_argument("--json", action="store_true", help="as one JSON object")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    args = _parser().parse_args(argv)
    if args.command == "env":
        from .env import print_env

        return print_env(as_json=args.json)
    if args.command == "emit":
        return emit_command.run(args)
    from .train_command import train

    try:
        if args.json:
            open(args.json, "a", encoding="utf-8").close()  # better to know before than after
        figures, ok = train(args)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(figures, file, indent=1)
    except (ValueError, TypeError, OSError, RuntimeError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0 if ok else 1
