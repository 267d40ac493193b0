"""What `train` takes."""

from __future__ import annotations

from typing import Any

from ...training.options import OPTIMIZERS, SELECT
from .. import arguments
from . import train_options

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
            "against the historical composite compiled by TVM's own rules; on a GPU the last\n"
            "step's loss and gradients against this CPU's."
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
    parser.add_argument("--weights", choices=("seeded", "initial"), default=None,
                        help="to start from: seeded random ones, or the file's; by default the"
                             " file's if it has any")  # fmt: skip
    train_options.add_data(parser)
    parser.add_argument("--lr", type=arguments.rate, default=None,
                        help="learning rate; by default 0.001, for adam(w) 0.0001, and a tenth of"
                             " that for networks without batch normalization")  # fmt: skip
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default=None,
                        help="momentum is sgd with a momentum of 0.9, adamw adam with a decay of"
                             " its own; by default sgd, or with --resume the saved"
                             " one")  # fmt: skip
    train_options.add_update(parser)
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
    parser.add_argument("--no-check", action="store_true",
                        help="leave out the comparison with the stock composite")  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--quiet", action="store_true", help="no progress display")
