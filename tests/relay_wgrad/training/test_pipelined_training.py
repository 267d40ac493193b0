"""Steps that are given to a device before the last is over: a stand-in for CUDA's runtime."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tvm

from legalize.cpu import configure_threads
from relay_wgrad.frontend import from_onnx
from relay_wgrad.training import trainer as module
from relay_wgrad.training.devices import Options, Place, place
from relay_wgrad.training.trainer import CHECK_EVERY, Trainer
from tests.support.cuda_stand_in import Counting, runtime, stand_in
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Trainer, Counting]:
    """(on the CPU, on the stand-in, its runtime): one network, a dynamic loss scale."""
    import relay_wgrad

    relay_wgrad.register()
    configure_threads()
    graph = from_onnx(residual_net(blocks=0, size=6, dropout=0.25), batch=2, dropout="mask")
    options: dict[str, Any] = {"optimizer": "momentum", "dtype": "float16", "loss_scale": "dynamic"}
    counted = runtime(tmp_path_factory.mktemp("cudart"))
    on_cpu = Trainer(graph, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "place", lambda device, options: stand_in(counted))
        return on_cpu, Trainer(graph, "cuda", **options), counted


@pytest.fixture
def both(made: Any) -> Iterator[tuple[Trainer, Trainer, Counting]]:
    """As they were made, after each test."""
    start = snapshot(made[0])
    yield made
    for one in made[:2]:
        one.set_state(**start)


def snapshot(one: Trainer) -> dict[str, Any]:
    return {
        "params": {name: value.numpy() for name, value in one.params.items()},
        "state": [value.numpy() for value in one.state],
        "steps": one.steps, "skipped": one.skipped, "good_steps": one.good_steps,
        "loss_scale": one.loss_scale,
    }  # fmt: skip


def check_same(one: Trainer, other: Trainer) -> None:
    a, b = snapshot(one), snapshot(other)
    for name, value in a.pop("params").items():
        np.testing.assert_array_equal(value, b["params"][name])
    for x, y in zip(a.pop("state"), b["state"], strict=True):
        np.testing.assert_array_equal(x, y)
    assert all(a[key] == b[key] for key in a)


def batches(one: Trainer, count: int) -> list[dict[str, Any]]:
    return [one.graph.random_batch(seed) for seed in range(count)]


def test_it_is_what_the_cpu_does(both: Any) -> None:
    """Also where first steps overflow, with masks that are drawn for each step."""
    on_cpu, ahead, counted = both
    given = [{"x": b["x"], "labels": b["labels"]} for b in batches(on_cpu, 25)]
    on_cpu.loss_scale = ahead.loss_scale = 2.0**20
    want = [on_cpu.step(one) for one in given]
    counted.calls.clear()
    got = list(ahead.train(iter(given), check_every=4))
    assert got == want
    check_same(ahead, on_cpu)
    assert 1 < ahead.skipped < 20
    assert ahead.step_seconds > 0
    # Nothing is asked of the device but the reports, and when a batch's place is free.
    assert counted.calls["cudaEventSynchronize"] == 2 * 25
    assert counted.calls["cudaStreamSynchronize"] == 0


def test_losses_come_late_and_all(both: Any) -> None:
    _, ahead, _ = both
    drawn = 0

    def draw() -> Iterator[dict[str, Any]]:
        nonlocal drawn
        for one in batches(ahead, 11):
            drawn += 1
            yield one

    seen = [drawn for _ in ahead.train(draw(), check_every=3)]
    assert seen == [6, 6, 6, 9, 9, 9, 11, 11, 11, 11, 11]
    with pytest.raises(ValueError, match="check_every must be at least 1, got 0"):
        list(ahead.train([], check_every=0))


def test_it_stops_where_the_loss_is_not_finite(both: Any) -> None:
    on_cpu, ahead, _ = both
    given = batches(on_cpu, 14)
    broken = copy.deepcopy(given)
    broken[5]["x"][0, 0, 0, 0] = np.inf
    for one in (on_cpu, ahead):
        losses: list[float] = []
        with pytest.raises(FloatingPointError, match=r"^step 6: the loss is nan; the parameters"):
            losses.extend(one.train(broken, check_every=3))
        assert len(losses) == one.steps == 5
    check_same(ahead, on_cpu)
    assert list(ahead.train(given[5:])) == list(on_cpu.train(given[5:]))


def test_it_stops_where_a_gradient_overflows_without_a_scale(both: Any) -> None:
    on_cpu, ahead, _ = both
    given = batches(on_cpu, 3)
    for one in (on_cpu, ahead):
        # Finite as a loss, its gradient is not: in half precision the weight is infinite.
        one.params["fc_w"] = tvm.runtime.tensor(np.full((5, 8), 1e-7, "float32"))
        one.params["stem_scale"] = tvm.runtime.tensor(np.full(8, 1e30, "float32"))
        one.loss_scale = 1.0
        before = snapshot(one)["params"]["fc_w"]
        with pytest.raises(FloatingPointError, match=r"^step 1: "):
            one.step(given[0])
        np.testing.assert_array_equal(one.params["fc_w"].numpy(), before)


def test_a_parameter_that_is_not_finite_is_named(both: Any) -> None:
    _, ahead, _ = both
    hidden = ahead.params["stem_mean"].numpy()
    hidden[1] = np.nan
    ahead.params["stem_mean"] = tvm.runtime.tensor(hidden)
    losses: list[float] = []
    with pytest.raises(FloatingPointError, match=r"1 of 8 values of the parameter 'stem_mean'"):
        losses.extend(ahead.train(batches(ahead, 40)))
    assert len(losses) == CHECK_EVERY - 1


def test_who_stops_asking_leaves_a_whole_state(both: Any) -> None:
    on_cpu, ahead, _ = both
    given = batches(on_cpu, 12)
    for index, _ in enumerate(ahead.train(given, check_every=2)):
        if index == 3:
            break
    assert ahead.steps == 6
    list(on_cpu.train(given[:6]))
    check_same(ahead, on_cpu)


def test_memory_errors_say_how_much_there_is(both: Any) -> None:
    ahead = both[1]
    text = r"^cuda:0 is out of memory: 1\.0 of 2\.0 GiB are free"
    with pytest.raises(MemoryError, match=text), ahead.place.memory_errors():
        raise RuntimeError("CUDA: cudaMalloc: out of memory")
    with pytest.raises(RuntimeError, match=r"^else$"), ahead.place.memory_errors():
        raise RuntimeError("else")


# ---- names of devices --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:1000", "CPU", "cuda 0", ""])
def test_devices_by_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="device must be cpu, cuda, cuda:N or auto, got"):
        place(name)


def test_devices_of_other_types_are_refused() -> None:
    with pytest.raises(TypeError, match="device must be cpu, cuda, cuda:N or auto"):
        place(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="for a GPU give device='cuda', not a target"):
        place(tvm.target.Target({"kind": "cuda", "arch": "sm_90"}))


@pytest.mark.skipif(bool(tvm.cuda(0).exist), reason="there is a GPU")
def test_without_a_gpu_it_is_said_what_is_missing() -> None:
    with pytest.raises(ValueError, match=r"^device 'cuda' cannot be trained on: no GPU"):
        place("cuda", Options())
    auto: Place = place("auto")
    assert auto.name == "cpu"
    assert auto.notes[0].startswith("on the CPU: no GPU")
