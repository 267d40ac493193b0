"""Forward-mode derivatives of the PyTorch functions, alone and with the other transforms.

At fault before: a level of `torch.func` below a recording one lost its tangents, and PyTorch took
them for zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.func import grad, hessian, jacfwd, jacrev, jvp, linearize, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import relay_wgrad.torch as rt
from tests.support.torch.cases import error, quick_kernels

F = torch.nn.functional
pytestmark = [  # PyTorch's own: on first use, and of `linearize`
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning"),
]
torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    with quick_kernels():
        yield


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64)


# input, weight, bias; a gradient of the result's shape.
X, W, B, G = randn(2, 2, 4, 3), randn(4, 1, 2, 2), randn(4), randn(2, 4, 2, 4)
SETTINGS: dict[str, Any] = {"stride": (2, 1), "padding": 1, "dilation": (2, 1), "groups": 2}


def by(i: int, function: Any) -> Any:
    """The gradient of a function of two tensors by one of them, as a function; by `torch.func`."""

    def gradient(*operands: Any) -> Any:
        *tensors, cotangent = operands
        return torch.func.vjp(function, *tensors)[1](cotangent)[i]

    return gradient


def conv(x: Any, w: Any) -> Any:
    return F.conv2d(x, w, **SETTINGS)


def transposed(x: Any, w: Any) -> Any:
    return F.conv_transpose2d(x, w, None, **SETTINGS)


# name -> (ours, PyTorch's, operands)
FUNCTIONS: dict[str, tuple[Any, Any, tuple[torch.Tensor, ...]]] = {
    "convolution": (
        lambda x, w, b: rt.convolution(x, w, b, **SETTINGS),
        lambda x, w, b: F.conv2d(x, w, b, **SETTINGS),
        (X, W, B),
    ),
    "backward_input": (
        lambda w, g: rt.convolution_backward_input(X.shape, w, g, **SETTINGS),
        lambda w, g: by(0, conv)(torch.zeros_like(X), w, g),
        (W, G),
    ),
    "backward_weight": (
        lambda x, g: rt.convolution_backward_weight(x, W.shape, g, **SETTINGS),
        lambda x, g: by(1, conv)(x, torch.zeros_like(W), g),
        (X, G),
    ),
    "transpose": (
        lambda x, w, b: rt.convolution_transpose(x, w, b, output_padding=(1, 0), **SETTINGS),
        lambda x, w, b: F.conv_transpose2d(x, w, b, output_padding=(1, 0), **SETTINGS),
        (G, W, B[:2]),
    ),
    "transpose_backward_input": (
        lambda g, w: rt.convolution_transpose_backward_input(g, w, **SETTINGS),
        lambda g, w: by(0, transposed)(torch.zeros_like(G), w, g),
        (X[:, :, :3], W),
    ),
    "transpose_backward_weight": (
        lambda x, g: rt.convolution_transpose_backward_weight(x, W.shape, g, **SETTINGS),
        lambda x, g: by(1, transposed)(x, torch.zeros_like(W), g),
        (G, X[:, :, :3]),
    ),
}


def scalar(f: Any) -> Any:
    return lambda *a: f(*a).sin().sum()


def dual(f: Any) -> Any:
    def call(*operands: Any) -> Any:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, t.cos()) for t in operands]
            return forward_ad.unpack_dual(f(*duals)).tangent

    return call


def first(f: Any, *rest: Any) -> Any:
    """Of the first operand alone."""
    return lambda x: f(x, *rest)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "jvp": lambda f: lambda *a: jvp(f, a, tuple(t.cos() for t in a))[1],
    "dual numbers": dual,
    "jvp of grad": lambda f: lambda x, *r: jvp(grad(first(scalar(f), *r)), (x,), (x.cos(),))[1],
    "jvp of jvp of grad": lambda f: lambda x, *r: (
        jvp(lambda y: jvp(grad(first(scalar(f), *r)), (y,), (x.cos(),))[1], (x,), (x,))[1]
    ),
    "jvp of jvp": lambda f: lambda *a: (
        jvp(lambda *b: jvp(f, b, tuple(t.cos() for t in b))[1], a, a)[1]
    ),
    "grad of jvp": lambda f: lambda x, *r: grad(
        lambda y: jvp(first(scalar(f), *r), (y,), (x.cos(),))[1]
    )(x),
    "linearize": lambda f: lambda x, *r: linearize(first(f, *r), x)[1](x.cos()),
    "hessian": lambda f: lambda *a: hessian(scalar(f), argnums=1)(*a),
    "jacrev of jacfwd": lambda f: lambda *a: jacrev(jacfwd(scalar(f), 1), 0)(*a),
    "jacfwd of jacfwd": lambda f: lambda *a: jacfwd(jacfwd(scalar(f), 1), 0)(*a),
    "vmap of hessian": lambda f: lambda x, *r: vmap(lambda y: hessian(scalar(f), 1)(y, *r))(
        torch.stack([x, x.sin()])
    ),
    "vmap of jvp": lambda f: lambda x, *r: vmap(
        lambda t: jvp(first(f, *r), (x,), (t,))[1]
    )(torch.stack([x, x.sin()])),
    "functional": lambda f: lambda x, *r: jacobian(
        first(f, *r), x, strategy="forward-mode", vectorize=True
    ),
    "make_fx": lambda f: lambda *a: make_fx(hessian(scalar(f), 1))(*a)(*a),
}  # fmt: skip


def check(name: str, transform: Any) -> None:
    ours, theirs, operands = FUNCTIONS[name]
    got, want = transform(ours)(*operands), transform(theirs)(*operands)
    assert want.any()
    assert error(got, want) < 1e-12


# Those that build more than a few kernels are in `test_all`.
@pytest.mark.share(5)
@pytest.mark.parametrize("transform", [t for t in TRANSFORMS if "jacfwd" not in t])
def test_transforms_of_convolution(transform: str) -> None:
    check("convolution", TRANSFORMS[transform])


@pytest.mark.share(3)
@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "convolution"])
def test_functions(name: str) -> None:
    for transform in ("jvp", "hessian", "jvp of jvp of grad"):
        check(name, TRANSFORMS[transform])


@pytest.mark.share(11)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_all(name: str, transform: str) -> None:
    check(name, TRANSFORMS[transform])


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d"])
def test_modules(kind: str) -> None:
    """By `functional_call`; a tangent of the bias alone, and of all."""
    made = {}
    for library in (rt, torch.nn):
        torch.manual_seed(1)
        module = getattr(library, kind)(2, 4, 2, dtype=torch.float64)
        state = dict(module.named_parameters())

        def call(state: Any, module: Any = module) -> Any:
            return torch.func.functional_call(module, state, (X,))

        def by_bias(bias: Any, call: Any = call, state: Any = state) -> Any:
            return call({**state, "bias": bias})

        made[library] = (
            jvp(call, (state,), ({k: v.cos() for k, v in state.items()},))[1],
            jvp(by_bias, (state["bias"],), (state["bias"],))[1],
        )
    assert max(map(error, made[rt], made[torch.nn])) < 1e-12


def test_compile() -> None:
    torch._dynamo.reset()
    ours, theirs, operands = FUNCTIONS["convolution"]
    for name in ("jvp", "hessian"):
        got = torch.compile(TRANSFORMS[name](ours), fullgraph=True, backend="aot_eager")(*operands)
        assert error(got, TRANSFORMS[name](theirs)(*operands)) < 1e-12


def test_gradcheck() -> None:
    """PyTorch's own, by differences; batched tangents, and forward mode over backward passes."""
    operands = [t.clone().requires_grad_() for t in (X[:1], W, B)]
    function = FUNCTIONS["convolution"][0]
    assert torch.autograd.gradcheck(
        function, operands, check_forward_ad=True, check_batched_forward_grad=True
    )
    assert torch.autograd.gradgradcheck(function, operands, check_fwd_over_rev=True)


