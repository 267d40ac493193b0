"""Training of small networks: precision, checkpoints, layout, statistics and masks."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from legalize.cpu import host_target
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.training.evaluation import Evaluator
from relay_wgrad.training.optim import OPTIMIZERS, UNNORMALIZED, default_lr
from relay_wgrad.training.step import step_module
from relay_wgrad.training.trainer import Trainer
from tests.support.problems import relative_error_of_all
from tests.support.training_models import residual_net, torch_run

pytestmark = pytest.mark.usefixtures("registered")

FAMILY = ("relax.nn.conv2d", "relax.nn.conv2d_backward_data", "relax.nn.conv2d_backward_weight")


def trainer(graph: TrainingGraph, **options: Any) -> Trainer:
    configure_threads()
    return Trainer(graph, host_target(), **options)


def gradients(graph: TrainingGraph, batch: dict[str, Any], **options: Any) -> list[np.ndarray]:
    _, found = trainer(graph, **options).gradients(batch)
    return [g.numpy() for g in found]


def calls(func: Any, *ops: str) -> list[Any]:
    values = [b.value for block in func.body.blocks for b in block.bindings]
    found = [v for v in values if isinstance(v, relax.Call)]
    return [v for v in found if str(getattr(v.op, "name", "")) in ops]


# ---- mixed precision -------------------------------------------------------------------------


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_family_and_matmul_take_half_operands(half: str) -> None:
    graph = from_onnx(residual_net())
    func = step_module(graph, dtype=half)["main_adjoint"]
    convolutions = calls(func, *FAMILY)
    assert len(convolutions) == 7 + 6 + 7  # the first has no data gradient
    for call in [*convolutions, *calls(func, "relax.matmul")]:
        assert [str(a.ty.dtype) for a in call.args[:2]] == [half, half]
    assert {str(c.ty.dtype) for c in calls(func, FAMILY[2], "relax.matmul")} == {"float32"}
    for name in ("sqrt", "divide", "mean", "nn.log_softmax", "nn.nll_loss"):
        operands = [c.args[0].ty for c in calls(func, f"relax.{name}")]
        assert {str(ty.dtype) for ty in operands} == {"float32"}, name
    # Master weights in, float32 gradients out.
    assert {str(p.ty.dtype) for p in func.params} == {"float32", "int64"}
    assert {str(g.ty.dtype) for g in func.body.body.fields[1].fields} == {"float32"}


@pytest.fixture(scope="module")
def net() -> tuple[TrainingGraph, dict[str, Any], list[np.ndarray]]:
    import relay_wgrad

    relay_wgrad.register()
    graph = from_onnx(residual_net(blocks=1), bn="eval")
    batch = graph.random_batch(1)
    return graph, batch, gradients(graph, batch)


# Eight or eleven bits of significand, through a handful of layers.
@pytest.mark.longer("whole networks; smaller ones stay")
@pytest.mark.parametrize(("half", "bound"), [("float16", 5e-3), ("bfloat16", 4e-2)])
def test_mixed_precision_and_checkpoints(net: Any, half: str, bound: float) -> None:
    graph, batch, want = net
    plain = gradients(graph, batch, dtype=half)
    assert 0 < relative_error_of_all(plain, want) < bound
    again = gradients(graph, batch, dtype=half, checkpoint="auto")
    for a, b in zip(again, plain, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.longer("whole networks; smaller ones stay")
def test_checkpoints_and_layout_change_nothing(net: Any) -> None:
    graph, batch, want = net
    kept = trainer(graph)
    for options in ({"checkpoint": ["pool"]}, {"layout": "NHWC"}):
        assert relative_error_of_all(gradients(graph, batch, **options), want) < 1e-6
    assert kept.layout_changes[0] == kept.layout_changes[1]


@pytest.mark.longer("whole networks; smaller ones stay")
def test_checkpoints_lower_the_planned_memory() -> None:
    graph = from_onnx(residual_net(blocks=6, size=32))
    kept = trainer(graph).compiled.planned_bytes
    again = trainer(graph, checkpoint="auto").compiled.planned_bytes
    print(f"planned: {kept / 2**10:.0f} KiB, checkpointed {again / 2**10:.0f} KiB")
    assert 0 < again < 0.75 * kept


@pytest.mark.longer("whole networks; smaller ones stay")
def test_loss_scale_saves_small_gradients() -> None:
    """A loss so small that float16 loses its gradients without a scale."""
    graph = from_onnx(residual_net(blocks=0), bn="eval")
    graph.params["fc_w"] = graph.params["fc_w"] * np.float32(1e-6)
    batch = graph.random_batch(1)
    want = gradients(graph, batch)
    scaled = gradients(graph, batch, dtype="float16", loss_scale=65536.0)
    lost = gradients(graph, batch, dtype="float16", loss_scale=1.0)
    at = graph.trainable.index("stem_w")
    assert relative_error_of_all([scaled[at]], [want[at]]) < 5e-2
    assert relative_error_of_all([lost[at]], [want[at]]) > 0.2


def test_dynamic_loss_scale_leaves_out_steps() -> None:
    graph = from_onnx(residual_net(blocks=0), bn="eval")
    graph.params["fc_w"] = graph.params["fc_w"] * np.float32(500.0)
    run = trainer(graph, dtype="float16", loss_scale="dynamic", lr=1e-6)
    batch = graph.random_batch(1)
    before = {n: run.params[n].numpy() for n in graph.trainable}
    run.step(batch)
    assert run.skipped == 1
    assert run.loss_scale == 32768.0
    for name in graph.trainable:
        np.testing.assert_array_equal(run.params[name].numpy(), before[name])
    for _ in range(20):
        run.step(batch)
    assert 1 <= run.skipped < 20
    assert any((run.params[n].numpy() != before[n]).any() for n in graph.trainable)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype='int8': expected float16, bfloat16 or the graph's own, float32"),
        ({"loss_scale": -1.0}, "loss_scale must be a positive number or 'dynamic', got -1.0"),
        ({"loss_scale": "big"}, "loss_scale must be a positive number or 'dynamic', got 'big'"),
        ({"optimizer": "rms"}, "optimizer must be one of sgd, momentum, adam, adamw, got 'rms'"),
        ({"checkpoint": ["nothing"]}, "has no computed tensor 'nothing'"),
        ({"lr": 0.0}, "lr=0.0: expected a positive learning rate"),
        ({"lr": math.inf}, "lr=inf: expected a positive learning rate"),
        ({"lr": "fast"}, "lr='fast': expected a positive learning rate"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"layout": "HWNN"}, "layout must be a permutation of NCHW, got 'HWNN'"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        trainer(from_onnx(residual_net(blocks=0)), **options)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graph": None}, "graph must be a TrainingGraph, as of from_onnx or from_torch, got None"),
        ({"update": {"ema": 0.5}}, "update must be an Update, got dict"),
        ({"seed": "a"}, "seed must be an integer of at least 0, got str"),
        ({"on_gpu": 3}, "on_gpu must be Options, got 3"),
    ],
)
def test_options_of_another_type(options: dict[str, Any], message: str) -> None:
    graph = from_onnx(residual_net(blocks=0))
    with pytest.raises(TypeError, match=message):
        Trainer(**{"graph": graph, **options})


def test_dtypes_have_short_names_too() -> None:
    """Those of the command line: the same step, loss scale and evaluation."""
    graph = from_onnx(residual_net(blocks=0))
    short, long = (trainer(graph, dtype=name) for name in ("f16", "float16"))
    assert (short.dtype, short.loss_scale) == (long.dtype, long.loss_scale) == ("float16", 1024.0)
    tvm.ir.assert_structural_equal(short.module, long.module)
    tvm.ir.assert_structural_equal(step_module(graph, dtype="bf16"),
                                   step_module(graph, dtype="bfloat16"))  # fmt: skip
    for wrong in ("int8", "half"):
        with pytest.raises(ValueError, match=f"dtype='{wrong}': expected float16, bfloat16 or"):
            Evaluator(graph, dtype=wrong)


def test_mixed_precision_of_a_double_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="mixed precision needs a float32 graph"):
        trainer(from_onnx(residual_net(blocks=0), dtype="float64"), dtype="float16")


# ---- against PyTorch -------------------------------------------------------------------------


def test_step_with_masks_and_statistics_is_pytorchs() -> None:
    """Two steps of momentum SGD, dropout by masks, batch statistics: all in float64."""
    model = residual_net(blocks=1, dropout=0.25)
    graph = from_onnx(model, dtype="float64", dropout="mask")
    batch = graph.random_batch(5)
    mask = batch["dropout_mask_0"]
    assert set(np.unique(mask)) == {0.0, 1 / 0.75}
    run = trainer(graph, optimizer="momentum", lr=0.05)
    reference = from_onnx(model, dtype="float64", dropout="mask")
    velocity = [np.zeros_like(graph.params[n]) for n in graph.trainable]
    for _ in range(2):
        loss, grads, statistics = torch_run(model, reference, batch)
        assert run.step(batch) == pytest.approx(loss.item(), rel=1e-10)
        for i, (name, g) in enumerate(zip(graph.trainable, grads, strict=True)):
            velocity[i] = 0.9 * velocity[i] + g.numpy()
            reference.params[name] = reference.params[name] - 0.05 * velocity[i]
        for name in graph.updates.values():
            reference.params[name] = statistics[graph.onnx_names[name]].detach().numpy()
        assert len(statistics) == len(graph.updates) == 6
        for name, value in reference.params.items():
            np.testing.assert_allclose(run.params[name].numpy(), value, rtol=1e-8, atol=1e-10)


@pytest.mark.longer
def test_running_variance_differs_from_torch_by_bessel() -> None:
    """ONNX keeps the population variance, `torch.nn.BatchNorm2d` n/(n-1) times it."""
    graph = from_onnx(residual_net(blocks=0), dtype="float64")
    batch = graph.random_batch(2)
    run = trainer(graph)
    run.step(batch)
    layer = torch.nn.BatchNorm2d(8, momentum=0.2).double()
    x = torch.tensor(batch["x"])
    # The file's momentum, 0.8, is a float32 there.
    weight = torch.tensor(graph.params["stem_w"])
    layer(torch.nn.functional.conv2d(x, weight, padding=1))
    count = 4 * 12 * 12
    ours, theirs = run.params["stem_var"].numpy() - 0.8, layer.running_var.numpy() - 0.8
    np.testing.assert_allclose(ours * count / (count - 1), theirs, rtol=1e-6)
    np.testing.assert_allclose(
        run.params["stem_mean"].numpy(), layer.running_mean.numpy(), rtol=1e-6, atol=1e-9
    )


@pytest.mark.longer
@pytest.mark.share(7)
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_default_learning_rates(optimizer: str) -> None:
    graph = from_onnx(residual_net(blocks=0))
    run = trainer(graph, optimizer=optimizer)
    assert run.lr == OPTIMIZERS[optimizer].lr
    batch = graph.random_batch(0)
    losses = [run.step(batch) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_default_rate_is_smaller_without_batch_statistics() -> None:
    """AlexNet's loss goes from 24 to 129 within two steps of momentum at the full rate."""
    for bn, norm, part in (
        ("train", True, 1.0),
        ("eval", True, UNNORMALIZED),
        ("train", False, UNNORMALIZED),
    ):
        graph = from_onnx(residual_net(blocks=0, norm=norm), bn=bn)
        for optimizer, rule in OPTIMIZERS.items():
            assert default_lr(optimizer, graph) == pytest.approx(part * rule.lr)


def test_progress_names_the_long_parts() -> None:
    said: list[str] = []
    trainer(from_onnx(residual_net(blocks=0)), layout="NHWC", progress=said.append)
    parts = list(dict.fromkeys(text.partition(":")[0] for text in said))
    assert parts == [
        "differentiating", "converting to NHWC", "generating kernels", "fusing", "scheduling",
        "planning memory", "compiling",
    ]  # fmt: skip
    done, of = re.findall(r"[0-9]+", said[-1])[:2]
    assert done == of != "0"
