"""ONNX nodes one at a time: values against ONNX's own evaluator or PyTorch, gradients against
finite differences, in float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from relay_wgrad.frontend import from_onnx
from tests.support.onnx.models import F64, call, check, draw, node, relative, tiny

pytestmark = pytest.mark.usefixtures("registered")

W = draw(6, 2, 3, 3)
OPS: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray]]] = {
    "conv": (node("Conv", "w", "b", strides=[2, 1], pads=[1, 0, 2, 1]), {"w": W, "b": draw(6)}),
    "conv-same-upper": (node("Conv", "w", auto_pad="SAME_UPPER", strides=[2, 2]), {"w": W}),
    "conv-same-lower": (node("Conv", "w", auto_pad="SAME_LOWER", strides=[2, 2]), {"w": W}),
    "sub": (node("Sub", "w"), {"w": draw(2, 1, 1)}),
    "mul": (node("Mul", "w"), {"w": draw(2, 1, 1)}),
    "div": (node("Div", "w"), {"w": 2 + draw(2, 1, 1) ** 2}),
    "sum": (node("Sum", "x", "x"), {}),
    "clip": (node("Clip", "lo", "hi"), {"lo": np.array(-0.5), "hi": np.array(1.0)}),
    "leaky": (node("LeakyRelu", alpha=0.25), {}),
    "sigmoid": (node("Sigmoid"), {}),
    "tanh": (node("Tanh"), {}),
    "hard-swish": (node("HardSwish"), {}),
    "hard-sigmoid": (node("HardSigmoid", alpha=0.25), {}),
    "softmax": (node("Softmax", axis=1), {}),
    "log-softmax": (node("LogSoftmax", axis=-1), {}),
    "max": (node("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 1]), {}),
    "max-ceil": (node("MaxPool", kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1), {}),
    # One output, and two outputs of overlapping windows: topi's gradient counts twice there.
    "max-narrow": (node("MaxPool", kernel_shape=[3, 8], strides=[2, 2]), {}),
    "max-overlap": (node("MaxPool", kernel_shape=[2, 7], strides=[2, 2]), {}),
    "max-global": (node("GlobalMaxPool"), {}),
    "average": (node("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 0, 0, 1]), {}),
    "average-padded": (
        node("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1],
             count_include_pad=1), {},
    ),
    "average-ceil": (
        node("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 0, 0], ceil_mode=1,
             count_include_pad=1), {},
    ),
    "average-global": (node("GlobalAveragePool"), {}),
    "mean": (node("ReduceMean", "axes", keepdims=0), {"axes": np.array([2, 3])}),
    "lrn-odd": (node("LRN", size=3, alpha=0.5, bias=2.0), {}),
    "lrn-even": (node("LRN", size=2, alpha=0.5), {}),
    "pad": (node("Pad", "p", "v"), {"p": np.array([0, 1, 0, 2, 0, 0, 3, 0]), "v": np.array(0.5)}),
    "concat": (node("Concat", "x", axis=-1), {}),
    "flatten": (node("Flatten", axis=-2), {}),
    "transpose": (node("Transpose"), {}),
    "squeeze-none": (node("Unsqueeze", "a"), {"a": np.array([0, -1])}),
    "reshape": (node("Reshape", "s"), {"s": np.array([0, -1, 4, 2])}),
}  # fmt: skip


@pytest.mark.share(5)
@pytest.mark.parametrize("name", OPS)
def test_op(name: str) -> None:
    proto, weights = OPS[name]
    check(tiny([proto], (2, 2, 9, 8), weights))


def test_every_op_has_a_gradient() -> None:
    """Of all: a share is computed by make test."""
    for proto, weights in OPS.values():
        graph = from_onnx(tiny([proto], (2, 2, 9, 8), weights), loss="mse", weights="initial")
        module = graph.gradient(wrt=[graph.inputs[0].name])
        relax.analysis.well_formed(module)


T = draw(4, 3, 3, 2)
FORWARD: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray]]] = {
    "grouped": (
        node("Conv", "w", "b", group=2, pads=[1] * 4),
        {"w": draw(6, 2, 3, 3), "b": draw(6)},
    ),
    "depthwise": (node("Conv", "w", group=4, dilations=[2, 1]), {"w": draw(8, 1, 3, 3)}),
    "transposed": (
        node("ConvTranspose", "w", "b", strides=[2, 3], pads=[1, 0, 0, 1], output_padding=[1, 2]),
        {"w": T, "b": draw(3)},
    ),
    "transposed-grouped": (node("ConvTranspose", "w", group=2, dilations=[2, 2]), {"w": T}),
    "transposed-same": (
        node("ConvTranspose", "w", strides=[2, 2], auto_pad="SAME_UPPER"),
        {"w": T},
    ),
    "transposed-shape": (
        node("ConvTranspose", "w", strides=[2, 2], output_shape=[12, 11]),
        {"w": T},
    ),
}


@pytest.mark.share(5)
@pytest.mark.parametrize("name", FORWARD)
def test_convolution_without_a_stock_gradient(name: str) -> None:
    proto, weights = FORWARD[name]
    model = tiny([proto], (2, 4, 6, 5), weights)
    graph = from_onnx(model, loss="mse", weights="initial", dtype=F64)
    batch = graph.random_batch()
    _, result = call(graph.module, "main", graph.arguments(batch))
    if name in ("transposed-grouped", "transposed-shape"):  # ONNX's evaluator fails on these
        torch = pytest.importorskip("torch")
        fn = torch.nn.functional
        x, w = (torch.tensor(a) for a in (batch["x"], T))
        if name == "transposed-grouped":
            expected = fn.conv_transpose2d(x, w, groups=2, dilation=2).numpy()
        else:  # of 13x10 pixels one row too many, cut at the start, and one column too few
            full = fn.conv_transpose2d(x, w, stride=2)
            expected = fn.pad(full, (0, 1, -1, 0)).numpy()
    else:
        (expected,) = ReferenceEvaluator(model).run(None, {"x": batch["x"]})
    assert result.numpy().shape == expected.shape
    assert relative(result, expected) < 1e-12


@pytest.mark.longer
def test_gemm_with_every_attribute() -> None:
    weights = {"w": draw(5, 3), "b": draw(5)}
    check(tiny([node("Gemm", "w", "b", transB=1, alpha=0.5, beta=2.0)], (4, 3), weights))
    check(tiny([node("Gemm", "w", transA=1)], (5, 4), {"w": draw(5, 3)}))
    check(tiny([node("MatMul", "w")], (2, 4, 3), {"w": draw(3, 5)}))


def test_nothing_is_joined() -> None:
    """`x[:, :0]` before what is turned, as rotary embeddings are exported."""
    bounds = {"zero": np.array([0]), "all": np.array([2**31 - 1]), "axis": np.array([1])}
    nodes = [
        helper.make_node("Slice", ["x", "zero", "zero", "axis"], ["none"]),
        helper.make_node("Sin", ["x"], ["some"]),
        helper.make_node("Slice", ["some", "zero", "all", "axis"], ["whole"]),
        helper.make_node("Concat", ["none", "whole"], ["y"], axis=1),
    ]
    check(tiny(nodes, (2, 3, 4), bounds))
    nodes[3] = helper.make_node("Add", ["none", "whole"], ["y"])
    with pytest.raises(ValueError, match="'none': the slice 0:0:1 of 3 elements is empty"):
        from_onnx(tiny(nodes, (2, 3, 4), bounds), loss="mse")


def test_old_opset_forms() -> None:
    """Opset 9: axes, pads and bounds are attributes, and a softmax takes all axes from `axis`."""
    nodes = [
        helper.make_node("Pad", ["x"], ["p"], pads=[0, 0, 1, 0, 0, 0, 0, 1]),
        helper.make_node("Clip", ["p"], ["c"], min=-1.0, max=1.5),
        helper.make_node("Unsqueeze", ["c"], ["u"], axes=[2]),
        helper.make_node("Squeeze", ["u"], ["s"], axes=[2]),
        helper.make_node("Dropout", ["s"], ["d"], ratio=0.5),
        helper.make_node("Flatten", ["d"], ["f"]),
        helper.make_node("Softmax", ["f"], ["y"]),
    ]
    check(tiny(nodes, (2, 3, 4, 5), opset=9))
    graph = from_onnx(tiny([node("Softmax")], (2, 3, 4, 5), opset=9), loss="mse", dtype=F64)
    batch = graph.random_batch()
    power = np.exp(batch["x"])
    _, softmax = call(graph.module, "main", graph.arguments(batch))
    assert relative(softmax, power / power.sum((1, 2, 3), keepdims=True)) < 1e-12


@pytest.mark.parametrize("bn", ["train", "eval"])
def test_batch_norm(bn: str) -> None:
    weights = {"g": draw(2), "b": draw(2, seed=1), "m": draw(2, seed=2), "v": 1 + draw(2) ** 2}
    training = {"training_mode": 1} if bn == "train" else {}
    model = tiny(
        [node("BatchNormalization", "g", "b", "m", "v", **training)], (3, 2, 4, 5), weights
    )
    if bn == "train":
        model.graph.node[0].output.extend(["m2", "v2"])
    check(model, bn=bn)
    if bn == "train":
        graph = from_onnx(model, loss="mse", weights="initial", dtype=F64)
        assert graph.trainable == ("g", "b")
        assert graph.updates == {"m_new": "m", "v_new": "v"}
        model.graph.output.extend([onnx.ValueInfoProto(name=n) for n in ("m2", "v2")])
        batch = graph.random_batch()
        expected = ReferenceEvaluator(model).run(["m2", "v2"], {"x": batch["x"]})
        outputs = call(graph.module, "main", graph.arguments(batch))
        for got, want in zip(list(outputs)[2:], expected, strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)


def test_exported_flatten_is_folded() -> None:
    """Shape → Gather → Unsqueeze → Concat → Reshape, as exporters write a flatten."""
    i64 = np.int64
    weights = {
        "zero": np.array(0, i64), "axes": np.array([0], i64), "rest": np.array([-1], i64),
        "w": draw(24, 5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w"], ["y"]),
    ]
    model = tiny(nodes, (1, 2, 3, 4), weights)
    check(model, batch=3)
    assert from_onnx(model, weights="initial").onnx_names == {"w": "w"}


@pytest.mark.parametrize("in_file", [None, 0, 1])
@pytest.mark.parametrize("bn", ["train", "eval"])
def test_the_option_decides_the_mode_not_the_file(bn: str, in_file: int | None) -> None:
    """Exporters write inference graphs; `bn` says what is trained."""
    weights = {"g": draw(2), "b": draw(2), "m": draw(2), "v": 1 + draw(2) ** 2}
    mode = {} if in_file is None else {"training_mode": in_file}
    model = tiny([node("BatchNormalization", *weights, **mode)], (3, 2, 4, 5), weights)
    graph = from_onnx(model, loss="mse", dtype=F64, bn=bn)
    updated = {"m_new": "m", "v_new": "v"} if bn == "train" else {}
    assert graph.updates == updated
    assert graph.trainable == ("g", "b")


@pytest.mark.parametrize("in_file", [None, False, True])
def test_dropout_of_newer_opsets(in_file: bool | None) -> None:
    """The ratio is an operand there; masks are scaled as PyTorch's dropout scales in training."""
    torch = pytest.importorskip("torch")
    constants = {"ratio": np.array(0.25, np.float32)}
    if in_file is not None:
        constants["training"] = np.array(in_file)
    model = tiny([node("Dropout", *constants)], (40, 50), constants)
    plain = from_onnx(model, loss="mse", dtype=F64)  # by default as the file has it
    assert len(plain.inputs) == (3 if in_file else 2)
    by_file = "switched off: dropout of 1 node (y) by the file, which has it for inference"
    assert [n.partition(":dropout")[0][: len(by_file)] for n in plain.notes] == (
        [] if in_file else [by_file]
    )
    for options in ({"dropout": "off"}, {"bn": "eval"}):
        off = from_onnx(model, loss="mse", dtype=F64, **options)  # the identity
        assert (len(off.inputs), off.notes) == (2, ("switched off: dropout of 1 node (y)",))
    graph = from_onnx(model, loss="mse", dtype=F64, dropout="mask")
    (mask,) = (v for n, v in graph.random_batch(3).items() if n.startswith("dropout_mask"))
    theirs = torch.nn.functional.dropout(torch.ones(40, 50, dtype=torch.float64), 0.25).numpy()
    assert set(np.unique(mask)) == set(np.unique(theirs)) == {0.0, 1 / 0.75}
    assert abs((mask > 0).mean() - 0.75) < 0.05


