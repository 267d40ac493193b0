"""An open batch where a step is for a number of images, as on a GPU; a stand-in for CUDA's runtime.

The steps for several numbers are beside trainers of one number each, which hand their state on.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax

from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training import Trainer, Update, evaluation, state
from relay_wgrad.training import trainer as module
from relay_wgrad.training.compiled import Compiled, compile_module
from relay_wgrad.training.data import Data
from relay_wgrad.training.devices import place
from relay_wgrad.training.evaluation import Evaluator
from relay_wgrad.training.graph_replay import WARM, Repeated
from relay_wgrad.training.options import Options
from relay_wgrad.training.places import Place
from relay_wgrad.training.step import ADJOINT, step_module
from relay_wgrad.training.stored_layout import kept_in_layout
from tests.support.cuda_stand_in import Counting, Repeating, runtime, stand_in
from tests.support.fast import FAST
from tests.support.trained import same, snapshot

pytestmark = pytest.mark.usefixtures("registered")

SIZES = (4, 4, 3, 4, 1, 3)
DYNAMIC: dict[str, Any] = {
    "lr": 0.05, "layout": "NHWC", "dtype": "float16", "loss_scale": "dynamic", "seed": 3,
}  # fmt: skip
MOMENTUM = DYNAMIC | {"optimizer": "momentum"}


def graph_of(**options: Any) -> TrainingGraph:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2),
        nn.Flatten(), nn.Linear(8 * 16, 4),
    )  # fmt: skip
    return from_torch(net, (torch.zeros(2, 3, 4, 4),), batch="N", **options)


@pytest.fixture(scope="module")
def graph() -> TrainingGraph:
    return graph_of(dropout="mask")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counting:
    configure_threads()
    return runtime(tmp_path_factory.mktemp("cudart"))


@pytest.fixture
def on(counted: Counting, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a trainer, or an evaluator, on the stand-in; it keeps so many sizes."""

    def made(
        what: Any, graph: TrainingGraph, *, sizes: int = 4, work: Any = None, **opts: Any
    ) -> Any:
        where = stand_in(counted, work or Repeating(), sizes, FAST)
        monkeypatch.setattr(where, "compile", compile_once)
        for owner in (module, evaluation):
            monkeypatch.setattr(owner, "place", lambda device, options: where)
        return what(graph, "cuda", **opts)

    return made


_built: dict[int, Compiled] = {}


def compile_once(mod: tvm.IRModule, progress: Any) -> Compiled:
    """Trainers of one number and of several have the same modules; each has its own machine."""
    key = tvm_ffi.structural_hash(mod)
    if key not in _built:
        _built[key] = compile_module(mod, FAST)
    for words in ("generating kernels", "compiling"):
        progress(words)
    known = _built[key]
    return replace(known, vm=relax.VirtualMachine(known.executable, tvm.cpu()))


def batches(sizes: Any, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {"input": rng.standard_normal((n, 3, 4, 4), dtype=np.float32),
         "labels": rng.integers(0, 4, n)}
        for n in sizes
    ]  # fmt: skip


# Sums of gradients may have overflowed: then no update takes them.
equal = partial(same, nan=True)


def handed_on(of: dict[int, Trainer], given: Any, scale: float | None = None) -> Any:
    """(losses, the state at the end) of trainers of one size each."""
    losses, now = list[float](), None
    for batch in given:
        one = of[len(batch["labels"])]
        if now is not None:
            one.set_state(**now)
        elif scale is not None:
            one.loss_scale = scale
        losses.append(one.step(batch))
        now = snapshot(one)
    return losses, now


