"""What `TrainingStep` refuses, and data parallel training with it."""

from __future__ import annotations

import copy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor

import relay_wgrad.torch as rt
from relay_wgrad.torch import programs
from relay_wgrad.training import devices
from relay_wgrad.training.options import Options
from tests.support.children import run_script

pytestmark = pytest.mark.usefixtures("registered")


class Pair(nn.Module):
    def forward(self, x: Any) -> Any:
        return x, x + 1


REFUSED: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "no module": (3, torch.ones(2), {}, TypeError, "module must be a torch.nn.Module, got int"),
    "no tensors": (nn.Linear(2, 2), 3, {}, TypeError, "example must be tensors, got int"),
    "loss": (nn.Linear(2, 2), torch.ones(1, 2), {"loss": "own"}, ValueError, "got 'own'"),
    "half": (nn.Linear(2, 2).half(), torch.ones(1, 2).half(), {}, ValueError, "must all be float"),
    "devices": (nn.Linear(2, 2), torch.ones(1, 2, device="meta"), {}, ValueError, "one device"),
    "momentum": (
        nn.BatchNorm2d(2, momentum=None), torch.ones(2, 2, 3, 3), {}, ValueError, "momentum=None",
    ),
    "checkpoint": (
        nn.Linear(2, 2), torch.ones(1, 2), {"checkpoint": "all"}, ValueError, "None or 'auto'",
    ),
    "outputs": (
        nn.Sequential(nn.Linear(2, 2), Pair()), torch.ones(1, 2), {}, ValueError,
        r"one output, got 2: return one, or take torch\.compile",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    module, example, options, kind, words = REFUSED[name]
    with pytest.raises(kind, match=words):
        rt.TrainingStep(module, example, **options)


TRACES: dict[str, Any] = {
    "make_fx": lambda step, x: make_fx(step)(x),
    "export": lambda step, x: torch.export.export(step, (x,)).module(),
    "a step in a step": lambda step, x: rt.TrainingStep(nn.Sequential(step, nn.Identity()), x),
}


@pytest.mark.filterwarnings("error:TrainingStep")
@pytest.mark.parametrize("name", TRACES)
def test_a_trace_has_the_module(name: str) -> None:
    layers, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.randn(3, 4)
    step = rt.TrainingStep(layers, x)
    traced = TRACES[name](step, x)
    torch.testing.assert_close(traced(x + 1), layers(x + 1))
    with pytest.raises(
        ValueError, match=r"a trace .* does not look into a compiled pass: call the"
    ):
        make_fx(rt.TrainingStep(layers, x, loss="mse"))(x, x)


def test_fake_tensors_have_shapes() -> None:
    step = rt.TrainingStep(nn.Linear(4, 2), torch.randn(3, 4))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert step(mode.from_tensor(torch.randn(5, 4))).shape == (5, 2)


def test_tensors_without_memory_are_pytorchs() -> None:
    layer, x = nn.Linear(4, 2), torch.randn(3, 4)
    step = rt.TrainingStep(layer, x)
    with pytest.warns(UserWarning, match="PyTorch runs this: a TwoTensor has no dense memory"):
        made = step(TwoTensor(x, x + 1))
    torch.testing.assert_close(made.b, layer(x + 1))
    with pytest.warns(UserWarning, match="a tensor of layout torch.sparse_coo has no dense memory"):
        torch.testing.assert_close(step(x.to_sparse()), layer(x))
    weight = layer.weight.detach()
    layer.weight = nn.Parameter(TwoTensor(weight * 2, weight))
    assert isinstance(step(TwoTensor(x, x)), TwoTensor)
    with pytest.raises(ValueError, match="TrainingStep: 'weight': a TwoTensor has no dense"):
        rt.TrainingStep(layer, x)


def test_functional_call_of_a_new_shape() -> None:
    layer = nn.Linear(4, 2)
    step, x = rt.TrainingStep(layer, torch.randn(3, 4)), torch.randn(5, 4)
    (torch.func.functional_call(step, {"weight": layer.weight * 2}, (x,))).sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, 2 * x.sum(0).expand(2, 4))
    assert isinstance(layer.weight, nn.Parameter)


def test_arguments_of_inference_mode() -> None:
    """What was made in that mode is no tensor that autograd keeps, and so a trace."""
    layer = nn.Linear(4, 2)
    step = rt.TrainingStep(layer, torch.ones(3, 4))
    with torch.inference_mode():
        x = torch.arange(20.0).reshape(5, 4)
        torch.testing.assert_close(step(x), layer(x))
    with torch.no_grad():
        torch.testing.assert_close(step(x[:2]), layer(x[:2]))


