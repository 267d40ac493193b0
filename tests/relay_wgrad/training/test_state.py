"""State saved and restored: training goes on as if it had not been interrupted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import relax

from byoc_cudnn.updates.call import SLOTS
from legalize.cpu import host_target
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import from_onnx
from relay_wgrad.training import state
from relay_wgrad.training.optim import OPTIMIZERS, initial_state, make_optimizer, state_of
from relay_wgrad.training.trainer import Trainer
from tests.support.training_models import residual_net

safetensors_numpy = pytest.importorskip("safetensors.numpy")


pytestmark = pytest.mark.usefixtures("registered")


def trainer(channels: int = 4, **options: Any) -> Trainer:
    configure_threads()
    graph = from_onnx(residual_net(blocks=0, channels=channels, size=6), batch=2)
    return Trainer(graph, host_target(), **{"optimizer": "adam", **options})


@pytest.mark.longer_cases("adam")
@pytest.mark.share(2)
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam"},
        {"optimizer": "momentum", "dtype": "float16", "loss_scale": "dynamic"},
    ],
    ids=["adam", "dynamic"],
)
def test_losses_go_on(tmp_path: Path, options: dict[str, Any]) -> None:
    whole = trainer(**options)
    batch = whole.graph.random_batch(0)
    if whole.loss_scale is not None:
        whole.loss_scale = 2.0**18  # some first steps overflow
    path = tmp_path / "state.safetensors"
    for _ in range(4):
        whole.step(batch)
    state.save(whole, path)
    before = (whole.skipped, whole.loss_scale, whole.good_steps)
    want = [whole.step(batch) for _ in range(3)]
    assert len({*want}) == 3

    again = trainer(**options)
    for one in (whole, again):  # the very program, and another of the same network
        state.restore(one, path)
        assert (one.skipped, one.loss_scale, one.good_steps) == before
        assert [one.step(batch) for _ in range(3)] == want
        assert one.steps == 7
    assert (before[0] > 0) == (whole.loss_scale is not None)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_what_is_refused(tmp_path: Path) -> None:
    small = trainer()
    path = tmp_path / "state.safetensors"
    state.save(small, path)
    before = {name: value.numpy() for name, value in small.params.items()}
    with pytest.raises(FileNotFoundError, match="no state file"):
        state.restore(small, tmp_path / "nowhere")
    (tmp_path / "text").write_text("no such thing")
    with pytest.raises(ValueError, match="not a safetensors file"):
        state.restore(small, tmp_path / "text")
    safetensors_numpy.save_file({"x": np.zeros(2)}, tmp_path / "other")
    with pytest.raises(ValueError, match="it lacks"):
        state.restore(small, tmp_path / "other")
    found, tensors = state.read(path)
    safetensors_numpy.save_file(tensors, tmp_path / "old", {**found, "format": "relay-wgrad 0"})
    with pytest.raises(ValueError, match="'relay-wgrad 0', not a 'relay-wgrad 1'"):
        state.restore(small, tmp_path / "old")
    for key, name in (({"format": "9" * 5000}, "x"), ({}, "a\nb"), ({}, "b" * 5000)):
        named = {**tensors, name: np.zeros(2, "float32")}
        safetensors_numpy.save_file(named, tmp_path / "long", {**found, **key})
        with pytest.raises(ValueError, match=r"is a '999|has missing") as caught:
            state.restore(small, tmp_path / "long")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000
    changed = {**tensors, "param.stem_w": np.zeros((3, 4), "float32")}
    safetensors_numpy.save_file(changed, tmp_path / "shape", found)
    with pytest.raises(ValueError, match=r"its param.stem_w is float32\[3, 4\], but .* has"):
        state.restore(small, tmp_path / "shape")
    small.optimizer = "sgd"
    with pytest.raises(ValueError, match="optimizer='adam', not 'sgd'"):
        state.restore(small, path)
    for name, value in small.params.items():
        assert np.array_equal(value.numpy(), before[name])
    graph = small.graph
    with pytest.raises(ValueError, match="optimizer='adam', not 'sgd'"):
        state.check(path, graph, "sgd")
    with pytest.raises(ValueError, match=r"its param.stem_w is float32\[3, 4\], but .* has"):
        state.check(tmp_path / "shape", graph, "adam")
    state.check(path, graph, "adam")
    assert state.header(path)["optimizer"] == "adam"
    with pytest.raises(OSError, match="nowhere"):
        state.save(small, tmp_path / "nowhere" / "state")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(graph, path, metadata, tensors) of a state of two steps; nothing is compiled."""
    import relay_wgrad

    relay_wgrad.register()
    graph = from_onnx(residual_net(blocks=0, channels=4, size=6), batch=2)
    tensors = {f"param.{name}": value for name, value in graph.params.items()}
    for i, value in enumerate(initial_state(graph, "momentum")):
        tensors[f"optimizer.{i}"] = value.numpy()
    tensors["optimizer.0"] = np.array(1, "int64")
    values = (state.FORMAT, graph.name, "momentum", "0.01", "2", "1024.0", "1", "1")
    return graph, dict(zip(state._KEYS, values, strict=True)), tensors


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *(("steps", v, "a number of steps") for v in ("-5", "1.5", "", " 2", "1_0", "٣", "9" * 99)),
        ("skipped", "-1", "a number of steps"),
        ("good_steps", "nan", "a number of steps"),
        ("skipped", "3", "at most its steps, '2'"),
        ("good_steps", "3", "at most its steps, '2'"),
        *(("loss_scale", v, "a positive number") for v in ("nan", "inf", "-1.0", "0.0", "big", "")),
        ("loss_scale", "1e300", "one that float32 holds"),
        ("loss_scale", "1e-300", "one that float32 holds"),
        *(("lr", v, "a positive number") for v in ("None", "nan", "inf", "-0.1", "0")),
    ],
)  # fmt: skip
def test_metadata_that_no_training_has(
    key: str, value: str, expected: str, made: Any, tmp_path: Path
) -> None:
    graph, found, tensors = made
    path = tmp_path / "s.safetensors"
    state.write(path, tensors, found)
    state.check(path, graph, "momentum")
    state.write(path, tensors, {**found, key: value})
    message = re.escape(f"{str(path)!r}: {key} is {value!r:.60}, not {expected}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        state.header(path)
    with pytest.raises(ValueError, match=f"^{message}$"):
        state.check(path, graph, "momentum")


def test_tensors_that_no_training_has(made: Any, tmp_path: Path) -> None:
    graph, found, tensors = made
    path = tmp_path / "s.safetensors"

    def refused(message: str, **change: Any) -> None:
        state.write(path, {**tensors, **change}, found)
        with pytest.raises(ValueError, match=re.escape(message)):
            state.check(path, graph, "momentum")

    bad = tensors["param.stem_w"].copy()
    bad[1, 2, 0, 0], bad[3, 0, 0, 0] = np.nan, -np.inf
    refused("2 of 108 values of its param.stem_w are not finite: nan at index [1, 2, 0, 0]",
            **{"param.stem_w": bad})  # fmt: skip
    refused("values of its optimizer.1 are not finite: inf",
            **{"optimizer.1": np.full_like(tensors["optimizer.1"], np.inf)})  # fmt: skip
    refused("its optimizer.0 counts -1 updates, but 2 steps less 1 skipped are 1",
            **{"optimizer.0": np.array(-1, "int64")})  # fmt: skip
    refused("its optimizer.0 is int32[], but", **{"optimizer.0": np.array(1, "int32")})
    refused("its optimizer.99 is float32[1], but 'residual' has missing",
            **{"optimizer.99": np.zeros(1, "float32")})  # fmt: skip
    refused("its param.fc_b is float64[5], but", **{"param.fc_b": np.zeros(5)})


@pytest.mark.parametrize("scale", [1e300, 1e-300, float("nan"), float("inf"), 0.0])
def test_loss_scales_that_float32_does_not_hold(scale: float, made: Any) -> None:
    with pytest.raises(ValueError, match="loss_scale must be a positive number"):
        Trainer(made[0], host_target(), dtype="float16", loss_scale=scale)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_whose_each_tensor_is(optimizer: str) -> None:
    """Also where there are as few parameters as scalars."""
    for count in (1, 2, 3, 5):
        names = [f"p{i}" for i in range(count)]
        variables = [relax.Var(name, relax.TensorType((2, 3), "float32")) for name in names]
        found = list(make_optimizer(optimizer, lr=0.1).init(variables).state)
        whose = state_of(names, optimizer, len(found))
        assert [name != "" for name in whose] == [tuple(t.shape) == (2, 3) for t in found]
        each = OPTIMIZERS[optimizer].slots
        assert SLOTS[optimizer.removesuffix("w")] == each  # of the kernel
        assert [name for name in whose if name] == names * each
