"""ONNX files for any number of images: open ones as they are, others by `batch="N"`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional as fn

from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.frontend.sizes import Open
from relay_wgrad.training.step import ADJOINT, step_module
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

pytestmark = pytest.mark.usefixtures("registered")

BATCHES = (1, 2, 3, 7)


def model(batch: Any = "n", extra: Any = ()) -> onnx.ModelProto:
    """Convolution, normalization, dropout, shapes that are worked out, a sum with a row for each
    image, a division by their number, a dense layer; or its output is what `extra` makes of it."""
    rng = np.random.default_rng(0)
    node = helper.make_node
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)), "scale": rng.random(4) + 0.5,
        "shift": rng.standard_normal(4), "mean": np.zeros(4), "var": np.ones(4),
        "four": np.ones((4, 5)), "dense": rng.standard_normal((144, 5)),
        "row": rng.standard_normal((1, 144)),
    }  # fmt: skip
    integers = {"zero": 0, "by": 1, "one": [1], "rest": [-1], "axis": [0], "wide": [144]}
    ratio = numpy_helper.from_array(np.float32(0.4), "ratio")
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["b"]),
        node("Relu", ["b"], ["r"]),
        node("Dropout", ["r", "ratio"], ["d"]),
        node("Shape", ["d"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Unsqueeze", ["n", "axis"], ["n1"]),
        node("Concat", ["n1", "rest"], ["target"], axis=0),
        node("Reshape", ["d", "target"], ["flat"]),
        node("Concat", ["n1", "wide"], ["rows"], axis=0),
        node("Expand", ["row", "rows"], ["e"]),
        node("Add", ["flat", "e"], ["a"]),
        node("Cast", ["n"], ["count"], to=TensorProto.FLOAT),
        node("Div", ["a", "count"], ["share"]),
        node("Add", ["a", "share"], ["sum"]),
        node("MatMul", ["sum", "dense"], ["y"]),
        *extra,
    ]
    held = [numpy_helper.from_array(v.astype("float32"), n) for n, v in weights.items()]
    held += [numpy_helper.from_array(np.array(v, "int64"), n) for n, v in integers.items()]
    out = "z" if extra else "y"
    graph = helper.make_graph(
        nodes, "mine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 6, 6])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)], [*held, ratio],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def logits(p: dict[str, torch.Tensor], batch: Any, count: int, mask: Any = 1.0) -> torch.Tensor:
    """The model's y."""
    c = fn.conv2d(torch.tensor(batch["x"]), p["w"], padding=1)
    b = fn.batch_norm(c, None, None, p["scale"], p["shift"], training=True)
    flat = (b.relu() * mask).reshape(count, -1) + p["row"]
    return (flat + flat / count) @ p["dense"]


def stepped(graph: TrainingGraph, vm: Any, count: int) -> tuple[Any, ...]:
    """(a batch of so many images, the step's outputs and gradients of it, PyTorch's parameters by
    their names in the file, those that are trained)."""
    batch = graph.random_batch(count, count)
    outputs, gradients = vm[ADJOINT](*map(tvm.runtime.tensor, graph.arguments(batch)))
    p = {graph.onnx_names[n]: torch.tensor(v) for n, v in graph.params.items()}
    wanted = [p[graph.onnx_names[n]].requires_grad_() for n in graph.trainable]
    return batch, outputs, gradients, p, wanted


def difference(graph: TrainingGraph, vm: Any, count: int) -> float:
    """As of `open_cases`, of the model above."""
    batch, outputs, gradients, p, wanted = stepped(graph, vm, count)
    mask = next(v for s, v in zip(graph.inputs, batch.values(), strict=True) if s.kind == "mask")
    made = logits(p, batch, count, torch.tensor(mask))
    loss = fn.cross_entropy(made, torch.tensor(batch["labels"]))
    found = torch.autograd.grad(loss, wanted)
    c = fn.conv2d(torch.tensor(batch["x"]), p["w"], padding=1)
    mean = 0.1 * c.mean((0, 2, 3)) + 0.9 * p["mean"]
    pairs = [(outputs[0].numpy(), loss.detach().numpy())]
    pairs += [(a.numpy(), b.numpy()) for a, b in zip(gradients, found, strict=True)]
    pairs.append((outputs[2].numpy(), mean.detach().numpy()))
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


@pytest.mark.longer_cases("None", why="a file of four images stays")
@pytest.mark.parametrize("batch", [None, "N"])
def test_value_and_gradient(batch: str | None) -> None:
    """Of an open file as it is, and of one for four images."""
    proto = model("images" if batch is None else 4)
    options: Any = {"dtype": "float64", "dropout": "mask", "weights": "initial"}
    graph = from_onnx(proto, batch=batch, **options)
    assert graph.inputs[0].shape == (Open(), 3, 6, 6)
    assert graph.of_batch(3).inputs == from_onnx(proto, batch=3, **options).inputs
    vm = virtual_machine(step_module(graph), FAST)
    for count in BATCHES:
        assert difference(graph, vm, count) < 1e-12, count


