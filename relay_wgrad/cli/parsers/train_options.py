"""Options of `train` that say on what and how long it trains, and how parameters are updated."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from ...training.options import AUGMENT, DECAYS
from ...training.schedules import SCHEDULES
from .. import arguments


def add_update(parser: argparse.ArgumentParser) -> None:
    """Those of `relay_wgrad.training.Update`; by default, or with --resume the saved ones."""
    group = parser.add_argument_group(
        "how parameters are updated (with --resume by default as they were)"
    )
    group.add_argument("--weight-decay", type=arguments.rate, default=None, metavar="PART",
                       help="adds so much of a parameter to its gradient; of adamw the learning"
                            " rate's part of it is taken from the parameter")  # fmt: skip
    group.add_argument("--decay", choices=DECAYS, default=None,
                       help="weights: neither biases nor norms' parameters decay, by default;"
                            " all: they do")  # fmt: skip
    group.add_argument("--clip-norm", type=arguments.rate, default=None, metavar="NORM",
                       help="scale all gradients down to this norm")  # fmt: skip
    group.add_argument("--clip-value", type=arguments.rate, default=None, metavar="VALUE",
                       help="clip each gradient's values")  # fmt: skip
    group.add_argument("--schedule", type=schedule, default=None, metavar="SCHEDULE",
                       help=f"of the learning rate: {', '.join(SCHEDULES)}, as"
                            " 'step(every=30, by=0.1)', 'step(at=[60, 80])', 'cosine(warmup=5)',"
                            " 'linear(steps=100, last=0.1)', 'constant(warmup=5)', all in steps;"
                            " steps are by default all of this run's")  # fmt: skip
    group.add_argument("--accumulate", type=arguments.positive, default=None, metavar="BATCHES",
                       help="update after each so many steps, by their gradients' mean; schedules"
                            " then count updates")  # fmt: skip
    group.add_argument("--ema", type=average, default=None, metavar="PART",
                       help="keep a moving average of the parameters, of which this part stays in"
                            " each step; --export writes the averages")  # fmt: skip


def add_data(parser: argparse.ArgumentParser) -> None:
    """Samples to train on and to evaluate on, for how long, and where that is written."""
    parser.add_argument("--data", type=samples, metavar="PATH",
                        help="train on these samples, shuffled by --seed: an .npz file or a folder"
                             " of images, see below")  # fmt: skip
    parser.add_argument("--test", type=samples, metavar="PATH",
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
    parser.add_argument("--mean", type=channels, default=None, metavar="R,G,B",
                        help="taken from images of 0 to 1 (default: ImageNet's)")  # fmt: skip
    parser.add_argument("--std", type=channels, default=None, metavar="R,G,B",
                        help="that they are divided by then (default: ImageNet's)")  # fmt: skip
    parser.add_argument("--log", type=arguments.ending(".csv"), metavar="FILE",
                        help="write each step's loss and rate, and evaluations, to FILE.csv; with"
                             " --resume it goes on")  # fmt: skip
    parser.add_argument("--tensorboard", metavar="FOLDER",
                        help="write the same as TensorBoard's events")  # fmt: skip


def samples(text: str) -> str:
    """A folder that is there, or a file's name that ends in .npz."""
    if Path(text).is_dir():
        return text
    if not Path(text).suffix and not Path(text).exists():
        raise argparse.ArgumentTypeError(f"no folder of images, and no .npz file, {text!r}")
    return arguments.ending(".npz")(text)


def channels(text: str) -> tuple[float, ...]:
    """A number, or one for each channel."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3) or not all(math.isfinite(v) for v in values):
        raise argparse.ArgumentTypeError(f"must be one or three numbers, got {text!r}")
    return values


def average(text: str) -> float:
    """A part that stays."""
    value = arguments.rate(text)
    if not value < 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to below 1, got {text!r}")
    return value


def schedule(text: str) -> str:
    """The text of a schedule; its steps may be left out."""
    from ...training.update import Update
    from ..train_options import whole

    try:
        Update(schedule=whole(text, 10**9))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("schedule=")) from error
    return text
