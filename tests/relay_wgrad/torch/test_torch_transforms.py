"""The PyTorch functions under tracers, modes and batching: they see the operators, at any depth."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd.functional import hessian, jacobian
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import relay_wgrad.torch as rt
from tests.support.torch.cases import error, quick_kernels

F = torch.nn.functional
torch.manual_seed(0)
X = torch.randn(2, 3, 5, 4, dtype=torch.float64)
W = torch.randn(4, 3, 3, 2, dtype=torch.float64)
B = torch.randn(4, dtype=torch.float64)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with quick_kernels():
        yield


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return f(*args, **(kwargs or {}))


def under_a_mode(function: Any) -> Any:
    def call(*args: Any) -> Any:
        with Mode():
            return function(*args)

    return call


def compiled(function: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def traced(tracing_mode: str) -> Any:
    return lambda function: lambda *args: make_fx(function, tracing_mode=tracing_mode)(*args)(*args)


OUTER: dict[str, Callable[[Any], Any]] = {
    "compile": compiled, "make_fx": traced("real"), "make_fx symbolic": traced("symbolic"),
    "mode": under_a_mode, "eager": lambda function: function,
}  # fmt: skip


def loss(convolution: Any) -> Any:
    return lambda x, w, b: convolution(x, w, b, 2, 1).sin().sum()


def gradient(convolution: Any) -> Any:
    return torch.func.grad(loss(convolution), argnums=(0, 1, 2))


def second(convolution: Any) -> Any:
    """Level in level: each has to record what the other does."""
    first = gradient(convolution)
    return torch.func.grad(lambda *a: sum(g.square().sum() for g in first(*a)), argnums=(0, 1))


def samples(convolution: Any) -> Any:
    return torch.func.vmap(
        lambda x, w, b: gradient(convolution)(x[None], w, b), in_dims=(0, None, None)
    )


@pytest.mark.share(4)  # each outer one
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("inner", [gradient, second, samples], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transforms_inside(outer: str, inner: Any) -> None:
    got, want = OUTER[outer](inner(rt.convolution))(X, W, B), inner(F.conv2d)(X, W, B)
    assert max(map(error, got, want)) < 1e-12


def test_hessian_by_two_jacobians() -> None:
    twice = lambda f: torch.func.jacrev(torch.func.jacrev(loss(f), 1), 1)  # noqa: E731
    assert error(twice(rt.convolution)(X, W, B), twice(F.conv2d)(X, W, B)) < 1e-12


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # PyTorch's own
def test_compiled_autograd() -> None:
    torch._dynamo.reset()
    w = W.clone().requires_grad_()
    out = rt.convolution(X, w).sin().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        out.backward()
    got, w.grad = w.grad, None
    rt.convolution(X, w).sin().sum().backward()
    assert got is not None
    assert error(got, w.grad) < 1e-12


@pytest.mark.share(2)
@pytest.mark.parametrize("last", [False, True])
def test_batched_gradients_of_autograd(last: bool) -> None:
    """vectorize=True and is_grads_batched=True are another vmap than `torch.func`'s."""
    x = X.contiguous(memory_format=torch.channels_last) if last else X
    for function in (loss, lambda f: lambda *a: f(*a, 1, 1).sum((2, 3))):
        kinds = (jacobian, hessian) if function is loss else (jacobian,)
        for kind in kinds:
            got, want = (
                kind(lambda x, w, f=f: f(x, w, B), (x, W), vectorize=True)
                for f in (function(rt.convolution), function(F.conv2d))
            )
            flat = torch.utils._pytree.tree_leaves
            assert max(map(error, flat(got), flat(want))) < 1e-12
    w = W.clone().requires_grad_()
    y = rt.convolution(x, w)
    v = torch.randn(3, *y.shape, dtype=y.dtype)
    (got,) = torch.autograd.grad(y, w, v, is_grads_batched=True, retain_graph=True)
    for one, cotangent in zip(got, v, strict=True):
        assert error(one, torch.autograd.grad(y, w, cotangent, retain_graph=True)[0]) < 1e-12


