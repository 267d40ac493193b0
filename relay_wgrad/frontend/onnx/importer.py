"""The driver: an ONNX model to a `TrainingGraph`, node by node through the table of builders."""

from __future__ import annotations

import math
import operator
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import onnx
from onnx import helper
from tvm import relax

from ...dtypes import FLOATS
from ..choices import OF_ONNX, check_choices
from ..context import Context, Options, Value
from ..graph import InputSpec, TrainingGraph
from ..loss import CrossEntropy, Loss, loss_of
from ..loss_graph import add_loss
from ..sizes import NAME, Open, at, is_open, limited, variable
from ..trainable import Choice, Patterns
from ..weights import STATES, Array, Role, default_role, seeded
from .file import NUMBERS
from .model_source import load
from .node import Node, initializer
from .nodes import MOST_ELEMENTS, build, is_weight, nothing_makes
from .walk import before_softmax, joined, needed, output_name

OLDEST_OPSET = 9


def from_onnx(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    batch: int | str | None = None,
    image_size: int | tuple[int, int] | None = None,
    dtype: str = "float32",
    bn: str = "train",
    loss: str | Loss = "cross_entropy",
    weights: str = "seeded",
    seed: int = 0,
    dropout: str | None = None,
    random: str = "input",
    output: str | None = None,
    checkpoint: str | Sequence[str] | None = None,
    trainable: Patterns = None,
    freeze: Patterns = None,
) -> TrainingGraph:
    """The training graph of an ONNX model.

    `model`: a path, a ModelProto, or a name in `BUNDLED`.  `batch` and `image_size` (a side, or
    (height, width)) replace the sizes for which the file was made: a batch of "N" is any, one
    compiled step for all of them, as is None where the file leaves it open.  Batches baked into a
    Reshape are rewritten, and an average pooling over the whole feature map stays one over it.
    `bn`: "train" normalizes by batch statistics and returns the updated running ones, "eval" uses
    the running ones, "frozen" those, which then stay, where a layer's scale and bias are not
    trained.  `loss`: of `relay_wgrad.frontend.LOSSES`, by its record or as text with its
    options: "cross_entropy" (int64 labels (N,), or of each pixel; a final Softmax is removed and
    the mean taken), "mse", "l1", "huber(delta=2)", … (against a target of the output's shape).
    `weights`: "seeded" (He's normal weights, zero biases, unit scales; by `seed`), "initial" (the
    file's) or "auto": the file's if it has any (a weight that is not one constant), else seeded;
    the graph's `weights` says which.
    `dropout`: None multiplies by masks, which are inputs of `main` (`TrainingGraph.random_batch`
    draws them), at the nodes whose `training_mode` is set, "mask" at all; "off" makes all the
    identity, as does None with bn="eval", which evaluates; the graph's `notes` say where it is.
    `random`: Random* and Bernoulli are
    "input"s of `main` too, or "off", their means, which the graph's `notes` say.  `output` picks
    one of several outputs.
    `checkpoint`: None keeps every intermediate result for the backward part; "auto", or names of
    node outputs, keeps those only and computes the others again (`TrainingGraph.checkpointed`).
    `trainable`, `freeze`: patterns of parameters' names, as of `TrainingGraph.partial`: what is
    trained, by default all, and what of it is not.

    Raises FileNotFoundError; ValueError for what is not an ONNX model, for an op that the table
    lacks, for a node that cannot be built at these sizes (named, with the reason), and for an
    option's unknown value, for an input too large to address; TypeError for a `model` or `batch` of
    another type.
    """
    given = {"dtype": dtype, "bn": bn, "weights": weights, "dropout": dropout, "random": random}
    check_choices(given, OF_ONNX, checkpoint, "node outputs")
    is_any = isinstance(batch, str) and batch == NAME
    if batch is not None and not is_any:
        if isinstance(batch, bool) or not hasattr(batch, "__index__"):
            raise TypeError(f"batch={batch!r}: expected a number of images, or {NAME!r}")
        batch = operator.index(cast(Any, batch))
    if isinstance(batch, int) and batch < 1:
        raise ValueError(f"batch={batch}: expected a positive number of images")
    chosen, choice = loss_of(loss), Choice.from_patterns(trainable, freeze)
    assert isinstance(chosen, Loss)
    name, proto = load(model)
    opset = opset_of(name, proto)
    original = _original_shapes(proto)
    initial = {t.name: initializer(proto, t) for t in proto.graph.initializer}
    wanted = output_name(name, proto, output)
    if isinstance(chosen, CrossEntropy):
        wanted = before_softmax(proto, wanted, opset, original.get(wanted))
    nodes = needed(proto, wanted)
    specs = _inputs(proto, set(initial), nodes, batch, image_size, dtype)
    made_for = [original.get(old, ())[2:] for old in specs]
    resized = any(
        made != spec.shape[2:] for made, spec in zip(made_for, specs.values(), strict=True)
    )
    size = " at " + "x".join(map(str, made_for[0])) if made_for[0] else ""

    dropout = dropout or ("off" if bn == "eval" else "file")
    options = Options(dtype, bn, dropout, opset, resized, size, random, choice)
    ctx = Context(options, relax.BlockBuilder(), original)
    ctx.joined = joined(nodes, wanted)
    ctx.batch = variable() if any(is_open(spec.shape) for spec in specs.values()) else None
    values = {n: Value(n, array=a, weight=is_weight(a)) for n, a in initial.items()}
    arguments: list[tuple[InputSpec, relax.Var]] = []
    for old, spec in specs.items():
        spec, var = ctx.input(spec.name, spec.kind, spec.shape, spec.dtype)
        arguments.append((spec, var))
        values[old] = Value(old, expr=var, batched=True)

    classes: int | None = None

    def body() -> tuple[list[Any], list[Any]]:
        nonlocal classes
        for node in nodes:
            build(ctx, proto, node, values)
        if wanted not in values:
            raise ValueError(f"{name}: no node makes the output {wanted!r}")
        result = ctx.tensor(values[wanted])
        target, logits, scalar, classes = add_loss(ctx, chosen, wanted, result)
        arguments.extend([target, *ctx.masks])
        params = [var for _, var in arguments] + list(ctx.parameters.values())
        return [scalar, logits, *(new for _, new in ctx.states)], params

    module = ctx.main(body)
    inference = " by the file, which has it for inference: dropout='mask' draws masks"
    ctx.note_dropout(ctx.kept_whole, inference if dropout == "file" else "")
    roles = {n: ctx.roles.get(n, default_role(tuple(a.shape))) for n, a in ctx.initial.items()}
    if weights == "auto":
        weights = "initial" if _trained(ctx.initial, roles) else "seeded"
    graph = ctx.training_graph(
        ("loss", "logits"),
        arguments,
        checkpoint,
        name=name,
        module=limited(module, name, ctx.limits),
        params=_params(ctx, roles, weights, seed),
        trainable=tuple(n for n, role in roles.items() if role.kind not in STATES),
        classes=classes,
        tensors={
            n: str(v.expr.name)
            for n, v in values.items()
            if isinstance(v.expr, relax.DataflowVar) and v.batched
        },
        weights=weights,
        notes=(*ctx.notes, *_shared(ctx, nodes, roles)),
        loss=chosen,
    )
    graph.checkpointed()  # raises for a name that cannot be one
    return graph