@pytest.mark.longer
@pytest.mark.parametrize(
    "options",
    [MOMENTUM, DYNAMIC | {"optimizer": "adam", "update": Update(accumulate=2, ema=0.9)}],
    ids=["momentum", "accumulated"],
)
def test_steps_of_several_sizes_are_those_of_one_each(
    graph: TrainingGraph, on: Any, options: dict[str, Any]
) -> None:
    """Bit for bit: one after another, in a pipeline, and as graphs, which share their places."""
    fixed = {n: on(Trainer, graph.of_batch(n), **options) for n in {*SIZES}}
    given = batches(SIZES * 4)
    scale = 2.0**20  # first steps overflow
    want, end = handed_on(fixed, given, scale)
    assert 0 < end["skipped"] < len(given)
    words = list[str]()
    work = Repeating()
    one = on(Trainer, graph, work=work, progress=words.append, **options)
    start = snapshot(one)
    one.loss_scale = scale
    assert words == []
    got = [one.step(batch) for batch in given[:2]] + list(one.train(given[2:], check_every=3))
    assert got == want
    assert equal(snapshot(one), end)
    parts = ["differentiating", "converting to NHWC", "generating kernels", "compiling"]
    assert words == [f"{p} for {n} image{'s' * (n > 1)}" for n in (4, 3, 1) for p in parts]
    assert one._sized.sizes == (4, 1, 3)
    assert work.calls["captured"] == 3
    (weight,) = (name for name in graph.trainable if graph.params[name].ndim == 4)
    assert dict(one._kept.axes) == {weight: (0, 2, 3, 1)}
    # All graphs have one place for each parameter, and no copies of it.
    places = [t.data_ptr() for t in (*one.params.all, *one._state, one._control)]
    for batch in given[:6]:
        one.step(batch)
        assert places == [t.data_ptr() for t in (*one.params.all, *one._state, one._control)]
    one.set_state(**start)
    one.loss_scale = scale
    assert list(one.train(given, check_every=2)) == want
    assert equal(snapshot(one), end)


def test_gradients_and_losses(graph: TrainingGraph, on: Any) -> None:
    one = on(Trainer, graph, **MOMENTUM)
    (weight,) = (name for name in graph.trainable if graph.params[name].ndim == 4)
    # What is read and set before anything is compiled.
    with pytest.raises(ValueError, match="its batch is open, and for this device nothing is comp"):
        one.compiled  # noqa: B018
    one.params[weight] = np.flip(graph.params[weight], 1)
    kept = snapshot(one)
    assert (kept["params"][weight] == np.flip(graph.params[weight], 1)).all()
    for batch in batches((4, 3)):
        n = len(batch["labels"])
        batch |= graph.draws(0, 0, n)
        other = on(Trainer, graph.of_batch(n), **MOMENTUM)
        other.set_state(**kept)
        (_, ours), (_, theirs) = (which.gradients(batch) for which in (one, other))
        assert all((a.numpy() == b.numpy()).all() for a, b in zip(ours, theirs, strict=True))
        assert one.loss(batch) == other.loss(batch)
        assert [c.problem for c in one.compiled.convolutions] == [
            c.problem for c in other.compiled.convolutions
        ]
        assert one.layout_changes == other.layout_changes
        assert set(one.profile(batch, 1, 0.0)) == set(other.profile(batch, 1, 0.0))
    assert equal(snapshot(one), kept)


@pytest.mark.longer("of PyTorch's functions stays")
def test_the_least_recently_used_goes(graph: TrainingGraph, on: Any) -> None:
    fixed = {n: on(Trainer, graph.of_batch(n), **MOMENTUM) for n in (4, 3, 1)}
    given = batches((4, 4, 4, 4, 3, 4, 1, 3, 4, 4, 1))
    want, end = handed_on(fixed, given)
    words = list[str]()
    one = on(Trainer, graph, sizes=2, **MOMENTUM, progress=words.append)
    losses, sizes, last = [], [], {}
    for loss, batch in zip(one.train(given, check_every=1), given, strict=True):
        losses.append(loss)
        last[len(batch["labels"])] = weakref.ref(one.compiled)
        sizes.append(one._sized.sizes)
    assert losses == want
    assert equal(snapshot(one), end)
    assert max(map(len, sizes)) == 2
    # 3 went for 1, came again for 4, which came for 1, and 3 went for 1.
    compiled = [w.split()[2] for w in words if w.startswith("compiling")]
    assert compiled == ["4", "3", "1", "3", "4", "1"]
    assert one._sized.sizes == (4, 1)


