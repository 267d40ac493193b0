"""An open batch on a GPU: a step for each number of images, beside the CPU's one for all."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn

from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training import Trainer, state
from relay_wgrad.training.cuda_tools import cuda_runtime
from relay_wgrad.training.data import Data
from relay_wgrad.training.evaluation import Evaluator
from relay_wgrad.training.graph_replay import Repeated
from relay_wgrad.training.options import Options
from tests.support.gpu.exclusive import EXCLUSIVE
from tests.support.trained import same, snapshot

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

EXACT = Options(tf32=False)
SIZES = (8, 8, 3, 8, 5, 3)
SIDE = 12
WIDTH = 8
HALF = {"dtype": "float16", "loss_scale": "dynamic"}


class Net(nn.Module):
    """A stem with pooling, a residual block, dropout, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(WIDTH)
        self.one = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(WIDTH, 7)

    def forward(self, x: Any) -> Any:
        x = fn.max_pool2d(torch.relu(self.norm(self.stem(x))), 2)
        x = torch.relu(x + self.one(x))
        return self.head(self.drop(x.mean((2, 3))))


def module() -> nn.Module:
    torch.manual_seed(3)
    return Net()


@functools.cache
def graph_of(bn: str = "train", dropout: str = "mask") -> TrainingGraph:
    x = torch.zeros(2, 3, SIDE, SIDE)
    return from_torch(module(), (x,), batch="N", bn=bn, dropout=dropout)


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RELAY_WGRAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


_made: dict[Any, tuple[Trainer, Any]] = {}


def trainer(device: str, batch: int | None = None, **options: Any) -> Trainer:
    """A trainer as it was when it was new; `batch`: of one number of images."""
    key = (device, batch, *sorted(options.items(), key=str))
    if key not in _made:
        graph = graph_of() if batch is None else graph_of().of_batch(batch)
        options = {"optimizer": "momentum", "lr": 0.02, "on_gpu": EXACT} | options
        new = Trainer(graph, device, **options)
        _made[key] = new, snapshot(new)
    one, start = _made[key]
    one.set_state(**copy.deepcopy(start))
    return one


def batches(sizes: Any, seed: int = 1) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    made = []
    for n in sizes:
        labels = rng.integers(0, 7, n)
        x = rng.standard_normal((n, 3, SIDE, SIDE)).astype("float32")
        made.append({"x": x + labels[:, None, None, None].astype("float32") / 3, "labels": labels})
    return made


def handed_on(given: Any, **options: Any) -> tuple[list[float], Any]:
    """(losses, the state at the end) of trainers of one number each."""
    losses, now = list[float](), None
    for batch in given:
        one = trainer("cuda", len(batch["labels"]), **options)
        if now is not None:
            one.set_state(**now)
        losses.append(one.step(batch))
        now = snapshot(one)
    return losses, now


def graphs(one: Trainer) -> list[int]:
    """The sizes whose steps are graphs."""
    found = []
    for size, sized in one._sized._made.items():
        assert isinstance(sized.step, Repeated), one.place.notes
        assert size is not None
        if sized.step.is_graph:
            found.append(size)
    return sorted(found)


def test_losses_are_the_cpus() -> None:
    """In a pipeline whose batches change in size, with masks that are drawn for each."""
    given = batches(SIZES * 2)
    both = [trainer(device) for device in ("cuda", "cpu")]
    gradients = [one.gradients(given[2])[1] for one in both]
    for name, a, b in zip(both[0].graph.trainable, *gradients, strict=True):
        want = b.numpy()
        np.testing.assert_allclose(
            a.numpy(), want, rtol=1e-3, atol=1e-4 * abs(want).max(), err_msg=name
        )
    assert both[0].loss(given[4]) == pytest.approx(both[1].loss(given[4]), rel=1e-4)
    got, want = (list(one.train(iter(given), check_every=4)) for one in both)
    np.testing.assert_allclose(got, want, rtol=1e-3)
    for name, value in both[0].params.items():
        np.testing.assert_allclose(
            value.numpy(), both[1].params[name].numpy(), rtol=5e-3, atol=2e-3, err_msg=name
        )
    assert both[0].steps == both[1].steps == 12
    assert both[0]._sized.sizes == (8, 5, 3)
    assert both[1]._sized.sizes == ()