NORMS = {
    "InstanceNormalization": (["x", "scale", "bias"], {}),
    "LayerNormalization": (["x", "scale", "bias"], {"axis": 2}),
    "GroupNormalization": (["x", "scale", "bias"], {"num_groups": 2}),
    "BatchNormalization": (["x", "scale", "bias", "mean", "var"], {}),
}


@pytest.mark.parametrize("name", NORMS)
def test_ones_and_zeros_of_constant_nodes_are_no_parameters(name: str) -> None:
    """Exporters write so a norm without parameters, and PyTorch's a group norm before its own."""
    operands, attributes = NORMS[name]
    length = 7 if name == "LayerNormalization" else 4
    shape, statistics = (2, 4, 5, 7), {"mean": np.zeros(4), "var": np.ones(4)}

    def trained(scale: np.ndarray, bias: np.ndarray, by_nodes: bool) -> tuple[str, ...]:
        given = {"scale": scale, "bias": bias}
        made = [
            helper.make_node("Constant", [], [key], value=numpy_helper.from_array(value))
            for key, value in given.items()
        ]
        nodes = [
            *(made if by_nodes else []),
            helper.make_node(name, operands, ["normed"], **attributes),
            helper.make_node("Mul", ["normed", "gain"], ["y"]),
        ]
        weights = {"gain": draw(4, 1, 1), **({} if by_nodes else given)}
        if "mean" in operands:
            weights |= statistics
        graph = from_onnx(tiny(nodes, shape, weights), loss="mse", weights="initial", dtype=F64)
        return graph.trainable

    ones, zeros = np.ones(length), np.zeros(length)
    assert trained(ones, zeros, by_nodes=True) == ("gain",)
    assert trained(ones, zeros, by_nodes=False) == ("scale", "bias", "gain")
    assert trained(draw(length), zeros, by_nodes=True) == ("scale", "gain")
    assert trained(ones, draw(length), by_nodes=True) == ("bias", "gain")