def test_what_goes_is_gone(graph: TrainingGraph, on: Any, counted: Counting) -> None:
    """When the device is done, by itself: a machine and its graph hold the device's memory."""

    class Once(Repeating):
        def captured(self, function: Any) -> Any:
            return None, lambda: None

    one = on(Trainer, graph, sizes=1, work=Once(), **MOMENTUM)
    for batch in batches((4,) * (WARM + 2)):
        one.step(batch)
    repeated = one._sized.last.step
    assert isinstance(repeated, Repeated)
    assert repeated.is_graph
    left = [weakref.ref(x) for x in (one._sized.last, repeated, one._sized.last.places)]
    machine = weakref.ref(one.compiled)
    del repeated
    counted.calls.clear()
    gc.disable()
    try:
        one.step(batches((3,))[0])
        assert counted.calls["cudaDeviceSynchronize"] == 1
        one.step(batches((3,))[0])  # the last step's place was the line's
        assert [ref() for ref in (*left, machine)] == [None] * 4
    finally:
        gc.enable()


@pytest.mark.longer
def test_a_state_goes_on_in_other_sizes(graph: TrainingGraph, on: Any, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    path, given = tmp_path / "state.safetensors", batches(SIZES * 2)
    one = on(Trainer, graph, **MOMENTUM)
    list(one.train(given[:5]))
    state.save(one, path)
    want = list(one.train(given[5:]))
    other = on(Trainer, graph, **MOMENTUM)
    state.restore(other, path)  # nothing is compiled yet
    assert list(other.train(given[5:])) == want
    assert equal(snapshot(other), snapshot(one))
    state.restore(one, path)
    assert list(one.train(given[5:])) == want
    on_cpu = Trainer(graph, FAST, **MOMENTUM)
    state.restore(on_cpu, path)
    np.testing.assert_allclose(list(on_cpu.train(given[5:])), want, rtol=1e-4)


def test_an_evaluation(on: Any) -> None:
    graph = graph_of(bn="eval")
    samples = batches((11,))[0]
    data = Data(graph, samples, size=4)
    one, on_cpu = on(Evaluator, graph, layout="NHWC"), Evaluator(graph, FAST)
    assert one._sized.sizes == ()
    found, want = (which(graph.params, data) for which in (one, on_cpu))
    assert found.loss == pytest.approx(want.loss, rel=1e-5)
    assert found[1:] == want[1:]
    assert one._sized.sizes == (4, 3)


def test_what_is_refused_leaves_all_as_it_was(on: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 4), nn.BatchNorm2d(4), nn.Flatten())
    graph = from_torch(net, (torch.zeros(2, 3, 4, 4),), batch="N")
    one, other = (on(Trainer, graph, **MOMENTUM) for _ in range(2))
    given = batches((3, 3, 1, 3))
    losses = list[float]()
    with pytest.raises(ValueError, match=r"a batch must be of at least 2 .*, got 1"):
        losses.extend(one.train(given))
    assert one.steps == 2
    list(other.train(given[:2]))
    assert equal(snapshot(one), snapshot(other))
    for batch, words in (
        ({}, "no value for argument 'input'"),
        ({"input": given[0]["input"]}, "no value for argument 'labels'"),
        (given[0] | {"labels": np.zeros(4, int)}, "'labels' is int64.3., got"),
    ):
        with pytest.raises(ValueError, match=words):
            one.step(batch)
    assert one._sized.sizes == (3,)
    with pytest.raises(ValueError, match="sizes must be an integer of at least 1, got 0"):
        place("cpu", Options(sizes=0))


