"""Training graphs of ONNX Runtime, written by hand as its gradient builder writes them, against
PyTorch's autograd in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as fn
from onnx import helper

import byoc_cudnn
from relay_wgrad.frontend import from_onnx_training
from relay_wgrad.frontend.onnx.training_ops import TRAINING_OPS
from tests.support.gradient_calls import ops
from tests.support.onnx.models import F64, call, draw
from tests.support.onnx.training import Tape, model_of, ms, plain
from tests.support.problems import relative_error

pytestmark = pytest.mark.usefixtures("registered")


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> tuple[Any, list[np.ndarray]]:
    graph = from_onnx_training(model, dtype=F64)
    arguments = [*inputs.values(), *graph.state.values()]
    made = call(graph.module, "main", graph.arguments(arguments))
    return graph, [v.numpy() for v in graph.results(arguments, list(made))]


def agree(got: list[np.ndarray], wanted: list[Any], bound: float = 1e-12) -> None:
    for i, (have, want) in enumerate(zip(got, wanted, strict=True)):
        assert relative_error(have, np.asarray(want.detach())) < bound, i


def leaf(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array).requires_grad_(array.dtype == F64)


# ---- a whole step --------------------------------------------------------------------------------


def test_a_step() -> None:
    """Convolution in groups with bias, norm, ReLU, both poolings, a layer, the loss."""
    values = {
        "x": draw(3, 4, 9, 8), "y": np.array([2, 0, 4]), "w1": draw(6, 2, 3, 3, seed=1),
        "b1": draw(6, seed=2), "g": draw(6, seed=3), "b": draw(6, seed=4),
        "m": draw(6, seed=5), "v": draw(6, seed=6) ** 2, "w2": draw(5, 6, 2, 1, seed=7) / 3,
        "fc": draw(5, 20, seed=8), "fb": draw(5, seed=9), "one": np.asarray(1.0),
    }  # fmt: skip
    conv1 = {"group": 2, "strides": [1, 2], "pads": [1, 0, 2, 1], "kernel_shape": [3, 3]}
    conv2 = {"dilations": [2, 1]}
    maxima = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 0, 1]}
    means = {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 0, 1]}
    nodes = [
        plain("Conv", ["x", "w1", "b1"], ["c1"], **conv1),
        ms("BatchNormInternal", ["c1", "g", "b", "m", "v"], ["n", "m2", "v2", "sm", "si"],
           momentum=0.75, epsilon=0.5),
        plain("Relu", ["n"], ["r"]),
        plain("MaxPool", ["r"], ["p", "places"], **maxima),
        plain("Conv", ["p", "w2"], ["c2"], **conv2),
        plain("AveragePool", ["c2"], ["a"], **means),
        plain("Flatten", ["a"], ["f"]),
        plain("Gemm", ["f", "fc", "fb"], ["z"], transB=1),
        plain("SoftmaxCrossEntropyLoss", ["z", "y"], ["loss", "logs"], reduction="mean"),
        ms("SoftmaxCrossEntropyLossGrad", ["one", "logs", "y"], ["z_grad"], reduction="mean"),
        plain("Gemm", ["z_grad", "fc"], ["f_grad"]),
        plain("Gemm", ["z_grad", "f"], ["fc_grad"], transA=1),
        plain("ReduceSum", ["z_grad", "zero"], ["fb_grad"], keepdims=0),
        plain("Shape", ["a"], ["a_shape"]),
        plain("Reshape", ["f_grad", "a_shape"], ["a_grad"]),
        ms("AveragePoolGrad", ["a_grad"], ["c2_grad"], **means),
        ms("ConvGrad", ["c2_grad", "p", "w2"], ["p_grad", "w2_grad"], **conv2),
        ms("MaxPoolGrad", ["p_grad", "places"], ["r_grad"], **maxima),
        ms("ReluGrad", ["r_grad", "r"], ["n_grad"]),
        ms("BatchNormalizationGrad", ["n_grad", "c1", "g", "sm", "si"],
           ["c1_grad", "g_grad", "b_grad"], epsilon=0.5),
        ms("ConvGrad", ["c1_grad", "x", "w1"], ["", "w1_grad", "b1_grad"], **conv1),
    ]  # fmt: skip
    wrt = ["w1", "g", "b", "w2", "fc", "fb"]
    leaves = {n: leaf(v) for n, v in values.items()}
    x, _, w1, b1, g, b, m, v, w2, fc, fb, _ = leaves.values()
    padded = fn.pad(x, (0, 1, 1, 2))
    c1 = fn.conv2d(padded, w1, b1, (1, 2), groups=2)
    m2, v2 = m.detach().clone(), v.detach().clone()
    n = fn.batch_norm(c1, None, None, g, b, training=True, eps=0.5)
    r = fn.relu(n)
    p = fn.max_pool2d(fn.pad(r, (0, 1, 1, 0), value=-1e9), (3, 2), (2, 1))
    c2 = fn.conv2d(p, w2, None, 1, 0, (2, 1))
    a = fn.avg_pool2d(c2, (2, 3), (1, 2), (0, 1), count_include_pad=False)
    loss = fn.cross_entropy(fn.linear(a.flatten(1), fc, fb), leaves["y"])
    grads = dict(zip(wrt, torch.autograd.grad(loss, [leaves[k] for k in wrt]), strict=True))
    m2 = 0.75 * m2 + 0.25 * c1.mean((0, 2, 3))
    v2 = 0.75 * v2 + 0.25 * c1.var((0, 2, 3), unbiased=False)
    one, zero = values.pop("one"), np.array([0])
    model = model_of(nodes, values, ["loss", "m2", "v2", *(f"{k}_grad" for k in wrt)],
                     {"one": one, "zero": zero})  # fmt: skip
    graph, got = run(model, values)
    agree(got, [loss, m2, v2, *grads.values()], 1e-10)
    assert [k for k in ops(graph.module) if "backward" in k] == [
        "relax.grad.avg_pool2d_backward", "relax.nn.conv2d_backward_data",
        "relax.nn.conv2d_backward_weight", "relax.grad.max_pool2d_backward",
        "relax.nn.conv2d_backward_weight",
    ]  # fmt: skip
    _, report = byoc_cudnn.partition(from_onnx_training(model).module)
    assert (report.total, len(report.left)) == (5, 0)


# ---- one operator at a time ----------------------------------------------------------------------

LINES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a line": ((2, 4, 11), (6, 2, 3), {"strides": [2], "pads": [2, 1], "dilations": [2],
                                        "group": 2}),
    "a volume": ((2, 2, 5, 6, 4), (3, 2, 2, 3, 1), {"strides": [1, 2, 1],
                                                     "pads": [1, 0, 0, 0, 2, 0]}),
    "depthwise": ((2, 3, 8, 7), (6, 1, 3, 2), {"group": 3, "dilations": [2, 1]}),
    "same": ((1, 2, 9, 8), (3, 2, 3, 2), {"strides": [2, 3], "auto_pad": "SAME_LOWER"}),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_conv_grad(name: str) -> None:
    """All three results, of any dimension, groups and padding."""
    shape, weight, attributes = LINES[name]
    x, w, rank = leaf(draw(*shape)), leaf(draw(*weight, seed=1)), len(shape) - 2
    pads = attributes.get("pads")
    if pads is None and "auto_pad" in attributes:
        total = [max((-(-s // t) - 1) * t + k - s, 0) for s, t, k in
                 zip(shape[2:], attributes["strides"], weight[2:], strict=True)]  # fmt: skip
        pads = [-(-t // 2) for t in total] + [t // 2 for t in total]
    pads = pads or [0] * (2 * rank)
    flat = [v for i in reversed(range(rank)) for v in (pads[i], pads[i + rank])]
    conv = (fn.conv1d, fn.conv2d, fn.conv3d)[rank - 1]
    bias = torch.zeros(weight[0], dtype=torch.float64, requires_grad=True)
    y = conv(fn.pad(x, flat), w, bias, attributes.get("strides", 1), 0,
             attributes.get("dilations", 1), attributes.get("group", 1))  # fmt: skip
    dy = draw(*y.shape, seed=2)
    wanted = torch.autograd.grad(y, [x, w, bias], torch.tensor(dy))
    values = {"dy": dy, "x": x.detach().numpy(), "w": w.detach().numpy()}
    node = ms("ConvGrad", ["dy", "x", "w"], ["dx", "dw", "db"], **attributes)
    agree(run(model_of([node], values, ["dx", "dw", "db"]), values)[1], list(wanted))


def test_elementwise() -> None:
    x, dy = leaf(draw(3, 4, 5)), draw(3, 4, 5, seed=1)
    rows: dict[str, tuple[Any, dict[str, Any], bool]] = {
        "ReluGrad": (fn.relu, {}, True), "SigmoidGrad": (torch.sigmoid, {}, True),
        "TanhGrad": (torch.tanh, {}, True), "GeluGrad": (fn.gelu, {}, False),
        "SoftmaxGrad_13": (lambda v: fn.softmax(v, -1), {}, True),
        "LogSoftmaxGrad_13": (lambda v: fn.log_softmax(v, 1), {"axis": 1}, True),
        "SoftmaxGrad": (lambda v: fn.softmax(v.flatten(1), 1).reshape(v.shape), {}, True),
        "LogSoftmaxGrad": (lambda v: fn.log_softmax(v.flatten(1), 1).reshape(v.shape), {}, True),
    }  # fmt: skip
    values, nodes, wanted = {"dy": dy, "x": x.detach().numpy()}, [], []
    for op, (step, attributes, of_result) in rows.items():
        y = step(x)
        values[f"{op}_y"] = y.detach().numpy()
        second = f"{op}_y" if of_result else "x"
        nodes.append(ms(op, ["dy", second], [op], **attributes))
        wanted.append(torch.autograd.grad(y, x, torch.tensor(dy))[0])
    agree(run(model_of(nodes, values, list(rows)), values)[1], wanted, 1e-7)


@pytest.mark.share(2)
@pytest.mark.parametrize("how", ["mean", "sum", "none"])
def test_cross_entropy(how: str) -> None:
    """Pixels' labels, weights of classes, labels that are ignored, as attribute and operand."""
    z, weight = leaf(draw(2, 5, 3, 2)), np.abs(draw(5, seed=3)) + 0.1
    y = np.arange(12).reshape(2, 3, 2) % 6 - 1  # -1 is none
    loss = fn.cross_entropy(
        z, torch.tensor(y), torch.tensor(weight), ignore_index=-1, reduction=how
    )
    dy = draw(*loss.shape, seed=4)
    (wanted,) = torch.autograd.grad(loss, z, torch.tensor(dy))
    values = {"z": z.detach().numpy(), "y": y, "weight": weight, "dy": np.asarray(dy)}
    one = {"reduction": how, "ignore_index": -1}
    nodes = [
        plain("SoftmaxCrossEntropyLoss", ["z", "y", "weight"], ["l1", "logs"], **one),
        ms("SoftmaxCrossEntropyLossInternal", ["z", "y", "weight", "none"], ["l2", "logs2"],
           reduction=how),
        ms("SoftmaxCrossEntropyLossGrad", ["dy", "logs", "y", "weight"], ["g1"], **one),
        ms("SoftmaxCrossEntropyLossInternalGrad", ["dy", "logs2", "y", "weight", "none"], ["g2"],
           reduction=how),
    ]  # fmt: skip
    model = model_of(nodes, values, ["l1", "l2", "g1", "g2"], {"none": np.asarray(-1)})
    agree(run(model, values)[1], [loss, loss, wanted, wanted])


