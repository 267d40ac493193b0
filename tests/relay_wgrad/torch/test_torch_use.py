"""The PyTorch functions in what surrounds them: modules, compilers, transforms, threads, forks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import library as torch_library

import relay_wgrad.torch as rt
from byoc_cudnn.backends.cudnn import loaded as cudnn_library
from relay_wgrad.problem import ConvKind
from relay_wgrad.torch import cache, kernels
from relay_wgrad.torch.arguments import OPERATORS
from tests.support.children import finding
from tests.support.fork import in_child
from tests.support.torch.cases import error

F = torch.nn.functional
ROOT = Path(__file__).parents[3]

MODULES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "plain": ("Conv2d", (4, 6, 3), {}),
    "strided": ("Conv2d", (4, 6, (3, 5)), {"stride": (2, 1), "padding": (1, 2), "groups": 2}),
    "no bias": ("Conv2d", (4, 4, 3), {"bias": False, "dilation": 2, "groups": 4}),
    "same": ("Conv2d", (4, 6, (4, 3)), {"padding": "same"}),
    "valid": ("Conv2d", (4, 6, 2), {"padding": "valid"}),
    "reflect": ("Conv2d", (4, 6, 3), {"padding": 1, "padding_mode": "reflect"}),
    "circular": ("Conv2d", (4, 6, 4), {"padding": "same", "padding_mode": "circular"}),
    "transpose": ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "transpose groups": ("ConvTranspose2d", (4, 6, 2), {"groups": 2, "bias": False}),
}


def network() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        rt.Conv2d(3, 8, 3, padding="same"), torch.nn.ReLU(),
        rt.ConvTranspose2d(8, 3, 3, stride=2, output_padding=1),
    )  # fmt: skip


def parameter_gradients(model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.longer_cases(
    "plain",
    "no bias",
    "valid",
    "circular",
    "transpose groups",
    why="strides, sizes by words, a border and a transposed one stay",
)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even:UserWarning")  # PyTorch's own
@pytest.mark.parametrize("name", MODULES)
def test_modules_are_drop_ins(name: str) -> None:
    kind, args, options = MODULES[name]
    torch.manual_seed(0)
    ours = getattr(rt, kind)(*args, **options, dtype=torch.float64)
    torch.manual_seed(0)
    theirs = getattr(torch.nn, kind)(*args, **options, dtype=torch.float64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)  # the same initialisation
    ours.load_state_dict(theirs.state_dict())
    assert repr(ours) == repr(theirs)
    for shape in ((2, 4, 7, 8), (4, 7, 8)):
        x = torch.randn(shape, dtype=torch.float64)
        assert error(ours(x), theirs(x)) < 1e-12
        pairs = zip(parameter_gradients(ours, x), parameter_gradients(theirs, x), strict=True)
        assert all(error(a, b) < 1e-12 for a, b in pairs)


def test_output_size() -> None:
    ours = rt.ConvTranspose2d(4, 6, 3, stride=3, dtype=torch.float64)
    theirs = torch.nn.ConvTranspose2d(4, 6, 3, stride=3, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(1, 4, 5, 5, dtype=torch.float64)
    assert error(ours(x, output_size=[16, 17]), theirs(x, output_size=[16, 17])) < 1e-12
    with pytest.raises(ValueError, match="requested an output size"):
        ours(x, output_size=[30, 30])


@pytest.mark.longer("gradients are compared elsewhere")
def test_a_training_loop_learns() -> None:
    """A compiled kernel whose gradient had the wrong sign or scale would not."""
    torch.manual_seed(0)
    model = network()
    x, y = torch.rand(4, 3, 6, 6), torch.rand(4, 3, 14, 14)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.longer("a graph of these operators is compiled under autocast")
@pytest.mark.longer_cases("False")
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic: bool) -> None:
    """One graph, no breaks; the same gradients; sizes that may change do not recompile."""
    torch._dynamo.reset()
    model = network()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.backends.debugging.aot_eager(graph, inputs)

    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    for size in (6, 7, 8):
        x = torch.randn(2, 3, size, 9)
        want = parameter_gradients(model, x)
        got = parameter_gradients(compiled, x)
        assert all(error(a, b) < 1e-6 for a, b in zip(got, want, strict=True))
    assert "relay_wgrad.conv2d" in graphs[0].code
    if dynamic:
        assert len(graphs) == 1


def test_compile_under_autocast() -> None:
    torch._dynamo.reset()
    model = network()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = compiled(x), model(x)
    assert got.dtype == want.dtype == torch.bfloat16
    assert torch.equal(got, want)


ARGUMENTS = {
    ConvKind.FPROP: ([(2, 4, 7, 6), (6, 2, 3, 3), (6,)], ()),
    ConvKind.DGRAD: ([(2, 6, 5, 4), (6, 2, 3, 3), (4,)], ([7, 6],)),
    ConvKind.WGRAD: ([(2, 6, 5, 4), (2, 4, 7, 6)], ([3, 3],)),
}
TAIL = ([1, 1], [0, 0, 0, 0], [1, 1], 2, None, None, None)


@pytest.mark.longer_cases("False", why="one memory order stays")
@pytest.mark.parametrize("kind", ConvKind)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_operators_keep_pytorchs_rules(kind: ConvKind, last: bool) -> None:
    """PyTorch's own check: schema, shapes and strides of fake tensors, autograd registration."""
    shapes, sizes = ARGUMENTS[kind]
    tensors = [torch.randn(s, requires_grad=True) for s in shapes]
    if last:
        tensors[0] = tensors[0].detach().contiguous(memory_format=torch.channels_last)
    operator = getattr(torch.ops.relay_wgrad, OPERATORS[kind, 2][0]).default
    torch_library.opcheck(operator, (*tensors, *sizes, *TAIL))


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (2, 1, 0), (None, None, 0)])
@pytest.mark.parametrize("transposed", [False, True])
def test_vmap(dims: tuple[int | None, ...], transposed: bool) -> None:
    shapes = [(2, 4, 5, 6), (4, 3, 2, 2) if transposed else (6, 2, 2, 2), (6,)]
    operands = [
        torch.randn(*s[: d or 0], *([] if d is None else [3]), *s[d or 0 :], dtype=torch.float64)
        for s, d in zip(shapes, dims, strict=True)
    ]

    def ours(x: Any, w: Any, b: Any) -> torch.Tensor:
        function = rt.convolution_transpose if transposed else rt.convolution
        return function(x, w, b, stride=2, groups=2)

    def theirs(x: Any, w: Any, b: Any) -> torch.Tensor:
        return (F.conv_transpose2d if transposed else F.conv2d)(x, w, b, stride=2, groups=2)

    got, want = (torch.func.vmap(f, dims)(*operands) for f in (ours, theirs))
    assert error(got, want) < 1e-12


