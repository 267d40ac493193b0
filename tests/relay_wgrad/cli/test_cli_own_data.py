"""The command line on a user's own model and data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.support.training_models import residual_net


def test_open_sizes(tmp_path: Path, call: Any) -> None:
    """A batch that the file leaves open is the same everywhere; of others each is named."""
    path, report = tmp_path / "mine.onnx", tmp_path / "report.json"
    model = residual_net(blocks=0)
    sizes = model.graph.input[0].type.tensor_type.shape.dim
    sizes[0].dim_param = "N"
    onnx.save(model, path)
    for command in ("partition", "inspect"):
        assert call(command, str(path), "--format", "json")[0] == 0
    assert call("inspect", str(path), "--report", str(report))[0] == 0
    assert json.loads(report.read_text())["facts"]["batch"] == 4
    sizes[2].dim_param = "H"
    onnx.save(model, path)
    code, _, error = call("inspect", str(path))
    assert (code, error) == (
        1, "ValueError: input 'x' has symbolic sizes [4, 3, 'H', 12]: give --image-size\n"
    )  # fmt: skip
    assert call("inspect", str(path), "--image-size", "12")[0] == 0
    sizes[1].dim_param = "C"
    onnx.save(model, path)
    error = call("inspect", str(path), "--image-size", "12")[2]
    assert error.endswith("[4, 'C', 12, 12]: fix C in the file\n")


def test_several_results(tmp_path: Path, call: Any) -> None:
    path = tmp_path / "mine.onnx"
    model = residual_net(blocks=0)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("pool"))
    onnx.save(model, path)
    code, _, error = call("partition", str(path))
    assert (code, error) == (
        1, "ValueError: mine has several outputs: choose --output-name one of y, pool\n"
    )  # fmt: skip
    assert call("partition", str(path), "--output-name", "y")[0] == 0
    assert call("partition", str(path), "--output-name", "pool")[0] == 0  # a label for each pixel
    assert call("partition", str(path), "--output-name", "pool", "--loss", "mse")[0] == 0


@pytest.mark.longer
def test_own_model_and_data(tmp_path: Path, call: Any) -> None:
    """The file's weights, samples of a file, a state that goes on, weights back into a file."""
    pytest.importorskip("safetensors")
    path, data, state = (tmp_path / n for n in ("mine.onnx", "mine.npz", "state.safetensors"))
    trained, figures = tmp_path / "trained.onnx", tmp_path / "figures.json"
    onnx.save(residual_net(blocks=0, size=6), path)
    rng = np.random.default_rng(0)
    labels = np.arange(20) % 5
    images = rng.standard_normal((20, 3, 6, 6)) + labels[:, None, None, None]
    np.savez(data, x=images, labels=labels)

    def losses(*args: str) -> tuple[list[float], str, str]:
        code, text, error = call("train", str(path), "--data", str(data), "--no-check",
                                 "--json", str(figures), *args)  # fmt: skip
        assert code == 0, error
        return json.loads(figures.read_text())["losses"], text, error

    whole, text, _ = losses("--steps", "30", "--lr", "0.02", "--optimizer", "momentum")
    assert "weights: the file's own; samples: 20 of " in text
    assert "5 batches of 4 an epoch\n" in text
    assert "loss, mean of every 3 steps: " in text
    assert len(whole) == 30
    assert np.mean(whole[-5:]) < 0.7 * np.mean(whole[:5])
    first, _, error = losses("--steps", "7", "--lr", "0.02", "--optimizer", "momentum",
                             "--save", str(state))  # fmt: skip
    assert f"saved to {state}\n" in error
    # The optimizer and the rate are the saved ones; the samples go on where they were.
    second, text, error = losses("--steps", "3", "--resume", str(state), "--export", str(trained))
    assert f"weights: of {state}" in text
    assert f"saved to {trained}\n" in error
    assert first + second == whole[:10]
    assert "weights: the file's own" in call("train", str(trained), "--no-check", "--steps", "1",
                                             "--bn", "eval")[1]  # fmt: skip