def test_layouts_and_modes() -> None:
    """A tangent has its result's memory order; `no_grad` is for the other mode."""
    x = X.contiguous(memory_format=torch.channels_last)
    with forward_ad.dual_level(), torch.no_grad():
        out = rt.convolution(forward_ad.make_dual(x, x.cos()), W, B, **SETTINGS)
        tangent = forward_ad.unpack_dual(out).tangent
    assert tangent is not None
    assert tangent.stride() == out.stride()


def test_batches_of_channels_last() -> None:
    """PyTorch knows no memory order of a batch."""
    ours, theirs, operands = FUNCTIONS["convolution"]
    last = [t.contiguous(memory_format=torch.channels_last) for t in operands[:2]]
    for transform in (TRANSFORMS["hessian"], TRANSFORMS["jacrev of jacfwd"]):
        got, want = (transform(f)(*last, operands[2]) for f in (ours, theirs))
        assert error(got, want) < 1e-12


def test_a_zero_without_memory() -> None:
    """What PyTorch takes for a derivative that is zero."""
    none = torch._efficientzerotensor(W.shape, dtype=torch.float64)
    assert torch.equal(rt.convolution(X, none, B, **SETTINGS), conv(X, none) + B.view(1, -1, 1, 1))
    with forward_ad.dual_level():
        out = rt.convolution(X, forward_ad.make_dual(W, none), B, **SETTINGS)
        tangent = forward_ad.unpack_dual(out).tangent
        assert tangent is None or not tangent.any()