NODE = helper.make_node
VIEWS = [NODE("Sin", ["y"], ["u"]), NODE("Concat", ["y", "u"], ["two"], axis=0)]
PARTS = {
    "equal parts": [*VIEWS, NODE("Split", ["two"], ["p", "q"], axis=0)],
    "sizes": [
        *VIEWS, NODE("Concat", ["n1", "n1"], ["sizes"], axis=0),
        NODE("Split", ["two", "sizes"], ["p", "q"], axis=0),
    ],
    "slices": [
        *VIEWS, NODE("Slice", ["two", "axis", "n1", "axis"], ["p"]),
        NODE("Slice", ["two", "n1", "end", "axis"], ["q"]),
    ],
    "negative": [
        *VIEWS, NODE("Neg", ["n1"], ["minus"]), NODE("Slice", ["two", "axis", "minus"], ["p"]),
        NODE("Slice", ["two", "minus", "end"], ["q"]),
    ],
    "copies": [
        NODE("Tile", ["y", "twice"], ["two"]), NODE("Split", ["two"], ["p", "same"], axis=0),
        NODE("Sin", ["same"], ["q"]),
    ],
}  # fmt: skip
"""Two views along the batch, and back: y and sin(y)."""


@pytest.mark.longer_cases("images-sizes", "images-negative", "images-copies")
@pytest.mark.parametrize(("batch", "parts"), [("images", p) for p in PARTS] + [(4, "slices")])
def test_views_along_the_batch(batch: Any, parts: str) -> None:
    more = {"end": [2**62], "twice": [2, 1]}
    proto = model(batch, [*PARTS[parts], NODE("Sub", ["p", "q"], ["z"])])
    proto.graph.initializer.extend(numpy_helper.from_array(np.array(v), n) for n, v in more.items())
    given: Any = {"dtype": "float64", "weights": "initial", "loss": "mse"}
    graph = from_onnx(proto, batch=None if batch == "images" else "N", **given)
    vm = virtual_machine(step_module(graph), FAST)
    for count in (1, 3):
        batch, outputs, gradients, p, wanted = stepped(graph, vm, count)
        y = logits(p, batch, count)
        loss = fn.mse_loss(y - y.sin(), torch.tensor(batch["target"]))
        assert float(outputs[0].numpy()) == pytest.approx(loss.item(), rel=1e-12)
        for a, b in zip(gradients, torch.autograd.grad(loss, wanted), strict=True):
            assert np.linalg.norm(a.numpy() - b.numpy()) < 1e-12 * np.linalg.norm(b.numpy())