@pytest.mark.longer
def test_seeded_weights_are_said(tmp_path: Path, call: Any) -> None:
    path = tmp_path / "mine.onnx"
    onnx.save(residual_net(blocks=0, size=6), path)
    code, text, _ = call("train", str(path), "--no-check", "--weights", "seeded", "--seed", "3")
    assert code == 0
    assert text.startswith("weights: random, by seed 3; samples: one random batch of 4, by seed 3")
    assert "changes in the step" in text
    assert "none between operators" in text
    assert " ms (batch 4" in text  # a step of less than a hundredth of a second


def test_samples_that_are_left_over_are_said(tmp_path: Path, call: Any) -> None:
    path, data = tmp_path / "mine.onnx", tmp_path / "mine.npz"
    onnx.save(residual_net(blocks=0, size=6), path)
    images = np.random.default_rng(0).standard_normal((11, 3, 6, 6))
    np.savez(data, x=images, labels=np.arange(11) % 5)
    code, text, _ = call("train", str(path), "--data", str(data), "--no-check", "--steps", "1")
    assert code == 0
    assert "2 batches of 4 an epoch, 3 left over, other ones each time" in text


def test_a_loss_that_is_not_finite(tmp_path: Path, call: Any) -> None:
    path, state = tmp_path / "mine.onnx", tmp_path / "state.safetensors"
    onnx.save(residual_net(blocks=0, size=6, norm=False), path)
    code, text, error = call("train", str(path), "--lr", "1e38", "--no-check", "--save", str(state))
    assert code == 1
    assert "loss: " in text  # as far as it went
    assert "FloatingPointError: " in error
    assert "lower the learning rate" in error
    assert not state.exists()


