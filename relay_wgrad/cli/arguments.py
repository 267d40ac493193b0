"""What the commands' options mean: types of arguments, and the options that say which graph."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ..backend_names import STOCK
from ..frontend.choices import BN, DROPOUT, RANDOM
from ..problem import DTYPES, ConvProblem

if TYPE_CHECKING:
    import tvm

    from ..frontend import TrainingGraph

LOSS = "cross_entropy"  # by default
BATCH = 4  # where none is given: a file may leave it open
PT2 = ".pt2"  # how the file of an exported PyTorch program ends


class WrongArgumentsError(ValueError):
    """Options that do not go together, or not with what they name: exit code 2."""


class Parser(argparse.ArgumentParser):
    """Errors in one line, behind which it says where to read more: the usage is long."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see `{self.prog} --help`)\n")


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, except where there is none and the text says what happens then.

    Descriptions and examples keep their lines.
    """

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if isinstance(action.default, tuple):
            return f"{action.help} (default: {','.join(action.default)})"
        nothing = action.default is None or action.default is False or action.default == ""
        return action.help if nothing else super()._get_help_string(action)


def integer(least: int) -> Callable[[str], int]:
    """A type of arguments: an integer that is no smaller."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 300 or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be an integer of at least {least}, got {text!r}"
            )
        return int(text)

    return parse


positive, seed = integer(1), integer(0)


def _number(text: str, what: str, least: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}")
    return value


def rate(text: str) -> float:
    """A positive number."""
    return _number(text, "a positive number", math.ulp(0.0))


def part(text: str) -> float:
    """A number from 0 on, of which 0 is none."""
    return _number(text, "a number from 0 on", 0.0)


def loss_scale(text: str) -> float | str:
    """`dynamic` or a positive number."""
    return text if text == "dynamic" else rate(text)