def test_statistics_of_averaged_weights() -> None:
    """`update_bn` sets momentum=None for a while."""
    layers, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(6, 4)
    averaged = torch.optim.swa_utils.AveragedModel(rt.TrainingStep(layers, x))
    twin = torch.optim.swa_utils.AveragedModel(layers)
    with pytest.warns(UserWarning, match="PyTorch runs this: 1 has momentum=None"):
        torch.optim.swa_utils.update_bn([x, x * 3], averaged)
    torch.optim.swa_utils.update_bn([x, x * 3], twin)
    torch.testing.assert_close(averaged.eval()(x), twin.eval()(x))


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.InstanceNorm2d, nn.SyncBatchNorm])
def test_batches_are_counted_by_those_that_count_them(kind: Any) -> None:
    """An InstanceNorm has the buffer, and never writes it."""
    norm, x = kind(3, affine=True, track_running_stats=True), torch.randn(2, 3, 4, 4)
    ours = copy.deepcopy(norm)
    step = rt.TrainingStep(ours, x)
    for _ in range(2):
        step(x)
        norm(x)
    torch.testing.assert_close(ours.state_dict(), norm.state_dict())


class Branches(nn.Module):
    """One parameter's value goes to the output, another's only past a stop, a third's nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.stopped, self.unused = (nn.Parameter(torch.ones(2)) for _ in range(3))

    def forward(self, x: Any) -> Any:
        return x * self.used + (x * self.stopped).detach()


def test_pytorchs_settings_of_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU; on a CPU bits are always the same."""
    asked: list[Options] = []
    monkeypatch.setattr(devices, "place", lambda name, options: asked.append(options))
    flags = torch.backends.cudnn
    for benchmark, deterministic, everywhere in product((False, True), repeat=3):
        with flags.flags(benchmark=benchmark, deterministic=deterministic, allow_tf32=benchmark):
            torch.use_deterministic_algorithms(everywhere)
            chosen = programs.choices("cuda")
            torch.use_deterministic_algorithms(False)
        programs.compiled_at(torch.device("cuda", 0), chosen)
        found = asked.pop()
        assert (found.benchmark, found.tf32) == (benchmark, benchmark)
        assert found.deterministic is (deterministic or everywhere)
    assert programs.choices("cpu").deterministic


def test_what_has_no_gradient_gets_none() -> None:
    """Zeros would let weight decay and momentum move it, which PyTorch leaves alone."""
    module = Branches()
    rt.TrainingStep(module, torch.ones(3, 2))(torch.ones(3, 2)).sum().backward()
    assert torch.equal(module.used.grad, torch.full((2,), 3.0))
    assert module.stopped.grad is None
    assert module.unused.grad is None
    module.used.requires_grad_(False)
    assert not rt.TrainingStep(module, torch.ones(3, 2))(torch.ones(3, 2)).requires_grad


class Noise(nn.Module):
    """Numbers of each distribution, which the step draws by PyTorch's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.drop = nn.Parameter(torch.ones(4)), nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        coins = torch.bernoulli(torch.full_like(x, 0.25)) + torch.randint_like(x, 3, 7)
        return self.drop(x * self.scale) + torch.rand_like(x) + 10 * torch.randn_like(x) + coins


def test_random_numbers_are_drawn_anew() -> None:
    x = torch.zeros(5000, 4)
    step = rt.TrainingStep(Noise(), x)
    torch.manual_seed(1)
    first, second = step(x).detach(), step(x).detach()
    torch.manual_seed(1)
    assert torch.equal(step(x), first)
    assert not torch.equal(first, second)
    mean, variance = 0.5 + 0.25 + 4.5, 1 / 12 + 100 + 0.25 * 0.75 + 1.25
    assert abs(float(first.mean()) - mean) < 0.4
    assert abs(float(first.var()) / variance - 1) < 0.1


DATA_PARALLEL = """
import sys, torch
import torch.distributed as dist, torch.multiprocessing as mp
import relay_wgrad
import relay_wgrad.torch as rt
from tests.relay_wgrad.torch.test_training_step import Small, compare

def train(model, rows):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for i in range(3):
        optimizer.zero_grad()
        torch.manual_seed(i)
        model(torch.randn(4, 6).double()[rows]).square().mean().backward()
        optimizer.step()

def module():
    torch.manual_seed(0)
    return Small().double()

def worker(rank, folder):
    torch.set_num_threads(1)
    relay_wgrad.register()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    one = module()
    step = rt.TrainingStep(one, torch.zeros(2, 6).double())
    train(torch.nn.parallel.DistributedDataParallel(step), slice(2 * rank, 2 * rank + 2))
    whole = module()
    train(whole, slice(None))
    compare(one, whole)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(worker, (sys.argv[1],), nprocs=2)
"""


@pytest.mark.longer
def test_data_parallel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with half of each batch end with the weights of one with all of it."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    script = tmp_path / "parallel.py"
    script.write_text(DATA_PARALLEL)
    done = run_script(script, str(tmp_path))
    assert done.returncode == 0, done.stderr
