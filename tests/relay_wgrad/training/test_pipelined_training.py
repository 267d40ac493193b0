"""Steps that are given to a device before the last is over: a stand-in for CUDA's runtime."""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import from_onnx
from relay_wgrad.training import loss_scale, state
from relay_wgrad.training import trainer as module
from relay_wgrad.training.capture import Lane, refusal
from relay_wgrad.training.devices import place
from relay_wgrad.training.graph_replay import TRIES, WARM, Repeated
from relay_wgrad.training.options import Options
from relay_wgrad.training.trainer import CHECK_EVERY, Trainer
from relay_wgrad.training.transfers import Filler
from relay_wgrad.training.update import rates
from relay_wgrad.training.whole_step import WholeStep
from tests.support.cuda_stand_in import Counting, Repeating, runtime, stand_in
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
        patch.setattr(module, "place", lambda device, options: stand_in(counted, Repeating()))
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


def test_a_state_that_is_saved_while_steps_are_on_their_way(both: Any, tmp_path: Path) -> None:
    """Its counts and its scale are those of its parameters, not of the last loss that was read."""
    on_cpu, ahead, _ = both
    pytest.importorskip("safetensors")
    given, path = batches(on_cpu, 12), tmp_path / "state.safetensors"
    on_cpu.loss_scale = ahead.loss_scale = 2.0**20  # first steps overflow
    for index, _ in enumerate(ahead.train(given, check_every=3)):
        if index == 0:
            state.save(ahead, path)
    list(on_cpu.train(given[:6]))
    state.restore(ahead, path)
    check_same(ahead, on_cpu)


def test_values_of_another_size_are_refused(both: Any) -> None:
    """A captured step would copy all of their bytes to where the parameter is."""
    ahead = both[1]
    kept = snapshot(ahead)
    for value, found in ((np.zeros((5, 8)), r"float64\[5, 8\]"),
                         (np.zeros((5, 9), "float32"), r"float32\[5, 9\]")):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^'fc_w' is float32\[5, 8\], got {found}$"):
            ahead.params["fc_w"] = value
    wrong = {**kept, "state": [*kept["state"][:-1], np.zeros(3, "float32")]}
    with pytest.raises(ValueError, match=r"got float32\[3\]$"):
        ahead.set_state(**wrong)
    check_same(ahead, both[0])


@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (64, 3), (2, 100), (0, 4)])
def test_large_batches_are_copied_by_several_threads(shape: tuple[int, ...]) -> None:
    source = np.random.default_rng(0).standard_normal(shape)
    to, filler = np.full(shape, np.nan), Filler(threads=3, part=64)
    for given in (source, -source):
        filler.copy(to, given)
        np.testing.assert_array_equal(to, given)


# ---- steps as a graph ----------------------------------------------------------------------------


def again(one: Trainer, work: Any) -> Any:
    """As if the trainer were new: its next steps are called, and then captured."""
    one._sized.last.step = Repeated(
        WholeStep(one.compiled.vm.__getitem__, one.graph, scaled=True, dynamic=True),
        work, one.place.notes.append,
    )  # fmt: skip
    return work


def test_a_graph_has_the_same_tensors_from_step_to_step(both: Any) -> None:
    on_cpu, ahead, _ = both
    work = again(ahead, Repeating())
    given = batches(on_cpu, 12)
    want = [on_cpu.step(one) for one in given]
    got = [ahead.step(one) for one in given[:WARM]]
    assert work.calls == {"done": WARM}
    got.append(ahead.step(given[WARM]))
    places = [t.data_ptr() for t in (*ahead.params.values(), *ahead.state, ahead._control)]
    kept = snapshot(ahead)
    got += list(ahead.train(given[WARM + 1 : 8], check_every=2))
    assert work.calls == {"done": WARM + 1, "captured": 1, "launches": 8 - WARM}
    # What is set goes to those places: the loss scale, a parameter, the whole state.
    ahead.set_state(**kept)
    ahead.loss_scale = kept["loss_scale"]
    ahead.params["fc_w"] = tvm.runtime.tensor(kept["params"]["fc_w"])
    assert list(ahead.train(given[WARM + 1 :])) == want[WARM + 1 :]
    assert got == want[:8]
    check_same(ahead, on_cpu)
    assert places == [t.data_ptr() for t in (*ahead.params.values(), *ahead.state, ahead._control)]
    assert work.calls["captured"] == 1


