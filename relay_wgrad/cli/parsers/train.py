"""What `train` takes."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from ...training.options import AUGMENT, DECAYS, OPTIMIZERS, SELECT
from ...training.schedules import SCHEDULES
from .. import arguments

AGAINST = ("rows", "composite")
EPILOG = """\
Exit codes: 0 the loss came down (with --data: stayed finite) and every kernel agrees; 1 it did not,
or the network cannot be trained; 2 wrong arguments; 130 interrupted.

--data takes a file of numpy.savez with the samples along the first axis of each array: the model's
inputs by their names, and `labels` (integers, one for each sample) or, with --loss mse, `target`;
or a folder with images in a folder for each class.

examples:
  python -m relay_wgrad train resnet50
  python -m relay_wgrad train squeezenet --dtype bf16 --checkpoint auto
  python -m relay_wgrad train mine.onnx --batch 8 --optimizer adam --json out.json
  python -m relay_wgrad train mine.onnx --data mine.npz --steps 500 --export trained.onnx
  python -m relay_wgrad train mine.onnx --data flowers/train --test flowers/test --epochs 20 \
      --log log.csv --save state.safetensors
  python -m relay_wgrad train mine.onnx --steps 100 --no-check --save state.safetensors
  python -m relay_wgrad train mine.onnx --steps 100 --no-check --resume state.safetensors
  python -m relay_wgrad train mine.onnx --data mine.npz --train 'layer4.*,fc' --bn frozen
  python -m relay_wgrad train resnet50 --device cuda --dtype bf16 --batch 256 --steps 100
  torchrun --nproc-per-node 4 -m -- relay_wgrad train mine.onnx --device cuda --data flowers/train