def test_another_optimizer_is_noticed_at_once(
    tmp_path: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is compiled."""
    pytest.importorskip("safetensors")
    path, state = tmp_path / "mine.onnx", tmp_path / "state.safetensors"
    onnx.save(residual_net(blocks=0, size=6), path)
    assert call("train", str(path), "--no-check", "--lr", "0.01", "--save", str(state))[0] == 0

    def never(*args: object, **options: object) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr("relay_wgrad.cli.train.Trainer", never)
    error = call("train", str(path), "--resume", str(state), "--optimizer", "adam")[2]
    assert "was saved with optimizer='sgd', not 'adam'" in error
    onnx.save(residual_net(blocks=0, size=6, channels=4), path)
    error = call("train", str(path), "--resume", str(state))[2]
    assert "its param.fc_w is float32[5, 8], but 'mine' has float32[5, 4]" in error
    model = residual_net(blocks=0, size=6)
    for node in model.graph.node:
        node.input[:] = [name.replace("fc_w", "head") for name in node.input]
    for weight in model.graph.initializer:
        weight.name = weight.name.replace("fc_w", "head")
    onnx.save(model, path)
    error = call("train", str(path), "--resume", str(state))[2]
    assert f"mine: {str(state)!r} trained " in error
    assert "fc_w matches no parameter" in error


@pytest.mark.longer("two trainings")
def test_updates_and_parts(tmp_path: Path, call: Any) -> None:
    """A schedule, decay and averages of a part of the parameters, saved and gone on with."""
    pytest.importorskip("safetensors")
    path, state, trained = (tmp_path / n for n in ("m.onnx", "s.safetensors", "t.onnx"))
    model = residual_net(blocks=0, size=6)
    onnx.save(model, path)
    plain = ("train", str(path), "--steps", "2", "--no-check", "--bn", "frozen")
    code, out, error = call(
        *plain, "--schedule", "cosine(warmup=1)", "--optimizer", "adamw", "--weight-decay", "0.1",
        "--ema", "0.5", "--save", str(state), "--export", str(trained), "--lr", "0.01",
        "--train", "fc_*",
    )  # fmt: skip
    assert code == 0, error
    assert "weight gradients" in out
    assert "left out" in out
    names = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    after = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(trained).graph.initializer}
    assert {n for n in names if (names[n] != after[n]).any()} == {"fc_w", "fc_b"}
    # What is trained is what was.
    with pytest.warns(UserWarning, match=r"cosine\(warmup=1, steps=2\) is over"):
        code, out, error = call(*plain, "--resume", str(state), "--json", str(tmp_path / "f.json"))
    assert code in (0, 1), error
    assert "left out" in out
    figures = json.loads((tmp_path / "f.json").read_text())
    # The schedule is the saved one, whose two steps are over: the rate is 0.
    assert figures["losses"][0] == figures["losses"][-1]
    for options, status, message in (
        (("--decay", "all"), 2, "--decay all: there is no --weight-decay"),
        (("--train", "fc_x"), 1, "--train fc_x matches no parameter; near it: fc_"),
        (("--schedule", "cosine(warmup=2)"), 1, "warmup must be less than steps, 2, got 2"),
    ):
        code, _, error = call("train", str(path), "--steps", "2", "--no-check", *options)
        assert (code, message in error) == (status, True), error


def training_file(path: Path) -> None:
    """A network as an exporter writes it in training mode."""
    rng, node = np.random.default_rng(0), onnx.helper.make_node
    held = {
        "w": 0.3 * rng.standard_normal((4, 3, 3, 3)), "s": np.ones(4), "b": np.zeros(4),
        "m": np.zeros(4), "v": np.ones(4), "fc": 0.1 * rng.standard_normal((64, 5)), "ratio": 0.4,
    }  # fmt: skip
    arrays = [onnx.numpy_helper.from_array(np.asarray(a, "float32"), n) for n, a in held.items()]
    arrays.append(onnx.numpy_helper.from_array(np.array(True), "on"))
    nodes = [
        node("Conv", ["x", "w"], ["c"]),
        node("BatchNormalization", ["c", *"sbmv"], ["n", "m2", "v2"], training_mode=1),
        node("Dropout", ["n", "ratio", "on"], ["d"]), node("Flatten", ["d"], ["f"]),
        node("MatMul", ["f", "fc"], ["y"]),
    ]  # fmt: skip
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        nodes, "mine", [onnx.helper.make_tensor_value_info("x", kind, ["n", 3, 6, 6])],
        [onnx.helper.make_tensor_value_info("y", kind, ["n", 5])], arrays,
    )  # fmt: skip
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]), path)


@pytest.mark.longer("files for training are ONNX's writer's, and evaluated there")
def test_a_file_for_training(tmp_path: Path, call: Any) -> None:
    """Its dropout is on, and what is written predicts as --test evaluates: of averages, too."""
    path, log, made = tmp_path / "mine.onnx", tmp_path / "log.csv", tmp_path / "made.onnx"
    training_file(path)
    rng, figures = np.random.default_rng(0), tmp_path / "figures.json"
    for name, count in (("data", 12), ("test", 11)):
        images = rng.standard_normal((count, 3, 6, 6), "float32")
        np.savez(tmp_path / f"{name}.npz", x=images, labels=np.arange(count) % 5)
    words = ("train", str(path), "--data", str(tmp_path / "data.npz"), "--no-check")
    code, text, error = call(
        *words, "--epochs", "2", "--test", str(tmp_path / "test.npz"), "--ema", "0.5", "--json",
        str(figures), "--log", str(log), "--export", str(made),
    )  # fmt: skip
    assert code == 0, error
    assert "switched off" not in text
    line = "which is for inference: 1 BatchNormalization by running statistics, 1 Dropout off"
    assert line in error.splitlines()
    held = np.load(tmp_path / "test.npz")
    runner = ReferenceEvaluator(onnx.load(made))
    logits = runner.run(None, {"x": held["x"]})[0].astype("float64")
    chosen = logits[np.arange(11), held["labels"]]
    last = json.loads(figures.read_text())["evaluations"][-1]
    assert last["samples"] == 11
    assert last["loss"] == pytest.approx((np.log(np.exp(logits).sum(1)) - chosen).mean(), rel=1e-4)
    assert last["accuracy"] == pytest.approx((logits.argmax(1) == held["labels"]).mean())
    rows = [row.split(",")[1] for row in log.read_text().splitlines()[1:]]
    assert rows == ["1", "1", "1", "1.0", "2", "2", "2", "2.0"]

    code, text, error = call(*words, "--steps", "1", "--dropout", "off", "--export", str(made),
                             "--export-mode", "training")  # fmt: skip
    assert code == 0, error
    assert "switched off: dropout of 1 node (d)\n" in text
    assert "which is for training" in error.splitlines()
    assert onnx.load(made).graph.node[2].input[2] == "on"