def test_gradcheck_of_batched_gradients() -> None:
    operands = [X[:1, :, :3, :3].clone().requires_grad_(), W[:2].clone().requires_grad_()]
    assert torch.autograd.gradcheck(rt.convolution, operands, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(rt.convolution, operands, check_batched_grad=True)


@pytest.mark.parametrize("dims", [(0, None, None), (None, 1, None), (0, 0, 0), (None, None, 0)])
def test_vmap_over_nothing(dims: tuple[int | None, ...]) -> None:
    """An empty batch has results, empty, and gradients of what is not batched: zeros."""
    shapes = [X.shape, W.shape, B.shape]
    operands = [
        torch.randn(s if d is None else (*s[:d], 0, *s[d:]), requires_grad=True)
        for s, d in zip(shapes, dims, strict=True)
    ]
    out = torch.func.vmap(rt.convolution, dims)(*operands)
    assert out.shape == (0, *F.conv2d(X, W, B).shape)
    for t, g in zip(operands, torch.autograd.grad(out.sum(), operands), strict=True):
        assert g.shape == t.shape
        assert not g.any()


@pytest.mark.parametrize("function", [rt.convolution, rt.convolution_transpose])
def test_vmap_of_one_weight_repeats_it_not(function: Any) -> None:
    """A batch of data is more images, not more groups."""
    x, w = torch.randn(3, *X.shape), torch.randn(3, 4, 3, 2)
    if function is rt.convolution:
        w = w.transpose(0, 1)
    batched = torch.func.vmap(lambda *a: function(*a), (0, None, None))
    graph = make_fx(batched)(x, w, torch.randn(4)).graph
    (call,) = (node for node in graph.nodes if "relay_wgrad" in str(node.target))
    data, weight, *_ = call.args
    assert data.meta["val"].shape == (6, 3, 5, 4)
    assert weight.op == "placeholder"


@pytest.mark.parametrize("transposed", [False, True])
def test_flop_counter(transposed: bool) -> None:
    counts = []
    w = W.transpose(0, 1).reshape(3, 4, 3, 2) if transposed else W
    pairs = ((rt.convolution, F.conv2d), (rt.convolution_transpose, F.conv_transpose2d))
    for function in pairs[transposed]:
        with FlopCounterMode(display=False) as mode:
            function(X.clone().requires_grad_(), w.clone().requires_grad_(), B).sum().backward()
        counts.append(mode.get_total_flops())
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d"])
@pytest.mark.parametrize("bias", [False, True])
def test_symbolic_trace(kind: str, bias: bool) -> None:
    model = torch.nn.Sequential(getattr(rt, kind)(3, 4, 3, bias=bias), torch.nn.ReLU())
    graph = torch.fx.symbolic_trace(model)
    x = torch.randn(1, 3, 5, 5)
    assert torch.equal(graph(x), model(x))
    assert any("convolution" in str(node.target) for node in graph.graph.nodes)


# The output paddings: one that the kernel makes, one of which a row is made after it.
@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Conv2d", {"stride": 2}),
        ("ConvTranspose2d", {"stride": 2}),
        ("ConvTranspose2d", {"stride": 2, "output_padding": 1}),
        ("ConvTranspose2d", {"dilation": 3, "output_padding": 2}),
    ],
    ids=str,
)
def test_jit_trace(kind: str, options: dict[str, int]) -> None:
    model = getattr(rt, kind)(3, 4, 3, **options)
    x = torch.randn(2, 3, 6, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated, and sizes are constants
        module = torch.jit.trace(model, x)
    assert torch.equal(module(x), model(x))
    smaller = x[:, :, :5, :5].contiguous()
    if kind == "Conv2d":
        assert torch.equal(module(smaller), model(smaller))
    else:
        with pytest.raises(RuntimeError, match="conv2d_backward_data: grad must have shape"):
            module(smaller)
