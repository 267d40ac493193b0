"""ONNX models to training graphs: values against ONNX's own evaluator, gradients against PyTorch
and finite differences, everything in float64; and what is refused, with its message."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax

from relay_wgrad.frontend import BUNDLED, TrainingGraph, from_onnx
from relay_wgrad.frontend.bundled import load
from relay_wgrad.frontend.optim import make_optimizer
from tests.torch_model import torch_step

F64 = "float64"


def call(module: Any, function: str, arguments: list[np.ndarray]) -> Any:
    vm = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    return vm[function](*[tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arguments])


def relative(got: Any, expected: np.ndarray) -> float:
    return float(np.abs(got.numpy() - expected).max() / max(np.abs(expected).max(), 1e-12))


def with_weights(proto: onnx.ModelProto, graph: TrainingGraph) -> onnx.ModelProto:
    """The file's model with the graph's weights instead of its own, in float64."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    names = {file: graph.params[name] for name, file in graph.onnx_names.items()}
    nodes = [n for n in model.graph.node if n.output[0] not in names]
    kept = [t for t in model.graph.initializer if t.name not in names]
    arrays = [numpy_helper.from_array(a, n) for n, a in names.items()]
    inputs = [i for i in model.graph.input if i.name not in names]
    for field, items in (("node", nodes), ("initializer", kept + arrays), ("input", inputs)):
        model.graph.ClearField(field)
        getattr(model.graph, field).extend(items)
    return model


