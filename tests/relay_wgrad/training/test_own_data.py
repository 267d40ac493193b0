"""A user's own model and data: what a batch must be, NaN on the way, samples, weights back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import tvm
from onnx.reference import ReferenceEvaluator

from legalize.cpu import host_target
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import from_onnx, from_torch, to_onnx
from relay_wgrad.training.data import Data
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.training.trainer import CHECK_EVERY, Trainer
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")
MODEL = residual_net(blocks=0, size=6)
CLASSES = 5


def trainer(**options: Any) -> Trainer:
    configure_threads()
    return Trainer(from_onnx(MODEL, weights="auto"), host_target(), **options)


@pytest.fixture(scope="module")
def shared() -> Trainer:
    import relay_wgrad

    relay_wgrad.register()
    return trainer()


# ---- what a batch is --------------------------------------------------------------------------


@pytest.mark.parametrize("label", [CLASSES, 7, 100, -1, -5, -100, 10**9, -(2**63)])
def test_a_label_that_is_no_class(shared: Trainer, label: int) -> None:
    """By Trainer an error; in the compiled program NaN, and no memory of others is read."""
    batch = shared.graph.random_batch(0)
    right = shared.arguments(batch)
    batch["labels"][2] = label
    with pytest.raises(ValueError, match=rf"^labels must be 0 … 4, got {label} at index 2$"):
        shared.step(batch)
    at = [spec.name for spec in shared.graph.inputs].index("labels")
    wrong = [*right[:at], tvm.runtime.tensor(batch["labels"]), *right[at + 1 :]]
    outputs, gradients = shared.compiled.vm[ADJOINT](*wrong)
    assert np.isnan(outputs[0].numpy())
    assert all(np.isfinite(g.numpy()).all() for g in gradients)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, ("no value for argument 'labels'; a batch is x float32[4, 3, 6,"
                            " 6], labels int64[4], got x")),
        ({"labels": np.zeros(4, "int32")}, "argument 'labels' is int64[4], got int32[4]"),
        ({"labels": np.zeros(3, "int64")}, "argument 'labels' is int64[4], got int64[3]"),
        ({"x": np.zeros((4, 3, 6, 6))}, "argument 'x' is float32[4, 3, 6, 6], got float64["),
        ({"x": [1.0]}, "argument 'x' is float32[4, 3, 6, 6], got float64[1]"),
        ({"x": torch.zeros(4, 3, 6, 6).bfloat16()}, "got no array: a tensor of bfloat16 has no"),
        ({"x": torch.zeros(4, 3, 6, 6).to_sparse()}, "argument 'x' is float32[4, 3, 6, 6], got no"),
        ({"x": torch.zeros(4, 3, 6, 6, device="meta")}, "argument 'x' is float32[4, 3, 6, 6], got"),
        ({"x": np.ma.masked_less(np.zeros((4, 3, 6, 6), "float32"), 1)},
         "argument 'x' has masked values"),
    ],
)  # fmt: skip
def test_a_batch_that_is_none(shared: Trainer, change: dict[str, Any], message: str) -> None:
    batch = {**shared.graph.random_batch(0), **change}
    batch = {name: value for name, value in batch.items() if value is not None}
    with pytest.raises(ValueError, match=re.escape(message)):
        shared.step(batch)


@pytest.mark.parametrize("batch", [None, [1.0], np.zeros(3)])
def test_a_batch_that_is_no_dict(shared: Trainer, batch: Any) -> None:
    with pytest.raises(TypeError, match=r"a batch is a dict of x float32\[4, 3, 6, 6\], labels"):
        shared.step(batch)


def test_tensors_of_others_are_taken(shared: Trainer) -> None:
    batch = shared.graph.random_batch(0)
    want = shared.loss(batch)
    assert shared.loss({n: torch.tensor(v) for n, v in batch.items()}) == want
    leaf = torch.tensor(batch["x"], requires_grad=True)
    assert shared.loss({**batch, "x": leaf}) == want
    assert shared.loss({n: tvm.runtime.tensor(v) for n, v in batch.items()}) == want


# ---- what is not finite -----------------------------------------------------------------------


def test_a_loss_that_is_not_finite_changes_nothing(shared: Trainer) -> None:
    batch = shared.graph.random_batch(0)
    kept = shared.params["fc_b"]
    shared.params["fc_b"] = tvm.runtime.tensor(np.full(CLASSES, np.nan, "float32"))
    before = {name: value.numpy() for name, value in shared.params.items()}
    with pytest.raises(FloatingPointError, match=r"^step 1: the loss is nan; the parameters are"):
        shared.step(batch)
    assert shared.steps == 0
    for name, value in shared.params.items():
        np.testing.assert_array_equal(value.numpy(), before[name])
    shared.params["fc_b"] = kept


def test_a_parameter_that_is_not_finite_is_named(shared: Trainer) -> None:
    """Where the loss does not show it, after some steps."""
    one = trainer(lr=1e-3)
    batch = one.graph.random_batch(0)
    hidden = one.params["stem_mean"].numpy()  # a running statistic: training does not read it
    hidden[1] = np.nan
    one.params["stem_mean"] = tvm.runtime.tensor(hidden)
    for _ in range(CHECK_EVERY - 1):
        assert np.isfinite(one.step(batch))
    with pytest.raises(
        FloatingPointError, match=r"^after step 10: 1 of 8 values of the parameter 'stem_mean'"
    ):
        one.step(batch)
    large = np.full(8, 3e38, "float32")  # the sum overflows, no value does
    shared.params["stem_mean"] = tvm.runtime.tensor(large)
    shared.check_finite()


# ---- samples ----------------------------------------------------------------------------------


def samples(count: int = 22) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (count, 3, 6, 6)).astype("uint8")
    images[:, 0, 0, 0] = np.arange(count)
    return {"x": images, "labels": (np.arange(count) % CLASSES).astype("uint8")}


def test_minibatches(tmp_path: Path) -> None:
    """Each sample once in an epoch, with its label; the same order for a seed; from a file too."""
    graph = from_onnx(MODEL)
    data = Data(graph, samples(20), seed=3)
    assert (data.samples, data.batches) == (20, 5)
    orders = []
    for epoch in range(2):
        batches = [data.batch(5 * epoch + i) for i in range(5)]
        for batch in batches:
            graph.batch_values(batch)  # as Trainer wants it
            assert (batch["x"][:, 0, 0, 0] % CLASSES == batch["labels"]).all()
        orders.append([int(v) for b in batches for v in b["x"][:, 0, 0, 0]])
        assert sorted(orders[-1]) == list(range(20))
    assert orders[0] != orders[1]
    np.savez(tmp_path / "mine.npz", **samples(20))
    again = Data.load(tmp_path / "mine.npz", graph, seed=3)
    np.testing.assert_array_equal(again.batch(7)["x"], data.batch(7)["x"])
    assert Data(graph, samples(22)).batches == 5  # what is left over is in another epoch's


def test_masks_are_drawn_for_each_batch() -> None:
    graph = from_onnx(residual_net(blocks=0, size=6, dropout=0.5), dropout="mask")
    data = Data(graph, samples())
    first, second = (data.batch(i)["dropout_mask_0"] for i in range(2))
    assert (first != second).any()
    np.testing.assert_array_equal(data.batch(1)["dropout_mask_0"], second)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, ("no samples for labels; wanted are x float32[samples, 3, 6, 6],"
                            " labels int64[samples], got x uint8[22, 3, 6, 6]")),
        ({"labels": np.zeros(22)}, "samples are labels int64[samples], got float64[22]"),
        ({"labels": np.full(22, 9)}, "labels must be 0 … 4, got 9 at index 0"),
        ({"labels": np.zeros(21, "int64")}, "not the same number of samples in each"),
        ({"x": np.zeros((22, 6, 6, 3))}, "samples are x float32[samples, 3, 6, 6], got float64["),
        ({"x": np.full((22, 3, 6, 6), np.inf)}, "x is inf at index [0, 0, 0, 0]"),
        ({"x": np.array(["a"] * 22)}, "samples are x float32"),
    ],
)  # fmt: skip
def test_samples_that_are_refused(change: dict[str, Any], message: str) -> None:
    arrays = {n: a for n, a in {**samples(), **change}.items() if a is not None}
    with pytest.raises(ValueError, match=re.escape(message)):
        Data(from_onnx(MODEL), arrays)


def test_a_size_that_is_no_number() -> None:
    linear = torch.nn.Linear(2, 2)
    graph = from_torch(linear, (torch.rand(2, 2),), batch="N", loss="mse")
    arrays = {spec.name: np.zeros((9, 2), "float32") for spec in graph.inputs}
    assert Data(graph, arrays, size=int(np.int64(4))).batches == 2
    with pytest.raises(ValueError, match=r"size must be a number of samples, got 2\.5"):
        Data(graph, arrays, size=2.5)  # type: ignore[arg-type]


def test_too_few_samples_and_files_that_are_none(tmp_path: Path) -> None:
    graph = from_onnx(MODEL)
    with pytest.raises(ValueError, match="3 samples are less than a batch of 4"):
        Data(graph, samples(3))
    (tmp_path / "text.npz").write_text("no such thing")
    np.save(tmp_path / "one.npy", np.zeros(3))
    for name in ("text.npz", "one.npy"):
        with pytest.raises(ValueError, match=r"is no file of numpy\.savez"):
            Data.load(tmp_path / name, graph)
    with pytest.raises(FileNotFoundError):
        Data.load(tmp_path / "nothing.npz", graph)


# ---- weights back into the file ---------------------------------------------------------------


def test_trained_weights_go_back_into_the_file() -> None:
    """ONNX's own evaluator computes with them what the graph does.

    Without batch normalization, where the evaluator of opset 9 takes the batch's statistics.
    """
    model = residual_net(blocks=0, size=6, norm=False)
    graph = from_onnx(model, weights="auto")
    assert graph.weights == "initial"
    run = Trainer(graph, host_target(), lr=1e-3)
    batch = graph.random_batch(0)
    run.step(batch)
    trained = to_onnx(graph, run.params, model)
    onnx.checker.check_model(trained)
    (got,) = ReferenceEvaluator(trained).run(None, {"x": batch["x"]})
    (before,) = ReferenceEvaluator(model).run(None, {"x": batch["x"]})
    want = run.gradients(batch)[0][graph.outputs.index("logits")].numpy()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert np.abs(before - want).max() > 1e-3


def test_running_statistics_go_back_too() -> None:
    graph = from_onnx(MODEL, seed=5)
    again = from_onnx(to_onnx(graph, graph.params, MODEL), weights="initial")
    assert {"stem_mean", "stem_var"} < {*graph.params}
    for name, value in graph.params.items():
        np.testing.assert_array_equal(again.params[name], value)


def test_weights_that_nodes_make_become_initializers() -> None:
    """An architecture alone, filled with a constant, has no weights of its own."""
    graph = from_onnx("squeezenet", weights="auto")
    assert graph.weights == "seeded"
    assert from_torch(torch.nn.Linear(2, 2), (torch.rand(2, 2),)).weights == "initial"
    filled = to_onnx(graph, graph.params, "squeezenet")
    onnx.checker.check_model(filled)
    again = from_onnx(filled, weights="auto")
    assert again.weights == "initial"
    for name, file in graph.onnx_names.items():
        (same,) = (n for n, f in again.onnx_names.items() if f == file)
        np.testing.assert_array_equal(again.params[same], graph.params[name])


def test_weights_that_do_not_belong_are_refused() -> None:
    graph = from_onnx(MODEL)
    with pytest.raises(ValueError, match="no value for parameter 'stem_w'"):
        to_onnx(graph, {}, MODEL)
    with pytest.raises(ValueError, match=r"'stem_w' is \[8, 3, 3, 3\], got \[2\]"):
        to_onnx(graph, {**graph.params, "stem_w": np.zeros(2)}, MODEL)
    with pytest.raises(ValueError, match="has no initializer 'stem_w'"):
        to_onnx(graph, graph.params, "squeezenet")
    with pytest.raises(ValueError, match=r"'stem_w' is \[4, 3, 3, 3\] in the model"):
        to_onnx(graph, graph.params, residual_net(blocks=0, channels=4))


@pytest.mark.longer("pages' code is run")
def test_the_loop_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "docs" / "howto" / "training.md").read_text()
    section = text.partition("## Your own model and data")[2]
    (code, *_) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    onnx.save(MODEL, "mine.onnx")
    np.savez("mine.npz", **samples())
    names: dict[str, Any] = {}
    exec(compile(code, "training.md", "exec"), names)
    assert names["trainer"].steps == 10
    trained = from_onnx("trained.onnx", weights="initial")
    np.testing.assert_array_equal(trained.params["fc_w"], names["trainer"].params["fc_w"].numpy())
    assert (trained.params["fc_w"] != from_onnx(MODEL, weights="initial").params["fc_w"]).any()