@pytest.mark.parametrize(("sizes", "taken"), [([4, 4], True), ([2, 6], False)])
@pytest.mark.parametrize("batch", ["N", 6])
def test_equal_parts_of_the_files_batch(batch: Any, sizes: list[int], taken: bool) -> None:
    """What a file says of its own four images is of as many as are given; another part is not."""
    held = {"w": np.ones((4, 3, 3, 3), "float32"), "sizes": np.array(sizes)}
    nodes = [
        NODE("Conv", ["x", "w"], ["c"]), NODE("Sin", ["c"], ["s"]),
        NODE("Concat", ["c", "s"], ["two"], axis=0),
        NODE("Split", ["two", "sizes"], ["p", "q"], axis=0), NODE("Relu", ["p"], ["z"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "mine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3, 6, 6])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, n) for n, v in held.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    if taken:
        made = from_onnx(proto, batch=batch, loss="mse")
        assert made.inputs[1].shape[0] == made.inputs[0].shape[0]
    else:
        with pytest.raises(ValueError, match=r"sizes \[2, 6\] do not split an axis of (2N|12)"):
            from_onnx(proto, batch=batch, loss="mse")


REFUSED = {
    "a fixed operand": (
        [helper.make_node("Add", ["y", "four"], ["z"])],
        "Add node 'z': its operands fit each other for one number of images alone; the batch",
    ),
    "one image": (
        [helper.make_node("Gather", ["y", "zero"], ["z"], axis=0)],
        "Gather node 'z': it wants a number; the batch is open here: a batch= of a number",
    ),
    "a part": (
        [helper.make_node("Slice", ["y", "one", "wide", "axis"], ["z"])],
        "Slice node 'z': a part of the batch is taken; the batch is open here",
    ),
    "another number": (
        [helper.make_node("Add", ["n1", "one"], ["m"]),
         helper.make_node("Concat", ["m", "rest"], ["t"], axis=0),
         helper.make_node("Reshape", ["y", "t"], ["z"])],
        "Reshape node 'z': it takes a number that is no multiple of the batch; the batch is open",
    ),
    "as many elements": (
        [helper.make_node("Range", ["zero", "n", "by"], ["i"]),
         helper.make_node("Add", ["y", "i"], ["z"])],
        "Add node 'z': 'i' has as many elements as the batch has images; the batch is open",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("extra", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(extra: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_onnx(model(extra=extra))


@pytest.mark.parametrize("slope", [(3, 1, 1), (1,), ()])
def test_slopes_of_an_open_batch(slope: tuple[int, ...]) -> None:
    """NumPy's rules of broadcasting want numbers, and the batch is none."""
    held = numpy_helper.from_array(np.full(slope, 0.25, "float32"), "w")
    graph = helper.make_graph(
        [NODE("PRelu", ["x", "w"], ["z"])], "mine",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3, 6, 6])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)], [held],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    given: Any = {"dtype": "float64", "weights": "initial", "loss": "mse"}
    vm = virtual_machine(step_module(found := from_onnx(proto, batch="N", **given)), FAST)
    for count in (1, 3):
        batch, outputs, _, p, _ = stepped(found, vm, count)
        y = fn.prelu(torch.tensor(batch["x"]), p["w"].reshape(-1))
        loss = fn.mse_loss(y, torch.tensor(batch["target"]))
        assert float(outputs[0].numpy()) == pytest.approx(loss.item(), rel=1e-12)


def strided(batch: Any, inner: list[int] | None = None) -> onnx.ModelProto:
    """Means over images whose channels lie last: `torch.onnx` writes `as_strided` behind them, a
    Gather of all elements in order; of an open batch the places are made of `Range`."""
    rng, node, count = np.random.default_rng(0), helper.make_node, 4
    weights = {"w": rng.standard_normal((4, 3, 3, 3)), "dense": rng.standard_normal((4, 5))}
    inner = list(range(count)) if inner is None else inner
    integers: dict[str, Any] = {"rest": [-1], "flatten": [0, -1], "channel": [inner]}
    if isinstance(batch, str):
        integers |= {"zero": 0, "by": 1, "four": count, "behind": [1], "ends": [2, 3]}
        places = [
            node("Shape", ["x"], ["size"]), node("Gather", ["size", "zero"], ["n"]),
            node("Range", ["zero", "n", "by"], ["i"]), node("Mul", ["i", "four"], ["first"]),
            node("Unsqueeze", ["first", "behind"], ["column"]),
            node("Add", ["column", "channel"], ["both"]),
            node("Unsqueeze", ["both", "ends"], ["places"]),
        ]  # fmt: skip
    else:
        first = np.arange(batch)[:, None] * count
        integers["places"], places = (first + np.array([inner])).reshape(batch, count, 1, 1), []
    nodes = [
        node("Conv", ["x", "w"], ["c"]), node("ReduceMean", ["c"], ["m"], axes=[2, 3]),
        node("Reshape", ["m", "rest"], ["flat"]), *places,
        node("Gather", ["flat", "places"], ["g"], name="as_strided"),
        node("Reshape", ["g", "flatten"], ["r"]), node("MatMul", ["r", "dense"], ["y"]),
    ]  # fmt: skip
    held = [numpy_helper.from_array(v.astype("float32"), n) for n, v in weights.items()]
    held += [numpy_helper.from_array(np.array(v, "int64"), n) for n, v in integers.items()]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "mine", [info("x", TensorProto.FLOAT, [batch, 3, 6, 6])],
        [info("y", TensorProto.FLOAT, None)], held,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])


@pytest.mark.share(5)
@pytest.mark.parametrize(("of_file", "batch"), [("n", None), (2, "N"), (2, 4), (2, 1)])
def test_another_stride_is_every_image(of_file: Any, batch: Any) -> None:
    """Of more images than the file had, the first ones alone were once taken."""
    options: Any = {"dtype": "float64", "weights": "initial", "loss": "mse"}
    graph = from_onnx(strided(of_file), batch=batch, **options)
    vm = virtual_machine(step_module(graph), FAST)
    for count in BATCHES if graph.is_open else [batch]:
        given = graph.random_batch(count, count if graph.is_open else None)
        outputs, gradients = vm[ADJOINT](*map(tvm.runtime.tensor, graph.arguments(given)))
        p = {graph.onnx_names[n]: torch.tensor(v) for n, v in graph.params.items()}
        wanted = [p[graph.onnx_names[n]].requires_grad_() for n in graph.trainable]
        logits = fn.conv2d(torch.tensor(given["x"]), p["w"]).mean((2, 3)) @ p["dense"]
        assert logits.shape == (count, 5)
        loss = ((logits - torch.tensor(given["target"])) ** 2).mean()
        pairs = [
            (outputs[0], loss),
            *zip(gradients, torch.autograd.grad(loss, wanted), strict=True),
        ]
        for got, want in pairs:
            a, b = got.numpy(), want.detach().numpy()
            assert np.linalg.norm(a - b) < 1e-12 * np.linalg.norm(b), count


@pytest.mark.parametrize(("of_file", "batch"), [("n", None), (2, "N"), (2, 4)])
def test_places_of_a_files_batch_are_refused(of_file: Any, batch: Any) -> None:
    with pytest.raises(ValueError, match="Gather node 'as_strided': its indices are of a batch of"):
        from_onnx(strided(of_file, [1, 0, 2, 3]), batch=batch)


def test_options() -> None:
    with pytest.raises(TypeError, match="batch='M': expected a number of images, or 'N'"):
        from_onnx(model(), batch="M")
    proto = model()
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "rows"
    with pytest.raises(ValueError, match=r"symbolic sizes .*: give image_size="):
        from_onnx(proto)