def loss(text: str) -> str:
    """The text of a loss that there is."""
    from ..frontend.loss import loss_of

    try:
        return str(loss_of(text, "own"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("loss=")) from error


def patterns(text: str) -> str:
    """Patterns joined by commas."""
    if not text.replace(",", " ").strip():
        raise argparse.ArgumentTypeError(f"must be patterns of parameters' names, got {text!r}")
    return text


def dtype(text: str) -> str:
    """A dtype's short or long name."""
    if text not in DTYPES and text not in DTYPES.values():
        raise argparse.ArgumentTypeError(f"must be one of {', '.join(DTYPES)}, got {text!r}")
    return DTYPES.get(text, text)


def checkpoint(text: str) -> str | list[str] | None:
    """`none`, `auto`, or names."""
    if text in ("none", "auto"):
        return None if text == "none" else text
    return _names(text)


def _names(text: str) -> list[str]:
    """What commas join, without the blanks around each."""
    return [name.strip() for name in text.split(",") if name.strip()]


def backends(text: str) -> tuple[str, ...]:
    """Names of backends, the preferred first."""
    return choices(*_backends())(text)


def backends_or_tvm(text: str) -> tuple[str, ...]:
    """Names of backends, and `tvm` for what TVM's own kernels would be."""
    return choices(*_backends(), STOCK)(text)


def _backends() -> list[str]:
    """The backends' names, with those that this process has registered.  Before their records are
    loaded, which loads TVM, there are the package's own, named as their folders are."""
    loaded = sys.modules.get("byoc_cudnn.table")
    if loaded is not None:
        return sorted(loaded.BACKENDS)
    spec = find_spec("byoc_cudnn")
    places = (spec.submodule_search_locations or ()) if spec is not None else ()
    found = (path for place in places for path in Path(place).glob("backends/*/__init__.py"))
    return sorted(path.parent.name for path in found)


def choices(*names: str) -> Callable[[str], tuple[str, ...]]:
    """A type of arguments: some of the names, joined by commas."""

    def parse(text: str) -> tuple[str, ...]:
        given = tuple(dict.fromkeys(_names(text)))
        if not given or any(name not in names for name in given):
            raise argparse.ArgumentTypeError(f"must be some of {', '.join(names)}, got {text!r}")
        return given

    return parse


def bundled() -> str:
    """The networks by name; `env` must work, and say so, where onnx is missing."""
    try:
        from ..frontend import BUNDLED
    except ImportError:
        return "a network that the onnx package ships"
    return f"one of {', '.join(BUNDLED)}"


def ending(*known: str) -> Callable[[str], str]:
    """A type of arguments: a file's name with one of these endings, in any case."""

    def parse(text: str) -> str:
        if Path(text).suffix.lower() not in known:
            raise argparse.ArgumentTypeError(f"must end in {' or '.join(known)}, got {text!r}")
        return text

    return parse


def problem_argument(line: str) -> ConvProblem:
    """A problem's line."""
    try:
        return ConvProblem.parse(line)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_graph(
    parser: argparse.ArgumentParser, model: str | None = None, *, batch: int = BATCH
) -> None:
    """The model, and how its training graph is made; `model` and `batch` are the defaults."""
    one = {"nargs": "?", "default": model} if model is not None else {}
    parser.add_argument("model", metavar="MODEL", **one,  # type: ignore[arg-type]
                        help="an .onnx file, a .pt2 file of torch.export.save, or"
                             f" {bundled()}")  # fmt: skip
    parser.add_argument("--batch", type=positive, default=None,
                        help=f"images in the batch (default: {batch}; of a .pt2 file its"
                             " own)")  # fmt: skip
    parser.set_defaults(default_batch=batch, weights="seeded")
    parser.add_argument("--image-size", type=positive, default=None,
                        help="height and width; the model's own if not given; the fully connected"
                             " layers of alexnet, vgg19 and zfnet512 take no other")  # fmt: skip
    parser.add_argument("--loss", type=loss, default=LOSS, metavar="LOSS",
                        help="cross_entropy: logits (N, classes) against labels, or (N, classes,"
                             " H, W) against pixels'; mse, l1, smooth_l1, huber, bce_with_logits: a"
                             " target of the output's shape; with options as"
                             " 'cross_entropy(label_smoothing=0.1, ignore_index=255)'; own: a .pt2"
                             " file's scalar output")  # fmt: skip
    parser.add_argument("--output-name", metavar="NAME",
                        help="the result that the loss is of, where the model has several; of a"
                             " .pt2 file its number")  # fmt: skip
    parser.add_argument("--bn", choices=BN, default="train",
                        help="batch normalization: batch or running statistics, or running ones"
                             " where a layer's parameters are not trained")  # fmt: skip
    parser.add_argument("--train", dest="trainable", type=patterns, metavar="NAMES",
                        help="train these parameters alone: patterns of names, or of layers, joined"
                             " by commas, as 'layer4.*,fc'; the rest is neither differentiated nor"
                             " kept")  # fmt: skip
    parser.add_argument("--freeze", type=patterns, metavar="NAMES",
                        help="do not train these, as 'conv1,bn*'")  # fmt: skip
    parser.add_argument("--dtype", type=dtype, default="float32", metavar="{f32,f16,bf16,f64}",
                        help="f16 and bf16 are mixed precision: half-precision operands of"
                             " convolutions and matrix products, float32 for all else")  # fmt: skip
    parser.add_argument("--layout", choices=("NCHW", "NHWC"), default="NCHW",
                        help="of activations, in the whole training graph")  # fmt: skip
    parser.add_argument("--checkpoint", type=checkpoint, default=None, metavar="{none,auto,A,B,…}",
                        help="recompute intermediate results instead of keeping them: between"
                             " automatically chosen tensors, or the named ones")  # fmt: skip
    parser.add_argument("--dropout", choices=DROPOUT, default=None,
                        help="mask: seeded random masks; off: the identity; by default masks where"
                             " the model was exported for training, and none with"
                             " --bn eval")  # fmt: skip
    parser.add_argument("--random", choices=RANDOM, default="input",
                        help="other random ops (stochastic depth, noise) are drawn for each step,"
                             " or off: their mean")  # fmt: skip
    parser.add_argument("--seed", type=seed, default=0,
                        help="of random weights, batch and masks")  # fmt: skip


def graph_of(args: argparse.Namespace) -> TrainingGraph:
    """The training graph that the options of `add_graph` describe.

    Raises what `from_onnx` and `from_torch` raise, in the command line's spelling;
    WrongArgumentsError for sizes that a .pt2 file does not take.
    """
    try:
        return _exported(args) if Path(args.model).suffix == PT2 else _onnx(args)
    except WrongArgumentsError:
        raise
    except ValueError as error:
        raise ValueError(re.sub(_OPTION, _spelled, str(error))) from error


_OPTION = r"\b(batch|image_size|loss|output|bn|dropout|random|trainable|freeze)=(?:'([^']*)'|(\w*))"


def _spelled(found: re.Match[str]) -> str:
    name = {"output": "output-name", "trainable": "train"}.get(found[1], found[1].replace("_", "-"))
    return f"--{name} {found[2] or found[3] or ''}".rstrip()


def _onnx(args: argparse.Namespace) -> TrainingGraph:
    from ..frontend import from_onnx

    master = "float64" if args.dtype == "float64" else "float32"
    return from_onnx(
        args.model, batch=args.batch or args.default_batch, image_size=args.image_size,
        dtype=master, output=args.output_name, bn=args.bn, loss=args.loss,
        weights=args.weights, seed=args.seed,
        dropout=args.dropout, random=args.random, checkpoint=args.checkpoint,
        trainable=args.trainable, freeze=args.freeze,
    )  # fmt: skip


def step_of(args: argparse.Namespace, graph: TrainingGraph) -> tvm.IRModule:
    """The module of one training step of the graph, in the dtype and the layout of the options."""
    from ..training.step import converted, step_module

    module = step_module(graph, dtype=args.dtype, checkpoint=graph.checkpoint)
    return converted(module, args.layout)


def _exported(args: argparse.Namespace) -> TrainingGraph:
    """Of a file of `torch.export.save`: it has its parameters' dtype, and its sizes but for a batch
    that it leaves open."""
    from ..frontend import from_torch

    number = args.output_name or "0"
    if not number.isdecimal():
        raise WrongArgumentsError(
            f"--output-name of {args.model} is a number from 0 on, got {number!r}"
        )
    graph = from_torch(
        args.model, bn=args.bn, loss=args.loss, output=int(number), dropout=args.dropout,
        random=args.random, checkpoint=args.checkpoint, trainable=args.trainable,
        freeze=args.freeze,
    )  # fmt: skip
    if graph.is_open:
        graph = graph.of_batch(args.batch or args.default_batch)
    elif args.batch not in (None, graph.batch):
        raise WrongArgumentsError(
            f"{args.model} was exported with a batch of {graph.batch}, not {args.batch}"
        )
    if args.image_size is not None and graph.inputs[0].shape[2:] != (args.image_size,) * 2:
        size = "x".join(map(str, graph.inputs[0].shape[2:]))
        raise WrongArgumentsError(
            f"{args.model} was exported for images of {size}, not {args.image_size}"
        )
    return graph


def layout_of(layout: str, graph: TrainingGraph) -> str:
    """`--layout` with the axes that the graph's data have."""
    return layout.replace("HW", {3: "W", 5: "DHW"}.get(len(graph.inputs[0].shape), "HW"))


def vars_of(args: argparse.Namespace) -> dict[str, Any]:
    """The options as they were given, for reports: what JSON can hold."""
    plain = (str, int, float, bool, list, tuple, type(None))
    return {name: value for name, value in vars(args).items() if isinstance(value, plain)}