"""


def add_parser(commands: Any) -> None:
    """Adds `train` to the subparsers of the command line."""
    parser = commands.add_parser(
        "train",
        help="train a network and show what became of its convolutions",
        description=(
            "Imports a network, appends a loss, differentiates, compiles for this CPU, or a GPU,\n"
            "and trains some steps: on one fixed random batch, or with --data on shuffled\n"
            "minibatches.  Then shows what became of each convolution, and checks every kernel\n"
            "against float64, or the historical composite compiled by TVM's own rules; on a GPU\n"
            "the last step's loss and gradients against this CPU's."
        ),
        epilog=EPILOG,
        formatter_class=arguments.Help,
    )
    arguments.add_graph(parser, model="resnet50")
    parser.set_defaults(layout="NHWC")  # for kernels that work on channels that are last
    parser.add_argument("--device", default="cpu", metavar="{cpu,cuda,cuda:N,auto}",
                        help="where to train; auto is a GPU if one can be used, and"
                             " `python -m relay_wgrad env` says whether")  # fmt: skip
    parser.add_argument(
        "--benchmark",
        action="store_true",
        help="on a GPU: time a library's algorithms once and keep the fastest",
    )
    parser.add_argument(
        "--select",
        default="first",
        choices=SELECT,
        help="on a GPU: the first library that takes a convolution, or the one that is the fastest"
        " here by measurement, kept in the record of `tune`",
    )
    parser.add_argument(
        "--no-tf32",
        action="store_true",
        help="on a GPU: never round float32 operands to TF32's 10 bits",
    )
    parser.add_argument(
        "--no-graph",
        action="store_true",
        help="on a GPU: give it each step kernel by kernel, not as one CUDA graph",
    )
    parser.add_argument(
        "--strict", action="store_true", help="on a GPU: fail where no library takes a convolution"
    )
    parser.add_argument("--sync-batch-norm", action="store_true",
                        help="of several processes, under torchrun: normalize in training by all"
                             " of them")  # fmt: skip
    parser.add_argument("--weights", choices=("seeded", "initial"), default=None,
                        help="to start from: seeded random ones, or the file's; by default the"
                             " file's if it has any")  # fmt: skip
    _add_data(parser)
    parser.add_argument("--lr", type=arguments.rate, default=None,
                        help="learning rate; by default 0.001, for adam(w) 0.0001, and a tenth of"
                             " that for networks without batch normalization")  # fmt: skip
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=None,
                        help="momentum is sgd with a momentum of 0.9, adamw adam with a decay of"
                             " its own; by default sgd, or with --resume the saved"
                             " one")  # fmt: skip
    _add_update(parser)
    parser.add_argument("--loss-scale", type=arguments.loss_scale, default=None,
                        help="a number or 'dynamic'; 1024 with f16, else none")  # fmt: skip
    parser.add_argument("--export", type=arguments.ending(".onnx"), metavar="FILE",
                        help="write the model with its trained weights to FILE.onnx")  # fmt: skip
    parser.add_argument("--export-mode", choices=("inference", "training"), default="inference",
                        help="inference: it predicts as --test evaluates, by running statistics,"
                             " without dropout, random numbers at their means; training: as the"
                             " file has it")  # fmt: skip
    parser.add_argument("--save", type=arguments.ending(".safetensors"), metavar="FILE",
                        help="write parameters and optimizer state to a .safetensors file after"
                             " the last step")  # fmt: skip
    parser.add_argument("--resume", metavar="FILE",
                        help="start from what --save wrote: the losses go on as if there had been"
                             " no interruption")  # fmt: skip
    check = parser.add_mutually_exclusive_group()
    check.add_argument("--against", choices=AGAINST, default=AGAINST[0],
                       help="on a CPU, what each kernel is compared with: rows, some rows of its"
                            " result in float64, by NumPy (default); composite, all of it by the"
                            " stock composite, which for a ResNet-50 takes minutes")  # fmt: skip
    check.add_argument("--no-check", action="store_true", help="leave out the comparison")
    parser.add_argument("--json", metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--quiet", action="store_true", help="no progress display")


def _add_update(parser: argparse.ArgumentParser) -> None:
    """Those of `relay_wgrad.training.Update`; by default, or with --resume the saved ones."""
    group = parser.add_argument_group(
        "how parameters are updated (with --resume by default as they were)"
    )
    group.add_argument("--weight-decay", type=arguments.part, default=None, metavar="PART",
                       help="adds so much of a parameter to its gradient; of adamw the learning"
                            " rate's part of it is taken from the parameter")  # fmt: skip
    group.add_argument("--decay", choices=DECAYS, default=None,
                       help="weights: neither biases nor norms' parameters decay, by default;"
                            " all: they do")  # fmt: skip
    group.add_argument("--clip-norm", type=arguments.rate, default=None, metavar="NORM",
                       help="scale all gradients down to this norm")  # fmt: skip
    group.add_argument("--clip-value", type=arguments.rate, default=None, metavar="VALUE",
                       help="clip each gradient's values")  # fmt: skip
    group.add_argument("--schedule", type=_schedule, default=None, metavar="SCHEDULE",
                       help=f"of the learning rate: {', '.join(SCHEDULES)}, as"
                            " 'step(every=30, by=0.1)', 'step(at=[60, 80])', 'cosine(warmup=5)',"
                            " 'linear(steps=100, last=0.1)', 'constant(warmup=5)', all in steps;"
                            " steps are by default all of this run's")  # fmt: skip
    group.add_argument("--accumulate", type=arguments.positive, default=None, metavar="BATCHES",
                       help="update after each so many steps, by their gradients' mean; schedules"
                            " then count updates")  # fmt: skip
    group.add_argument("--ema", type=_average, default=None, metavar="PART",
                       help="keep a moving average of the parameters, of which this part stays in"
                            " each step; --export writes the averages")  # fmt: skip


def _add_data(parser: argparse.ArgumentParser) -> None:
    """Samples to train on and to evaluate on, for how long, and where that is written."""
    parser.add_argument("--data", type=_samples, metavar="PATH",
                        help="train on these samples, shuffled by --seed: an .npz file or a folder"
                             " of images, see below")  # fmt: skip
    parser.add_argument("--test", type=_samples, metavar="PATH",
                        help="after each epoch, and at the end, evaluate on these: loss and"
                             " accuracy, with running statistics")  # fmt: skip
    parser.add_argument("--steps", type=arguments.positive, default=None,
                        help="training steps (default: 5)")  # fmt: skip
    parser.add_argument("--epochs", type=arguments.positive, default=None,
                        help="train until so many epochs of --data are over, those before --resume"
                             " among them; instead of --steps")  # fmt: skip
    parser.add_argument("--augment", choices=AUGMENT, default=None,
                        help="of a folder's images in training: a random part, mirrored or not (the"
                             " default); the middle, mirrored or not; the middle")  # fmt: skip
    parser.add_argument("--mean", type=_channels, default=None, metavar="R,G,B",
                        help="taken from images of 0 to 1 (default: ImageNet's)")  # fmt: skip
    parser.add_argument("--std", type=_channels, default=None, metavar="R,G,B",
                        help="that they are divided by then (default: ImageNet's)")  # fmt: skip
    parser.add_argument("--log", type=arguments.ending(".csv"), metavar="FILE",
                        help="write each step's loss and rate, and evaluations, to FILE.csv; with"
                             " --resume it goes on")  # fmt: skip
    parser.add_argument("--tensorboard", metavar="FOLDER",
                        help="write the same as TensorBoard's events")  # fmt: skip


def _samples(text: str) -> str:
    """A folder that is there, or a file's name that ends in .npz."""
    if Path(text).is_dir():
        return text
    if not Path(text).suffix and not Path(text).exists():
        raise argparse.ArgumentTypeError(f"no folder of images, and no .npz file, {text!r}")
    return arguments.ending(".npz")(text)


def _channels(text: str) -> tuple[float, ...]:
    """A number, or one for each channel."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3) or not all(math.isfinite(v) for v in values):
        raise argparse.ArgumentTypeError(f"must be one or three numbers, got {text!r}")
    return values


def _average(text: str) -> float:
    """A part that stays."""
    value = arguments.rate(text)
    if not value < 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to below 1, got {text!r}")
    return value


def _schedule(text: str) -> str:
    """The text of a schedule; its steps may be left out."""
    from ...training.update import Update
    from ..train_options import with_steps

    try:
        Update(schedule=with_steps(text, 10**9))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("schedule=")) from error
    return text
