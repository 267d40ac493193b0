"""State saved and restored: training goes on as if it had not been interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from legalize.cpu import configure_threads, host_target
from relay_wgrad import state
from relay_wgrad.frontend import from_onnx
from relay_wgrad.training import Trainer
from tests.training_models import residual_net

safetensors_numpy = pytest.importorskip("safetensors.numpy")


pytestmark = pytest.mark.usefixtures("registered")


def trainer(channels: int = 4, **options: Any) -> Trainer:
    configure_threads()
    graph = from_onnx(residual_net(blocks=0, channels=channels, size=6), batch=2)
    return Trainer(graph, host_target(), **{"optimizer": "adam", **options})


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