def along(f: Any) -> Any:
    return lambda x: jvp(f, (x,), (x.cos(),))[1]


# name: transform, by which operand, channels last, shapes of data, weight and bias, groups
SYMBOLIC: dict[str, Any] = {
    "data in a batch": (jacfwd, 0, False, ((3, 4, 5, 6), (4, 4, 2, 3), (4,)), 1),
    "bias, channels last": (along, 2, True, ((3, 4, 5, 6), (4, 4, 2, 3), (4,)), 1),
    "bias alone has symbols": (along, 2, False, ((1, 2, 2, 1), (2, 1, 2, 1), (2,)), 2),
}


@pytest.mark.longer
@pytest.mark.parametrize("case", SYMBOLIC)
@pytest.mark.parametrize("name", ["convolution", "transpose"])
def test_traced_with_symbolic_sizes(name: str, case: str) -> None:
    """At fault before: tangents in another memory order than results', which PyTorch copies then.

    And a bias that had the only symbols.
    """
    transform, i, last, shapes, groups = SYMBOLIC[case]
    operands = [randn(*shape) for shape in shapes]
    if last:
        operands[:2] = (t.contiguous(memory_format=torch.channels_last) for t in operands[:2])

    def made(f: Any) -> Any:
        def call(*a: Any) -> Any:
            def alone(t: Any) -> Any:
                y = f(*a[:i], t, *a[i + 1 :], groups=groups)
                return y.sum((2, 3)) if transform is jacfwd else y

            return transform(alone)(a[i])

        return make_fx(call, tracing_mode="symbolic")(*operands)(*operands)

    pairs = {
        "convolution": (rt.convolution, F.conv2d),
        "transpose": (rt.convolution_transpose, F.conv_transpose2d),
    }
    assert error(*map(made, pairs[name])) < 1e-12


@pytest.mark.parametrize("name", ["convolution", "backward_input", "backward_weight"])
def test_batched_tangent_of_a_cotangent_in_another_memory_order(name: str) -> None:
    """At fault before: brought into the result's by `memory_format`, which no batch takes."""
    ours, theirs, operands = FUNCTIONS[name]
    first, *rest = (
        t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in operands
    )

    def gradient(f: Any) -> Any:
        return jacfwd(grad(lambda x: f(x, *rest).contiguous().sin().sum()))

    assert error(gradient(ours)(first), gradient(theirs)(first)) < 1e-12
