"""ONNX models to training graphs: whole networks, masks, weights, optimizers.

Gradients are compared with PyTorch's in float64.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
from onnx.reference import ReferenceEvaluator

import relay_wgrad
from relay_wgrad.frontend import BUNDLED, from_onnx
from relay_wgrad.frontend.onnx.model_source import load
from relay_wgrad.training.optim import make_optimizer
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.onnx.models import F64, call, draw, node, relative, tiny, with_weights
from tests.support.torch.model import torch_step

pytestmark = pytest.mark.usefixtures("registered")

# ---- whole networks --------------------------------------------------------------------------


@pytest.mark.longer_cases(
    "densenet121", "inception_v2", "vgg19", "inception_v1", "zfnet512", "alexnet", "resnet50"
)
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


@pytest.mark.longer("whole networks; smaller ones stay")
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


@pytest.mark.longer("whole networks; smaller ones stay")
@pytest.mark.parametrize(
    ("name", "size", "bn"),
    [("squeezenet", 40, "eval"), ("resnet50", 33, "train"), ("shufflenet", None, "train")],
)
def test_step_is_pytorchs(name: str, size: int | None, bn: str) -> None:
    graph = from_onnx(name, batch=2, image_size=size, dtype=F64, bn=bn)
    batch = graph.random_batch(1)
    outputs, gradients = call(graph.gradient(), "main_adjoint", graph.arguments(batch))
    loss, logits, expected, statistics = torch_step(name, graph, batch, bn)
    assert relative(outputs[0], loss.detach().numpy()) < 1e-11
    assert relative(outputs[1], logits.detach().numpy()) < 1e-10
    # Of a bias before batch normalization it is zero but for rounding.
    least = 1e-12 * max(float(want.norm()) for want in expected)
    for parameter, got, want in zip(graph.trainable, gradients, expected, strict=True):
        difference = np.linalg.norm(got.numpy() - want.numpy())
        assert difference < 1e-9 * float(want.norm()) + least, parameter
    assert len(statistics) == len(graph.updates)
    assert bool(statistics) == (bn == "train")
    for got, output in zip(list(outputs)[2:], graph.outputs[2:], strict=True):
        want = statistics[graph.onnx_names[graph.updates[output]]].detach().numpy()
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-10, atol=1e-12)


# ---- masks, weights, arguments


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


def test_arguments_are_checked() -> None:
    graph = from_onnx("squeezenet", image_size=40)
    batch = graph.random_batch()
    with pytest.raises(ValueError, match="no value for argument 'labels'"):
        graph.arguments({"data_0": batch["data_0"]})
    with pytest.raises(ValueError, match=r"'data_0' is float32\[1, 3, 40, 40\], got float64"):
        graph.arguments({**batch, "data_0": batch["data_0"].astype(F64)})
    with pytest.raises(ValueError, match="`main` has no parameter 'weight'"):
        graph.gradient(["weight"])


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "momentum"), [("sgd", 0.0), ("sgd", 0.5), ("adam", 0.0)])
def test_updates_are_pytorchs(name: str, momentum: float) -> None:
    torch = pytest.importorskip("torch")
    graph = from_onnx(tiny([node("Gemm", "w")], (4, 3), {"w": draw(3, 5)}), loss="mse", dtype=F64)
    optimizer = make_optimizer(name, lr=0.1, momentum=momentum)
    optimizer.init(graph.variables(graph.trainable))
    module = graph.gradient()
    module["update"] = optimizer.get_function().with_attr("global_symbol", "update")
    vm = virtual_machine(module, FAST)
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
        (
            ("rmsprop", 0.1, 0.0),
            "optimizer must be one of sgd, momentum, adam, adamw, got 'rmsprop'",
        ),
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


def test_gradients_need_registered_rules() -> None:
    graph = from_onnx(tiny([node("Gemm", "w")], (4, 3), {"w": draw(3, 5)}), loss="mse", dtype=F64)
    relay_wgrad.unregister()  # the fixture puts the state back
    with pytest.raises(RuntimeError, match=r"call relay_wgrad\.register\(\) first"):
        graph.gradient()
