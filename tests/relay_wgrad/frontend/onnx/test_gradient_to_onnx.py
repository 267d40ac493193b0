"""Training steps as ONNX models: ONNX's evaluator against compiled code, and onnxruntime, where it
is installed, against PyTorch on whole networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from relay_wgrad.frontend import BUNDLED, TrainingGraph, from_onnx, gradient_to_onnx
from relay_wgrad.training.step import converted
from tests.support.onnx.evaluator import evaluate
from tests.support.onnx.models import F64, call
from tests.support.problems import relative_error
from tests.support.torch.model import torch_step
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")


def small(**options: Any) -> TrainingGraph:
    return from_onnx(residual_net(blocks=1, channels=4, size=8, dropout=0.25), batch=2, dtype=F64,
                     dropout="mask", **options)  # fmt: skip


@pytest.mark.longer_cases("NHWC", why="channels first stay")
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_step_is_the_compiled_one(layout: str) -> None:
    """Loss, logits, statistics, gradients and new parameters; no operator but ONNX's own."""
    graph = small(weights="initial")
    batch = graph.random_batch(2)
    outputs, gradients = call(graph.gradient(), "main_adjoint", graph.arguments(batch))
    module = converted(graph.gradient(), layout)
    model = gradient_to_onnx(graph, module=module, learning_rate=0.5)
    assert {(o.domain, o.version) for o in model.opset_import} == {("", 20)}
    kinds = [n.op_type for n in model.graph.node]
    assert kinds.count("ConvTranspose") == 2  # of three convolutions
    assert kinds.count("Conv") == 3 + 3
    got = evaluate(model, batch)
    for name, want in zip(graph.outputs, outputs, strict=True):
        assert relative_error(got[name], want.numpy()) < 1e-12, name
    scale = max(float(np.linalg.norm(g.numpy())) for g in gradients)
    for name, want in zip(graph.trainable, gradients, strict=True):
        assert np.linalg.norm(got[f"{name}_grad"] - want.numpy()) < 1e-11 * scale, name
        new = graph.params[name] - 0.5 * want.numpy()
        assert np.linalg.norm(got[f"{name}_new"] - new) < 1e-11 * scale, name


def test_values_may_be_given() -> None:
    """Parameters and the rate are inputs with defaults; `wrt` may be the data's."""
    graph = small(bn="eval")
    batch = graph.random_batch(1)
    other = {n: v + 0.125 for n, v in graph.params.items()}
    model = gradient_to_onnx(graph, wrt=["x", "fc_b"], params=other, learning_rate=0.1)
    got = evaluate(model, batch | {"learning_rate": np.asarray(2.0)})
    same = evaluate(gradient_to_onnx(graph, wrt=["x", "fc_b"]), batch | other)
    for name in ("loss", "x_grad", "fc_b_grad"):
        assert np.array_equal(got[name], same[name])
    assert np.array_equal(got["fc_b_new"], other["fc_b"] - 2 * got["fc_b_grad"])
    assert "x_new" not in got


def test_refusals() -> None:
    graph = small(bn="eval")
    with pytest.raises(ValueError, match="no value for parameter 'stem_w'"):
        gradient_to_onnx(graph, params={})
    with pytest.raises(ValueError, match="params has values for 'w', 'x', which are no parameters"):
        gradient_to_onnx(graph, params={**graph.params, "w": 1.0, "x": 2.0})
    with pytest.raises(ValueError, match="no parameter 'y'"):
        gradient_to_onnx(graph, wrt=["y"])
    for rate in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="learning_rate must be positive and finite"):
            gradient_to_onnx(graph, learning_rate=rate)
    for wrong in (True, "0.1", np.ones(3)):
        with pytest.raises(TypeError, match="learning_rate must be a number"):
            gradient_to_onnx(graph, learning_rate=wrong)  # type: ignore[arg-type]
    any_batch = from_onnx(residual_net(blocks=1), batch="N", bn="eval")
    with pytest.raises(ValueError, match=r"its batch is open: export `of_batch\(n\)`"):
        gradient_to_onnx(any_batch)
    assert gradient_to_onnx(any_batch.of_batch(3)).graph.input[0].type.tensor_type.shape.dim[
        0
    ].dim_value == 3  # fmt: skip


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from relay_wgrad.cli.main import main

    file, step = tmp_path / "net.onnx", tmp_path / "step.onnx"
    onnx.save(residual_net(blocks=1, channels=4, size=8), file)
    words = ["--batch", "2", "--dtype", "f64", "--bn", "eval", "--learning-rate", "0.25"]
    assert main(["export", str(file), *words, "-o", str(step)]) == 0
    assert "nodes" in capsys.readouterr().err
    graph = from_onnx(residual_net(blocks=1, channels=4, size=8), batch=2, dtype=F64, bn="eval",
                      weights="initial")  # fmt: skip
    batch = graph.random_batch(1)
    got, want = evaluate(onnx.load(step), batch), evaluate(gradient_to_onnx(graph), batch)
    assert all(np.array_equal(got[name], value) for name, value in want.items())
    assert "fc_w_new" in got


SIZES = {"resnet50": 64, "densenet121": 64, "squeezenet": 40, "inception_v1": 64}
# Where one rounding decides a maximum or a ReLU, much further back is another number.
BOUNDS = {"vgg19": 5e-3, "inception_v2": 1e-3}


@pytest.mark.longer_cases(
    "densenet121", "inception_v2", "vgg19", "inception_v1", "zfnet512", "alexnet"
)
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_networks_by_onnxruntime(name: str) -> None:
    """float32, which is all that its convolutions take on a CPU, against PyTorch's float64."""
    runtime = pytest.importorskip("onnxruntime")
    options: Any = {"batch": 2, "image_size": SIZES.get(name), "bn": "eval"}
    graph, exact = from_onnx(name, **options), from_onnx(name, dtype=F64, **options)
    loss, _, gradients, _ = torch_step(name, exact, exact.random_batch(1), "eval")
    settings = runtime.SessionOptions()
    settings.log_severity_level = 3  # it warns of values of inputs
    model = gradient_to_onnx(graph).SerializeToString()
    session = runtime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    got = dict(zip(names, session.run(None, graph.random_batch(1)), strict=True))
    assert float(got["loss"]) == pytest.approx(float(loss.detach()), rel=1e-5)
    pairs = [(got[f"{n}_grad"], g.numpy()) for n, g in zip(graph.trainable, gradients, strict=True)]
    error = np.sqrt(sum(np.linalg.norm(have - want) ** 2 for have, want in pairs))
    norm = np.sqrt(sum(np.linalg.norm(want) ** 2 for _, want in pairs))
    assert error < BOUNDS.get(name, 1e-5) * norm