@pytest.mark.longer("samples within transforms stay")
def test_per_sample_gradients() -> None:
    """vmap over grad, also of second order."""
    w, x = torch.randn(4, 2, 3, 3, dtype=torch.float64), torch.randn(3, 1, 4, 6, 6).double()

    def loss(function: Any) -> Any:
        return lambda w, x: function(x, w, None, 2, 1, 1, 2).sin().sum()

    def second(function: Any) -> Any:
        first = torch.func.grad(loss(function))
        return torch.func.grad(lambda w, x: first(w, x).square().sum(), argnums=(0, 1))

    for order in (lambda f: torch.func.grad(loss(f), argnums=(0, 1)), second):
        got, want = (torch.func.vmap(order(f), (None, 0))(w, x) for f in (rt.convolution, F.conv2d))
        assert max(map(error, got, want)) < 1e-12


def test_inference_mode() -> None:
    x, w = torch.randn(1, 1, 4, 4), torch.randn(1, 1, 3, 3, requires_grad=True)
    with torch.inference_mode():
        assert rt.convolution(x, w).is_inference()
    with torch.no_grad():
        assert not rt.convolution(x, w).requires_grad


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads, the same new problems at once: built once each, every result right."""
    monkeypatch.setattr(cache, "kept", cache.Cache())
    x = torch.randn(2, 8, 24, 24)
    w = torch.randn(32, 8, 5, 5)  # large enough for the pool of threads
    want = F.conv2d(x.double(), w.double())
    errors: list[float] = []

    def work() -> None:
        results = [rt.convolution(x, w) for _ in range(3)]
        errors.extend(error(result, want) for result in results)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 12
    assert max(errors) < 1e-6
    assert len(cache.kept.slots) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork() -> None:
    """A child has not its parent's pool of threads; kernels run there all the same."""
    x, w = torch.randn(2, 8, 24, 24), torch.randn(32, 8, 5, 5)
    want = rt.convolution(x, w)  # in parallel: the pool is there

    def work() -> bool:
        right = torch.equal(rt.convolution(x, w), want)
        new = rt.convolution(x[:1], w)  # a kernel built in the child
        return right and torch.equal(new, want[:1])

    assert in_child(work) == 0
    # With the lock held by a thread that the child has not.
    with kernels._lock:
        assert in_child(lambda: rt.convolution(x[:, :, :20], w).shape[2] == 16) == 0
    # The lock under which CUDA's kernels are built, too.
    with cudnn_library.LIBRARY._lock:
        assert in_child(lambda: cudnn_library.LIBRARY._lock.acquire(timeout=5)) == 0
    assert in_child(lambda: in_child(work) == 0) == 0


DATA_PARALLEL = """
import sys, torch, torch.distributed as dist
import torch.multiprocessing as mp
import relay_wgrad.torch as rt

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        rt.Conv2d(3, 6, 3, stride=2, padding=1), torch.nn.ReLU(),
        rt.ConvTranspose2d(6, 3, 2, stride=2)).double()

def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x).backward()
        optimizer.step()

def batches():
    torch.manual_seed(1)
    return [torch.randn(4, 3, 8, 8).double() for _ in range(3)]

def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    parallel = torch.nn.parallel.DistributedDataParallel(model())
    train(parallel, [x[2 * rank : 2 * rank + 2] for x in batches()])
    torch.save(parallel.module.state_dict(), f"{folder}/{rank}.pt")
    dist.destroy_process_group()

if __name__ == "__main__":
    folder = sys.argv[1]
    mp.spawn(worker, (folder,), nprocs=2)
    whole = model()
    train(whole, batches())
    start = model().state_dict()
    for rank in (0, 1):
        for name, value in torch.load(f"{folder}/{rank}.pt").items():
            torch.testing.assert_close(value, whole.state_dict()[name], rtol=1e-12, atol=1e-12)
            assert not torch.equal(value, start[name]), name
    print("the same weights")
"""


@pytest.mark.longer("needs several processes of PyTorch")
def test_data_parallel(tmp_path: Path) -> None:
    """Two processes with half of each batch end with the weights of one with all of it."""
    script = tmp_path / "parallel.py"
    script.write_text(textwrap.dedent(DATA_PARALLEL))
    env = {**os.environ, **finding(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        capture_output=True, text=True, check=False, env=env, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the same weights" in done.stdout


def test_the_package_does_not_need_pytorch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import relay_wgrad, legalize.cpu, byoc_cudnn\n"
        "print('without'); import relay_wgrad.torch"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.stdout == "without\n", done.stderr
    assert "pip install relay-wgrad[torch]" in done.stderr
    assert done.returncode