@pytest.mark.parametrize("options", [{}, HALF], ids=["f32", "f16"])
def test_bits_are_those_of_one_size_each(options: dict[str, Any]) -> None:
    """Step by step, pipelined, and with every size a graph; all have the same places then."""
    given = batches(SIZES * 4)
    want, end = handed_on(given, **options)
    one = trainer("cuda", **options)
    got = [one.step(batch) for batch in given[:5]]
    got += list(one.train(given[5:], check_every=3))
    assert got == want
    assert same(snapshot(one), end)
    list(one.train(batches((5,) * 3)))
    assert graphs(one) == [3, 5, 8], one.place.notes
    assert not any("CUDA graph" in note for note in one.place.notes), one.place.notes
    one = trainer("cuda", **options)  # the same one, as it was
    assert list(one.train(given)) == want
    assert same(snapshot(one), end)
    places = [t.data_ptr() for t in (*one.params.all, *one._state, one._control)]
    for batch in given[1:6]:
        one.step(batch)
        assert places == [t.data_ptr() for t in (*one.params.all, *one._state, one._control)]


def test_weights_are_kept_in_the_first_sizes_axes() -> None:
    one = trainer("cuda")
    one.gradients(batches((3,))[0])
    axes = dict(one._kept.axes)
    convolutions = [n for n in one.graph.trainable if one.graph.params[n].ndim == 4]
    assert axes == dict.fromkeys(convolutions, (0, 2, 3, 1))
    name = convolutions[0]
    value = np.flip(one.graph.params[name], 0)
    one.params[name] = value
    for batch in batches((8, 3)):
        one.gradients(batch)
        assert (one.params[name].numpy() == value).all()
        assert dict(one._sized.last.axes) == axes


def test_the_least_recently_used_goes() -> None:
    """Also in the middle of a pipeline, and when it comes again."""
    given = batches((*SIZES, 8, 3))
    want, end = handed_on(given)
    words = list[str]()
    options = Options(tf32=False, sizes=2)
    one = Trainer(
        graph_of(), "cuda", optimizer="momentum", lr=0.02, on_gpu=options, progress=words.append
    )
    assert words == []
    assert list(one.train(given, check_every=4)) == want
    assert same(snapshot(one), end)
    compiled = [int(w.split()[2]) for w in words if w.startswith("compiling")]
    assert compiled == [8, 3, 5, 3, 8]  # 3 went for 5, 8 for 3, 5 for 8
    assert one._sized.sizes == (8, 3)


@EXCLUSIVE
def test_what_goes_gives_its_memory_back() -> None:
    options, sizes = Options(tf32=False, sizes=1), (8000, 8001)
    one = Trainer(graph_of(), "cuda", lr=0.001, on_gpu=options)
    runtime, free, planned = cuda_runtime(), [], 0
    for size in sizes * 2:
        for batch in batches((size,) * 4):  # the last two as a graph
            one.step(batch)
        one.place.wait()
        free.append(runtime.memory()[0])
        planned = one.compiled.planned_bytes
        assert graphs(one) == [size], one.place.notes
    assert planned > 48 << 20
    # Of two that went nothing is left but what libraries keep of a process.
    assert free[1] - free[3] < planned, (free, planned)