def test_a_step_that_cannot_be_compiled_leaves_all_as_it_was(
    graph: TrainingGraph, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = on(Trainer, graph, sizes=1, **MOMENTUM)
    given = batches((4, 4, 3, 4))
    compile_for = one.place.compile

    def fails(mod: Any, progress: Any) -> Any:
        raise RuntimeError("CUDA: cudaMalloc: out of memory")

    one.step(given[0])
    monkeypatch.setattr(one.place, "compile", fails)
    with pytest.raises(MemoryError, match=r"^cuda:0 is out of memory: 1\.0 of 2\.0 GiB are free"):
        list(one.train(given[1:]))
    assert (one.steps, one._sized.sizes) == (2, (4,))
    monkeypatch.setattr(one.place, "compile", compile_for)
    list(one.train(given[2:]))
    other = on(Trainer, graph, **MOMENTUM)
    list(other.train(given))
    assert equal(snapshot(one), snapshot(other))


def test_a_capture_has_the_memory_of_the_call_before(graph: TrainingGraph, on: Any) -> None:
    """What calls left in the pool a graph of another size may keep by now, or a size that goes has
    given back: each capture comes at once after a call for nothing."""
    took = list[tuple[str, int]]()

    class Told(Repeating):
        def done(self, function: Any) -> Any:
            took.append(("called", size))
            return super().done(function)

        def captured(self, function: Any) -> Any:
            took.append(("captured", size))
            return super().captured(function)

    one = on(Trainer, graph, work=Told(), sizes=2, **MOMENTUM)
    for size in (4, 3, 4, 3, 4, 4, 3, 1, 3, 1, 4, 4, 4):
        one.step(batches((size,))[0])
    assert took == [
        ("called", 4), ("called", 3), ("called", 4), ("called", 3),
        ("called", 4), ("captured", 4), ("called", 3), ("captured", 3),
        ("called", 1), ("called", 1),  # for which 4 goes
        ("called", 4), ("called", 4), ("called", 4), ("captured", 4),  # and 3 for it
    ]  # fmt: skip


def test_times_have_no_compilation_in_them(graph: TrainingGraph, on: Any) -> None:
    """The stand-in's events count records: what is between two steps is small."""
    one = on(Trainer, graph, **MOMENTUM)
    given = batches((4, 4, 3, 3, 4))
    timed = [one.step_seconds > 0 for _ in one.train(given, check_every=1)]
    assert timed == [False, True, False, True, True]


@pytest.mark.longer_cases("1", "2")
@pytest.mark.parametrize("seed", range(3))
def test_axes_that_are_given(seed: int) -> None:
    """Whatever a step would choose, it takes parameters in axes that they have."""
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Flatten(), nn.Linear(4 * 16, 3),
    )  # fmt: skip
    graph = from_torch(net, (torch.zeros(2, 3, 4, 4),))
    step = step_module(graph, scaled=bool(seed % 2))
    axes = {
        name: tuple(map(int, rng.permutation(graph.params[name].ndim)))
        for name in graph.trainable if rng.random() < 0.8
    }  # fmt: skip
    layout = (None, "NHWC")[seed > 0]
    made, kept = kept_in_layout(step, layout, graph, axes=axes)
    assert kept == axes
    batch = graph.random_batch(seed)
    scale = [np.float32(4)] * (seed % 2)
    found = []
    for mod, turned in ((step, {}), (made, axes)):
        vm = compile_module(mod, FAST).vm
        params = [
            np.ascontiguousarray(v.transpose(turned.get(name, range(v.ndim))))
            for name, v in graph.params.items()
        ]
        args = [tvm.runtime.tensor(v) for v in (*graph.batch_values(batch), *params, *scale)]
        outputs, gradients = vm[ADJOINT](*args)
        back = [
            g.numpy().transpose(np.argsort(turned.get(name, range(g.numpy().ndim))))
            for name, g in zip(graph.trainable, gradients, strict=True)
        ]
        found.append([*(x.numpy() for x in outputs), *back])
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    # Those that it would choose itself change nothing.
    chosen, own = kept_in_layout(step, "NHWC", graph)
    again, _ = kept_in_layout(step, "NHWC", graph, axes=own)
    assert tvm_ffi.structural_equal(chosen, again)


def test_a_cpu_has_one_for_all(graph: TrainingGraph) -> None:
    assert place(FAST).sizes is None
    assert Place("cpu", None, None, None, None).sizes is None  # type: ignore[arg-type]