def test_what_cannot_be_captured_is_called_and_said(both: Any) -> None:
    on_cpu, ahead, _ = both
    work = again(ahead, Repeating(RuntimeError("cudaMalloc: operation\n not permitted (900)")))
    before = list(ahead.place.notes)
    given = batches(on_cpu, 6)
    assert [ahead.step(one) for one in given] == [on_cpu.step(one) for one in given]
    check_same(ahead, on_cpu)
    assert work.calls == {"done": WARM + 3, "captured": 2}
    (note,) = ahead.place.notes[len(before) :]
    assert note == (
        "steps are not one CUDA graph but called kernel by kernel: cudaMalloc: operation not"
        " permitted (900)"
    )


def test_a_runtime_that_captures_nothing(both: Any) -> None:
    """The lane itself: each call waits for what was before and for its own work."""
    on_cpu, ahead, counted = both
    again(ahead, Lane(counted, tvm.cpu()))
    before, given = list(ahead.place.notes), batches(on_cpu, 5)
    counted.calls.clear()
    assert [ahead.step(one) for one in given] == [on_cpu.step(one) for one in given]
    assert counted.calls["cudaStreamSynchronize"] == 2 * (WARM + 1 + TRIES) + TRIES
    assert counted.calls["cudaStreamBeginCapture"] == TRIES
    (note,) = ahead.place.notes[len(before) :]
    assert note.endswith("cudaStreamBeginCapture: unknown (801)")
    assert gc.isenabled()
    copied = tvm.runtime.empty((3,), "float32")
    Lane(counted, tvm.cpu()).copy(copied, tvm.runtime.tensor(np.array([1, 2, 3], "float32")))
    assert copied.numpy().tolist() == [1, 2, 3]


def test_a_profile_leaves_the_machine_as_it_was(both: Any) -> None:
    on_cpu, ahead, _ = both
    (one,) = batches(on_cpu, 1)
    seconds = ahead.profile(one, rounds=2, seconds=0.0)
    assert all(conv.kernel in seconds for conv in ahead.compiled.convolutions)
    seen = dict(seconds)
    assert ahead.step(one) == on_cpu.step(one)
    assert seconds == seen


def test_all_that_a_captured_call_makes_lives_on(both: Any) -> None:
    """Its memory is the graph's: given back, it would become another's tensors."""
    _, ahead, _ = both
    machine, places = ahead.compiled.vm, dict[str, list[int]]()

    def leaves(result: Any) -> list[Any]:
        if hasattr(result, "data_ptr"):
            return [result]
        return [leaf for part in result for leaf in leaves(part)]

    def function(name: str) -> Any:
        def called(*args: Any) -> Any:
            result = machine[name](*args)
            places[name] = [t.data_ptr() for t in leaves(result)]
            return result

        return called

    class Once(Repeating):
        def captured(self, function: Any) -> Any:
            return function(), lambda: None

    step = WholeStep(function, ahead.graph, scaled=True, dynamic=True)
    repeated = Repeated(step, Once(), ahead.place.notes.append)
    given = batches(ahead, 3)
    values = [*ahead.graph.batch_values(given[0]), rates(ahead.graph, ahead.update, 0.1, 0)]
    inputs = [tvm.runtime.tensor(value) for value in values]
    now = tvm.runtime.tensor(loss_scale.control(1.0, 0, 0, 0))
    made: Any = ahead._params.all, ahead._state, now
    for _ in range(WARM + 1):
        made = repeated(inputs, *made)
    assert repeated.is_graph
    assert set(places) == set(step.functions)
    captured = {place for some in places.values() for place in some}
    others = [leaves(ahead.gradients(batch)) for batch in given]
    assert captured.isdisjoint(t.data_ptr() for some in others for t in some)