def test_a_state_goes_on_in_other_sizes(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    path, given = tmp_path / "state.safetensors", batches(SIZES * 2)
    one = trainer("cuda")
    list(one.train(given[:5]))
    state.save(one, path)
    kept = snapshot(one)
    want = list(one.train(given[5:]))
    end = snapshot(one)
    new = Trainer(graph_of(), "cuda", optimizer="momentum", lr=0.02, on_gpu=EXACT)
    state.restore(new, path)  # before anything is compiled
    assert same(snapshot(new), kept)
    assert list(new.train(given[5:])) == want
    assert same(snapshot(new), end)
    on_cpu = trainer("cpu")
    state.restore(on_cpu, path)
    np.testing.assert_allclose(list(on_cpu.train(given[5:])), want, rtol=1e-3)


def test_a_loss_that_is_not_finite_stops_at_its_step() -> None:
    """With steps of other sizes behind it on their way."""
    given = batches(SIZES * 2)
    one = trainer("cuda")
    first, before = list(one.train(given[:4])), snapshot(one)
    rest = list(one.train(given[4:]))
    one = trainer("cuda")  # the same one, as it was
    broken = copy.deepcopy(given)
    broken[4]["x"][0, 0, 0, 0] = np.inf
    losses = list[float]()
    with pytest.raises(FloatingPointError, match=r"^step 5: the loss is nan; the parameters are"):
        losses.extend(one.train(broken, check_every=3))
    assert losses == first
    assert same(snapshot(one), before)
    assert list(one.train(given[4:])) == rest


def test_an_evaluation() -> None:
    graph = graph_of("eval", "off")
    data = Data(graph, batches((19,))[0], size=8)
    params = trainer("cpu").params
    given = {name: params[name].numpy() for name in params}
    one = Evaluator(graph, "cuda", on_gpu=EXACT)
    found, want = one(given, data), Evaluator(graph, "cpu")(given, data)
    assert found.loss == pytest.approx(want.loss, rel=1e-4)
    assert found.samples == want.samples == 19
    assert found.accuracy == pytest.approx(want.accuracy, abs=1 / 19)
    assert one._sized.sizes == (8, 3)


def test_a_profile_is_of_the_batchs_size() -> None:
    one = trainer("cuda")
    for size in (8, 3):
        (batch,) = batches((size,))
        assert sum(one.profile(batch, 1, 0.0).values()) > 0
        problems = [c.problem for c in one.compiled.convolutions if c.problem]
        assert any(f"n={size} " in problem for problem in problems), problems


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    cudnn, matmul = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = cudnn, matmul


@pytest.mark.parametrize("name", ["TrainingStep", "torch.compile"])
def test_pytorchs_batches_of_other_sizes(name: str) -> None:
    """A program for each size, of one module: parameters and statistics are its own."""
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    from relay_wgrad import torch as rt
    from relay_wgrad.torch.compiler import backend  # by its name where the package is installed
    from relay_wgrad.torch.reports import compiled_graphs

    before = {graph.name for graph in compiled_graphs()}
    ours, theirs = module().cuda(), module().cuda()
    for net in (ours, theirs):
        net.drop = nn.Identity()
    given = [
        (torch.tensor(b["x"]).cuda(), torch.tensor(b["labels"]).cuda()) for b in batches((8, 3, 8))
    ]
    with full_float32():
        if name == "TrainingStep":
            step: Any = rt.TrainingStep(ours, given[0][0])
        else:
            step = torch.compile(ours, backend=backend, fullgraph=True, dynamic=None)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in (ours, theirs)]
        for x, labels in given:
            losses = []
            for call, rule in zip((step, theirs), optimizers, strict=True):
                rule.zero_grad()
                loss = fn.cross_entropy(call(x), labels)
                loss.backward()
                rule.step()
                losses.append(loss.item())
            assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    if name == "TrainingStep":
        assert len(step._programs) == 2
    else:
        found = [graph for graph in compiled_graphs() if graph.name not in before]
        assert [graph.reason for graph in found] == [""] * len(found)
        assert sum(graph.sizes for graph in found) >= 4
    for (key, a), (_, b) in zip(
        ours.state_dict().items(), theirs.state_dict().items(), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=key)