# ---- the file --------------------------------------------------------------------------------


def opset_of(name: str, proto: onnx.ModelProto) -> int:
    """Of ONNX's own operators.  Raises ValueError for one that is too old, or newer than `onnx`."""
    versions = [int(o.version) for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    opset = max(versions, default=0)
    if opset < OLDEST_OPSET:
        raise ValueError(
            f"{name} uses opset {opset}; {OLDEST_OPSET} is the oldest supported: "
            "convert it with onnx.version_converter"
        )
    newest = onnx.defs.onnx_opset_version()
    if opset > newest:
        raise ValueError(
            f"{name} uses opset {opset}; onnx {onnx.__version__} knows up to {newest}: convert it "
            "with onnx.version_converter, or upgrade onnx"
        )
    return opset


def _static_shape(info: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    if not all(d.HasField("dim_value") and d.dim_value > 0 for d in tensor.shape.dim):
        return None
    return tuple(int(d.dim_value) for d in tensor.shape.dim)


def _original_shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes at the sizes the file was made for, as far as ONNX can infer them."""
    try:
        graph = onnx.shape_inference.infer_shapes(proto).graph
    except Exception:  # of any kind: too large, or inconsistent, which building it will name
        graph = proto.graph
    shapes = {}
    for info in (*graph.input, *graph.value_info, *graph.output):
        if (shape := _static_shape(info)) is not None:
            shapes[info.name] = shape
    return shapes


def _inputs(
    proto: onnx.ModelProto,
    initializers: set[str],
    nodes: Sequence[onnx.NodeProto],
    batch: int | str | None,
    image_size: int | tuple[int, int] | None,
    dtype: str,
) -> dict[str, InputSpec]:
    """The data inputs that the nodes use, at the new batch and image size."""
    used = {operand for node in nodes for operand in node.input}
    specs: dict[str, InputSpec] = {}
    names: set[str] = set()  # of batches that the file leaves open
    for info in proto.graph.input:
        if info.name in initializers or info.name not in used:
            continue
        tensor = info.type.tensor_type
        sizes: list[Any] = [
            int(d.dim_value) if d.dim_value > 0 else d.dim_param or "?" for d in tensor.shape.dim
        ]
        if batch is not None and sizes:
            sizes[0] = Open() if batch == NAME else batch
        elif sizes and isinstance(sizes[0], str):
            names.add(sizes[0])
            sizes[0] = Open()
        if image_size is not None:
            if len(sizes) != 4:
                raise ValueError(f"image_size: input {info.name!r} {sizes} is no (N, C, H, W)")
            pair = (image_size, image_size) if isinstance(image_size, int) else image_size
            if len(pair) != 2 or min(pair) < 1:
                raise ValueError(f"image_size={image_size!r}: expected a side or (height, width)")
            sizes[2:] = pair
        if not sizes:
            raise ValueError(f"input {info.name!r} has no shape in the file")
        _refuse_symbolic(info.name, sizes)
        if tensor.elem_type not in NUMBERS:
            raise ValueError(f"input {info.name!r} is no tensor of numbers")
        kind = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        floating = str(kind) in FLOATS
        shape = tuple(size if isinstance(size, Open) else int(size) for size in sizes)
        least = at(shape, 1)
        if math.prod(least) > MOST_ELEMENTS:
            fits = MOST_ELEMENTS // math.prod(least[1:])
            most = f"; at this image size the largest batch is {fits}" if fits else ""
            raise ValueError(
                f"input {info.name!r} of {list(shape)} has more than {MOST_ELEMENTS} elements,"
                f" the most that is supported{most}"
            )
        specs[info.name] = InputSpec(info.name, "data", shape, dtype if floating else str(kind))
    if len(names - {"?"}) > 1:
        raise ValueError(
            f"its inputs have batches of several names, {', '.join(sorted(names))}: give batch= a"
            f" number, or {NAME!r} for one that all have"
        )
    if not specs:
        inner = next((node for node in nodes if any(map(_is_graph, node.attribute))), None)
        if inner is not None:  # whose graphs take what is around them without naming it
            view = Node(inner, [], {})
            raise ValueError(f"ONNX op {inner.op_type:.80} ({view.label}) is not supported")
        made = initializers.union(*(node.output for node in proto.graph.node), [""])
        for node in nodes:
            if lost := [operand for operand in node.input if operand not in made]:
                label = Node(node, [], {}).label
                raise ValueError(f"{label}: {nothing_makes(proto, lost[0])}")
        raise ValueError("the model has no data input: its output depends on constants alone")
    return specs


def _is_graph(attribute: onnx.AttributeProto) -> bool:
    return attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def _refuse_symbolic(name: str, sizes: list[Any]) -> None:
    """Raises ValueError for sizes that the file leaves open, saying how to give them."""
    image = (2, 3) if len(sizes) == 4 else ()
    unknown = {axis for axis, size in enumerate(sizes) if isinstance(size, str)}
    needed = ["image_size="] if unknown.intersection(image) else []
    fixed = [sizes[axis] for axis in sorted(unknown.difference((0, *image)))]
    ways = [f"give {' and '.join(needed)}"] if needed else []
    ways += [f"fix {', '.join(fixed)} in the file"] if fixed else []
    if ways:
        raise ValueError(f"input {name!r} has symbolic sizes {sizes}: {'; '.join(ways)}")


# ---- weights ---------------------------------------------------------------------------------


def _params(ctx: Context, roles: dict[str, Role], weights: str, seed: int) -> dict[str, Array]:
    dtype = ctx.options.dtype
    try:
        return {
            n: seeded(ctx.onnx_names[n], tuple(a.shape), roles[n], seed, dtype)
            if weights == "seeded"
            else np.array(a, dtype=dtype)
            for n, a in ctx.initial.items()
        }
    except MemoryError as error:  # a constant's shape is one line of a file
        size = sum(a.size for a in ctx.initial.values()) * np.dtype(dtype).itemsize
        raise ValueError(
            f"parameters of {size / 2**30:.1f} GiB are more than memory has"
        ) from error


def _shared(ctx: Context, nodes: Sequence[onnx.NodeProto], roles: dict[str, Role]) -> list[str]:
    """A line for each trained parameter that several nodes take: some exporters make one of those
    that are equal, as all scales are before a training."""
    users = Counter(operand for node in nodes for operand in set(node.input))
    return [
        f"{file!r} is one parameter of {users[file]} nodes, and trained as one"
        for name, file in ctx.onnx_names.items()
        if users[file] > 1 and roles[name].kind not in STATES
    ]


def _trained(initial: dict[str, Array], roles: dict[str, Role]) -> bool:
    """Whether a file has weights; those of an architecture alone are filled with one constant."""
    weights = (a for name, a in initial.items() if roles[name].kind == "weight" and a.size > 1)
    return any(a.min() != a.max() for a in weights)