def test_sums_and_products() -> None:
    values = {"a": draw(3, 4), "b": draw(5, 4, seed=1), "s": np.asarray(4.0),
              "no": np.array([False]), "yes": np.array([True])}  # fmt: skip
    a, b = torch.tensor(values["a"]), torch.tensor(values["b"])
    nodes = [
        ms("FusedMatMul", ["a", "b"], ["p"], transB=1, alpha=0.5),
        ms("Scale", ["a", "s"], ["down"], scale_down=1),
        ms("Scale", ["a", "s"], ["up"]),
        ms("ReduceSumTraining", ["a", "axes"], ["sum"], keepdims=0),
        ms("InPlaceAccumulatorV2", ["a", "up", "no"], ["added"]),
        ms("InPlaceAccumulatorV2", ["a", "up", "yes"], ["written"]),
        ms("ZeroGradient", ["a", "b"], ["zeros"]),
    ]
    names = [node.output[0] for node in nodes]
    model = model_of(nodes, values, names, {"axes": np.array([0])})
    got = run(model, values)[1]
    agree(got, [a @ b.T / 2, a / 4, a * 4, a.sum(0), a * 5, a * 4, torch.zeros(5, 4)])


# ---- what is refused -----------------------------------------------------------------------------


def test_refusals_name_the_node() -> None:
    values = {"dy": draw(2, 3, 4, 4), "x": draw(2, 3, 4, 4)}

    def refused(node: onnx.NodeProto, match: str) -> None:
        model = model_of([node], values, [node.output[-1]])
        with pytest.raises(ValueError, match=match):
            from_onnx_training(model, dtype=F64)

    unknown = ms("LayerNormalizationGrad", ["dy", "x"], ["g"])
    refused(unknown, r"com\.microsoft::LayerNormalizationGrad.*is not supported")
    refused(ms("MaxPoolGrad", ["dy", "x"], ["g"]), "MaxPoolGrad node 'g': the graph has no MaxPool")
    refused(ms("AveragePoolGrad", ["dy"], ["g"]), "the graph has no AveragePool that it is of")
    refused(ms("ConvGrad", ["dy", "x"], ["g"]), "ConvGrad node 'g': operand 2 is missing")
    refused(ms("SoftmaxCrossEntropyLossGrad", ["dy", "x", "x"], ["g"], reduction="max"),
            "reduction must be mean, sum or none, got 'max'")  # fmt: skip
    foreign = helper.make_node("Scale", ["dy", "x"], ["g"], domain="my.domain")
    refused(foreign, r"my\.domain::Scale.*is not supported")
    refused(ms("SoftmaxGrad_13", ["dy", "x"], ["g"], axis=5), "axis=5 is not one of Y's 4 axes")
    norm = plain("BatchNormalization", ["x"] * 5, ["g"], training_mode=1)
    refused(norm, "training_mode=1 is not supported")
    open_one = model_of([plain("Relu", ["x"], ["g"])], values, ["g"])
    open_one.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "batch"
    with pytest.raises(ValueError, match="input 'x' has an open size 'batch'"):
        from_onnx_training(open_one)
    for size in (0, -2, 2.5, "2"):
        with pytest.raises(ValueError, match=r"sizes\['batch'\] must be an integer of at least 1"):
            from_onnx_training(open_one, sizes={"batch": size})  # type: ignore[dict-item]
    assert from_onnx_training(open_one, sizes={"batch": 3}).inputs[1].shape == (3, 3, 4, 4)


def test_every_operator_is_tested() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    names = [op for op in TRAINING_OPS if "::" not in op and op != "Dropout"]
    assert not [op for op in names if f'"{op}"' not in text]


@pytest.mark.longer("of benchmarks")
def test_a_written_network() -> None:
    """`Tape`, by which the benchmark writes its networks: branches that meet again."""
    tape = Tape((2, 3, 9, 8))
    x = tape.relu(tape.norm(tape.conv("x", 4, stride=2)))
    y = tape.conv(x, 4, groups=4, dilation=2, bias=True)
    x = tape.concat(tape.add(x, y), tape.pool(x, "Average", (3, 3), 1, 1))
    model, wanted = tape.finish(tape.pool(x, "Max", (2, 2), 2))
    graph, got = run(model, tape.inputs)
    agree(got, [torch.tensor(v) for v in wanted.values()], 1e-10)
    found = ops(graph.module)
    assert sum("conv2d_backward" in op for op in found) == 3