def tiny(
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model from `x` of this shape to `y`."""
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, shape)],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def check(model: onnx.ModelProto, **options: Any) -> None:
    """Values against ONNX's evaluator, gradients of all parameters and of x against a central
    difference in a random direction."""
    graph = from_onnx(model, loss="mse", weights="initial", dtype=F64, **options)
    assert graph.outputs[:2] == ("loss", "logits")
    batch = graph.random_batch(3)
    arguments = graph.arguments(batch)
    wrt = [graph.inputs[0].name, *graph.trainable]
    outputs, gradients = call(graph.gradient(wrt), "main_adjoint", arguments)
    expected = ReferenceEvaluator(model).run(["y"], {"x": batch["x"]})[0]
    assert outputs[1].numpy().shape == expected.shape
    # Attributes are float32 in the file, and the evaluator rounds some of them differently.
    assert relative(outputs[1], expected) < 1e-6
    assert outputs[0].numpy() == pytest.approx(
        ((outputs[1].numpy() - batch["target"]) ** 2).mean(), rel=1e-12
    )
    order = [s.name for s in graph.inputs] + list(graph.params)
    step, moved, slope = 1e-6, {+1: list(arguments), -1: list(arguments)}, 0.0
    for index, (name, gradient) in enumerate(zip(wrt, gradients, strict=True)):
        direction = draw(*gradient.shape, seed=index)
        slope += float((gradient.numpy() * direction).sum())
        for sign, values in moved.items():
            at = order.index(name)
            values[at] = values[at] + sign * step * direction
    vm = relax.VirtualMachine(tvm.compile(graph.module, "llvm"), tvm.cpu())
    high, low = (
        float(vm["main"](*map(tvm.runtime.tensor, moved[sign]))[0].numpy()) for sign in (1, -1)
    )
    assert (high - low) / (2 * step) == pytest.approx(slope, rel=1e-6, abs=1e-9)


def node(op: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, ["x", *inputs], ["y"], **attributes)


# ---- whole networks --------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUNDLED)
def test_all_bundled_models_import_and_differentiate(name: str) -> None:
    graph = from_onnx(name, batch=2)
    assert graph.batch == 2
    assert graph.classes == 1000
    assert len({var.name for var in graph.main.params}) == len(graph.inputs) + len(graph.params)
    assert len(graph.main.body.blocks) == 1
    assert set(graph.updates.values()) == set(graph.params) - set(graph.trainable)
    module = graph.gradient()
    returned = module["main_adjoint"].ty.ret
    gradients = [tuple(int(d) for d in f.shape.values) for f in returned.fields[1].fields]
    assert gradients == [graph.params[n].shape for n in graph.trainable]


def test_squeezenet_forward_is_onnx_own() -> None:
    graph = from_onnx("squeezenet", batch=2, image_size=40, dtype=F64, seed=5)
    batch = graph.random_batch()
    loss, logits = call(graph.module, "main", graph.arguments(batch))
    model = with_weights(load("squeezenet")[1], graph)
    # The operand of the final softmax: the evaluator applies the newest softmax to every opset.
    (expected,) = ReferenceEvaluator(model).run(["r65"], {"data_0": batch["data_0"]})
    expected = expected.reshape(2, 1000)
    assert relative(logits, expected) < 1e-12
    shifted = expected - expected.max(1, keepdims=True)
    log_probability = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    picked = log_probability[np.arange(2), batch["labels"]]
    assert loss.numpy() == pytest.approx(-picked.mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "size", "bn"), [("squeezenet", 40, "eval"), ("resnet50", 33, "train")]
)
def test_step_is_pytorchs(name: str, size: int, bn: str) -> None:
    graph = from_onnx(name, batch=2, image_size=size, dtype=F64, bn=bn)
    batch = graph.random_batch(1)
    outputs, gradients = call(graph.gradient(), "main_adjoint", graph.arguments(batch))
    loss, logits, expected, statistics = torch_step(name, graph, batch, bn)
    assert relative(outputs[0], loss.detach().numpy()) < 1e-11
    assert relative(outputs[1], logits.detach().numpy()) < 1e-10
    for parameter, got, want in zip(graph.trainable, gradients, expected, strict=True):
        assert relative(got, want.numpy()) < 1e-9, parameter
    assert len(statistics) == len(graph.updates) == (106 if bn == "train" else 0)
    for got, output in zip(list(outputs)[2:], graph.outputs[2:], strict=True):
        want = statistics[graph.onnx_names[graph.updates[output]]].detach().numpy()
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


# ---- single ops ------------------------------------------------------------------------------

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


@pytest.mark.parametrize("name", OPS)
def test_op(name: str) -> None:
    proto, weights = OPS[name]
    check(tiny([proto], (2, 2, 9, 8), weights))


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


def test_gemm_with_every_attribute() -> None:
    weights = {"w": draw(5, 3), "b": draw(5)}
    check(tiny([node("Gemm", "w", "b", transB=1, alpha=0.5, beta=2.0)], (4, 3), weights))
    check(tiny([node("Gemm", "w", transA=1)], (5, 4), {"w": draw(5, 3)}))
    check(tiny([node("MatMul", "w")], (2, 4, 3), {"w": draw(3, 5)}))


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


def test_dropout_mask_is_a_seeded_input() -> None:
    graph = from_onnx(tiny([node("Dropout")], (4, 50)), loss="mse", dtype=F64, dropout="mask")
    assert [s.kind for s in graph.inputs] == ["data", "target", "mask"]
    batch = graph.random_batch(7)
    mask = batch["dropout_mask_0"]
    assert set(np.unique(mask)) == {0.0, 2.0}
    assert np.array_equal(mask, graph.random_batch(7)["dropout_mask_0"])
    _, logits = call(graph.module, "main", graph.arguments(batch))
    assert np.array_equal(logits.numpy(), batch["x"] * mask)


def test_seeded_weights() -> None:
    """The same for every batch and dtype; another seed gives others; He's variance."""
    one = from_onnx("resnet50", image_size=64)
    two = from_onnx("resnet50", batch=2, dtype=F64)
    other = from_onnx("resnet50", seed=1)
    weight = "gpu_0_conv1_w_0"
    assert np.array_equal(one.params[weight].astype(F64), two.params[weight])
    assert not np.array_equal(one.params[weight], other.params[weight])
    assert one.params[weight].std() == pytest.approx((2 / (3 * 49)) ** 0.5, rel=0.05)
    assert float(one.params["gpu_0_res_conv1_bn_s_0"].min()) == 1.0
    assert len(one.trainable) == 161
    assert len(one.params) == 267


# ---- refusals --------------------------------------------------------------------------------


def refused(message: str, model: Any, error: type[Exception] = ValueError, **options: Any) -> None:
    with pytest.raises(error) as caught:
        from_onnx(model, **options)
    assert message in str(caught.value)


def test_refused_files(tmp_path: Any) -> None:
    refused("no bundled model 'resnet5': did you mean resnet50?", "resnet5")
    refused("no ONNX file 'no/such.onnx'", "no/such.onnx", FileNotFoundError)
    for content in (b"", b"this is text, not a model\n" * 20, bytes(range(256))):
        (tmp_path / "bad.onnx").write_bytes(content)
        refused("is not an ONNX model", tmp_path / "bad.onnx")
    refused("is not an ONNX model", tmp_path)
    refused("expected a path, a name or a ModelProto", 7, TypeError)


def test_refused_options() -> None:
    refused("bn='test': expected train or eval", "resnet50", bn="test")
    refused("dtype='float16': expected float32 or float64", "resnet50", dtype="float16")
    refused("batch=0: expected a positive number", "resnet50", batch=0)
    refused("no output 'z': choose output= one of y", tiny([node("Relu")], (1, 2)), output="z")
    model = tiny([node("Relu")], (1, 2, 3, 3))
    refused("cross_entropy wants logits (N, classes), but 'y' is [1, 2, 3, 3]", model)
    refused("is no (N, C, H, W)", tiny([node("Relu")], (1, 2)), image_size=8)
    refused("opset 7; 9 is the oldest supported", tiny([node("Relu")], (1, 2), opset=7))


def test_refused_image_sizes() -> None:
    refused(
        "Reshape node 'n37': its target [1, 25088], made for [1, 512, 7, 7], does not take "
        "[1, 512, 2, 2]: it fixes the image size at 224x224 (for the fully connected Gemm node "
        "'n38')",
        "vgg19",
        image_size=64,
    )
    nodes = [
        helper.make_node("Flatten", ["x"], ["f"]),
        helper.make_node("Gemm", ["f", "w"], ["y"], name="fc"),
    ]
    model = tiny(nodes, (1, 2, 3, 3), {"w": draw(18, 4)})
    refused(
        "Gemm node 'fc': expects 18 features, got 32: this layer fixes the image size at 3x3",
        model,
        image_size=4,
    )
    refused("the image is too small", "squeezenet", image_size=8)
    refused(
        "batch statistics of [1, 512, 1, 1] need more than one value", "resnet50", image_size=32
    )


def test_refused_ops(capfd: pytest.CaptureFixture[str]) -> None:
    model = tiny([node("AveragePol", name="pool")], (1, 2, 3, 3))
    refused("ONNX op AveragePol (AveragePol node 'pool') is not supported; near it: Av", model)
    refused("Conv node 'y': weight [6, 2, 3, 3] with groups=1 does not fit 3 channels",
            tiny([node("Conv", "w")], (1, 3, 5, 5), {"w": W}))  # fmt: skip
    dilated = node("MaxPool", kernel_shape=[2, 2], dilations=[2, 2])
    refused("dilated pooling has no gradient", tiny([dilated], (1, 2, 5, 5)))
    refused("nothing makes its operand 'gone'", tiny([node("Add", "gone")], (1, 2)))
    assert "Warning" not in "".join(capfd.readouterr())  # TVM's of a builder left open


def test_arguments_are_checked() -> None:
    graph = from_onnx("squeezenet", image_size=40)
    batch = graph.random_batch()
    with pytest.raises(ValueError, match="no value for argument 'labels'"):
        graph.arguments({"data_0": batch["data_0"]})
    with pytest.raises(ValueError, match=r"'data_0' is float32\[1, 3, 40, 40\], got float64"):
        graph.arguments({**batch, "data_0": batch["data_0"].astype(F64)})
    with pytest.raises(ValueError, match="`main` has no parameter 'weight'"):
        graph.gradient(["weight"])


@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("sgd", 0.5), ("adam", 0.0)])
def test_updates_are_pytorchs(name: str, momentum: float) -> None:
    torch = pytest.importorskip("torch")
    graph = from_onnx(tiny([node("Gemm", "w")], (4, 3), {"w": draw(3, 5)}), loss="mse", dtype=F64)
    optimizer = make_optimizer(name, lr=0.1, momentum=momentum)
    optimizer.init(graph.variables(graph.trainable))
    module = graph.gradient()
    module["update"] = optimizer.get_function().with_attr("global_symbol", "update")
    vm = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    values = [tvm.runtime.tensor(a) for a in graph.arguments(graph.random_batch())]
    state = optimizer.state
    x, target, w = (torch.tensor(v.numpy()) for v in values)
    w.requires_grad_()
    sgd = torch.optim.SGD([w], lr=0.1, momentum=momentum)
    reference = torch.optim.Adam([w], lr=0.1) if name == "adam" else sgd
    for _ in range(3):
        outputs, gradients = vm["main_adjoint"](*values)
        (values[2],), state = vm["update"]((values[2],), gradients, state)
        loss = ((x @ w - target) ** 2).mean()
        reference.zero_grad()
        loss.backward()
        reference.step()
        assert outputs[0].numpy() == pytest.approx(loss.item(), rel=1e-10)
    assert relative(values[2], w.detach().numpy()) < 1e-10


def test_refused_optimizers() -> None:
    for options, message in (
        (("rmsprop", 0.1, 0.0), "optimizer 'rmsprop': expected sgd or adam"),
        (("sgd", 0.0, 0.0), "lr=0.0: expected a positive learning rate"),
        (("sgd", 0.1, 1.0), "momentum=1.0: expected a number from 0 to below 1"),
        (("adam", 0.1, 0.5), "adam has betas of its own"),
    ):
        name, rate, momentum = options
        with pytest.raises(ValueError) as caught:
            make_optimizer(name, lr=rate, momentum=momentum)
        assert message in str(caught.value)


def test_import_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import relay_wgrad.frontend"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