def test_a_capture_is_tried_again(both: Any) -> None:
    """As when someone has the results of an earlier step, and the first one wanted memory."""
    on_cpu, ahead, _ = both
    work = again(ahead, Repeating(RuntimeError("not permitted")))
    before = list(ahead.place.notes)
    given = batches(on_cpu, 6)
    got = [ahead.step(one) for one in given[: WARM + 1]]
    work.refuses = None
    got += [ahead.step(one) for one in given[WARM + 1 :]]
    assert got == [on_cpu.step(one) for one in given]
    check_same(ahead, on_cpu)
    assert work.calls == {"done": WARM + 3, "captured": 2, "launches": 6 - WARM - 1}
    assert ahead.place.notes == before


def test_what_shows_that_it_cannot_be_captured(both: Any) -> None:
    one = both[1]
    assert refusal(one.module, one._sized.last.step.plain.functions) == ""  # type: ignore[attr-defined]
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    flag = relax.Var("flag", relax.TensorType((), "bool"))
    with bb.function("inner", [x]):
        bb.emit_func_output(bb.emit(relax.op.negative(x)))
    with bb.function("calls", [x]):
        bb.emit_func_output(bb.emit(relax.Call(bb.get().get_global_var("inner"), [x])))
    with bb.function("sized", [x]):
        bb.emit_func_output(bb.emit(relax.op.unique(x)))
    branch = relax.If(flag, relax.SeqExpr([], x), relax.SeqExpr([], x))
    with bb.function("chooses", [x, flag]):
        bb.emit_func_output(bb.emit(branch))
    mod = bb.get()
    for name, words in (("inner", ""), ("calls", "calls inner"), ("sized", "a size that only"),
                        ("chooses", "one of two ways")):  # fmt: skip
        found = refusal(mod, ["inner", name])
        assert words in found, found
        assert bool(found) == bool(words)


def test_memory_errors_say_how_much_there_is(both: Any) -> None:
    ahead = both[1]
    text = r"^cuda:0 is out of memory: 1\.0 of 2\.0 GiB are free"
    with pytest.raises(MemoryError, match=text), ahead.place.memory_errors():
        raise RuntimeError("CUDA: cudaMalloc: out of memory")
    with pytest.raises(RuntimeError, match=r"^else$"), ahead.place.memory_errors():
        raise RuntimeError("else")


@pytest.mark.longer
def test_a_gpu_keeps_weights_as_its_kernels_read_them(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads and sets them has them as the network does; so do gradients and state."""
    counted = made[2]
    graph = from_onnx(residual_net(blocks=0, size=6), batch=2)
    monkeypatch.setattr(module, "place", lambda device, options: stand_in(counted, Repeating()))
    one, other = (
        Trainer(graph, device, optimizer="adam", lr=0.01, layout="NHWC")
        for device in ("cuda", "cpu")
    )
    (name,) = (n for n in graph.trainable if graph.params[n].ndim == 4)
    kept_as = one.params.all[list(one.params).index(name)].numpy()
    assert (kept_as == graph.params[name].transpose(0, 2, 3, 1)).all()
    assert (one.params[name].numpy() == graph.params[name]).all()
    given = batches(other, 8)
    for which in (one, other):
        which.params[name] = np.flip(graph.params[name], 1)
    (_, got), (_, want) = (which.gradients(given[0]) for which in (one, other))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)
    losses = [other.step(batch) for batch in given]
    np.testing.assert_allclose(list(one.train(given[:6])), losses[:6], rtol=1e-5)
    kept = snapshot(one)
    list(one.train(given[:2]))
    one.set_state(**kept)
    assert all((v == kept["params"][n]).all() for n, v in snapshot(one)["params"].items())
    np.testing.assert_allclose(list(one.train(given[6:])), losses[6:], rtol=1e-5)
    pairs = zip(
        [*one.params.values(), *one.state], [*other.params.values(), *other.state], strict=True
    )
    for a, b in pairs:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-3, atol=1e-5)


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
    auto = place("auto")
    assert auto.name == "cpu"
    assert auto.notes[0].startswith("on the CPU: no GPU")
