"""Operators go by namespace, name and overload; this package's own are rows like others."""

from __future__ import annotations

import copy
import operator
import warnings
from typing import Any

import pytest
import torch
from torch import library as torch_library
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import relay_wgrad.torch as rt
from relay_wgrad.frontend import from_aot, from_torch
from relay_wgrad.frontend.torch.aot_ops import AOT_OPS
from relay_wgrad.frontend.torch.composed import COMPOSED
from relay_wgrad.frontend.torch.half_precision import AS_THEY_ARE
from relay_wgrad.frontend.torch.names import op_of
from relay_wgrad.frontend.torch.ops import FILLING, HINTS, OPS
from relay_wgrad.torch.compiler import backend
from tests.support.onnx.models import call

pytestmark = pytest.mark.usefixtures("registered", "fresh_dynamo")


@pytest.fixture(scope="module")
def sine() -> Any:
    """`mylib::sin`, which computes the cosine, with a gradient."""

    @torch_library.custom_op("mylib::sin", mutates_args=())
    def sin(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x)

    sin.register_fake(torch.empty_like)
    sin.register_autograd(
        lambda ctx, g: -g * torch.sin(*ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return sin


class Waves(nn.Module):
    def __init__(self, sin: Any) -> None:
        super().__init__()
        self.conv, self.sin = nn.Conv2d(2, 3, 3).double(), sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sin(self.conv(x)).sum()


X = torch.randn(1, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_every_row_is_of_an_operator() -> None:
    """Those of ATen by name and overload, those of others with their namespace."""
    names = {*OPS, *AOT_OPS, *COMPOSED, *AS_THEY_ARE, *FILLING}
    for row in names:
        namespace, _, rest = row.rpartition("::")
        name, _, overload = rest.partition(".")
        found = getattr(getattr(getattr(torch.ops, namespace or "aten"), name), overload)
        assert op_of(found) == row
    assert all(hasattr(torch.ops.aten, name) for name in HINTS)


def test_what_has_no_namespace() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("as_strided")
    assert op_of(x) == ""
    assert op_of(graph.call_function(operator.getitem, (x, 0))) == "_operator::getitem"


def test_a_users_operator_under_torch_compile(sine: Any) -> None:
    module = Waves(sine)
    module(X).backward()
    want = module.conv.weight.grad
    module.conv.weight.grad = None
    with pytest.warns(UserWarning, match=r"PyTorch runs this: .*PyTorch op mylib::sin.default"):
        torch.compile(module, backend=backend)(X).backward()
    assert want is not None
    assert torch.allclose(module.conv.weight.grad, want, rtol=1e-12)


WAYS: dict[str, Any] = {
    "torch": lambda sin: from_torch(Waves(sin), (X,), loss="own"),
    "step": lambda sin: rt.TrainingStep(Waves(sin), X),
    "aot": lambda sin: from_aot(make_fx(lambda x: sin(x) * 2)(X), [X]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_users_operator_is_refused_by_its_name(sine: Any, way: str) -> None:
    with pytest.raises(ValueError, match=r"PyTorch op mylib::sin.default \(sin\) is not supported"):
        WAYS[way](sine)


def test_a_users_operator_is_no_constant(sine: Any) -> None:
    """Of values that are known: what else it reads is not."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3).double())
            self.register_buffer("shift", torch.arange(3.0).double())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.w + sine(self.shift)).sum()

    with pytest.raises(ValueError, match=r"PyTorch op mylib::sin.default"):
        from_torch(Shifted(), (torch.zeros(2, 3).double(),), loss="own")


def test_a_counter_of_a_users_module_is_not_a_norms() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(3, 2)
            self.register_buffer("my_num_batches_tracked", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> Any:
            self.my_num_batches_tracked += 1
            return self.dense(x) * self.my_num_batches_tracked

    with pytest.raises(ValueError, match="changes the buffer 'my_num_batches_tracked'"):
        from_torch(Counting(), (torch.zeros(2, 3),))


# ---- this package's own --------------------------------------------------------------------------

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "Conv1d": (rt.Conv1d(4, 6, 3, stride=2, groups=2), (2, 4, 9)),
    "ConvTranspose1d": (rt.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), (2, 4, 5)),
    "Conv2d": (rt.Conv2d(4, 6, (2, 3), padding="same", dilation=2), (2, 4, 7, 8)),
    "Conv2d, reflected": (rt.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 5, 6)),
    "ConvTranspose2d": (
        rt.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2, dilation=2), (2, 4, 4, 5),
    ),
    "Conv3d": (rt.Conv3d(4, 6, 3, padding=1, stride=2), (2, 4, 5, 6, 4)),
    "ConvTranspose3d": (rt.ConvTranspose3d(4, 6, 2, stride=2), (2, 4, 3, 3, 4)),
}  # fmt: skip


def _theirs(layer: nn.Module) -> nn.Module:
    """PyTorch's own layer on the same parameters."""
    twin = copy.deepcopy(layer)
    twin.__class__ = type(layer).__mro__[1]
    return twin


def _apart(ours: Any, theirs: nn.Module, layer: nn.Module, x: torch.Tensor) -> float:
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    pairs = zip(layer.parameters(), theirs.parameters(), strict=True)
    return max(float((a.grad - b.grad).norm() / b.grad.norm()) for a, b in pairs)


@pytest.mark.share(5)
@pytest.mark.parametrize("way", ["step", "compile"])
@pytest.mark.parametrize("name", LAYERS)
def test_own_layers(name: str, way: str) -> None:
    given, shape = LAYERS[name]
    layer = copy.deepcopy(given).double()
    theirs, x = _theirs(layer), torch.randn(*shape, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="relay_wgrad:")  # PyTorch runs nothing
        if way == "step":
            ours: Any = rt.TrainingStep(layer, x)
        else:
            ours = torch.compile(layer, backend=backend)
        assert _apart(ours, theirs, layer, x) < 1e-10


FUNCTIONS: dict[str, Any] = {
    "by input": lambda x, w: rt.convolution_backward_input(
        (2, 4, 7, 8), w, rt.convolution(x, w, groups=2), groups=2
    ),
    "by weight": lambda x, w: rt.convolution_backward_weight(
        x, (6, 2, 3, 3), rt.convolution(x, w, groups=2), groups=2
    ),
    "by bias": lambda x, w: rt.convolution_backward_bias(rt.convolution(x, w, groups=2)),
    "transposed, by input": lambda x, w: rt.convolution_transpose_backward_input(x, w, groups=2),
    "transposed, by weight": lambda x, w: rt.convolution_transpose_backward_weight(
        rt.convolution(x, w, groups=2), (6, 2, 3, 3), x, groups=2
    ),
}


@pytest.mark.share(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_own_functions(name: str) -> None:
    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(6, 2, 3, 3, dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> Any:
            return FUNCTIONS[name](x, self.w).square().mean()

    module, x = Called(), torch.randn(2, 4, 7, 8, dtype=torch.float64)
    loss = module(x)
    (want,) = torch.autograd.grad(loss, module.w)
    graph = from_torch(module, (x,), loss="own")
    outputs, (got,) = call(graph.gradient(), "main_adjoint", graph.arguments({"x": x.numpy()}))
    assert abs(float(outputs[0].numpy()) / float(loss.detach()) - 1) < 1e-12
    assert float((torch.from_numpy(got.numpy()) - want).norm() / want.norm()) < 1e-10


@pytest.mark.longer
def test_what_optimize_replaced_is_imported() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.ConvTranspose2d(4, 3, 2)).double()
    theirs, x = copy.deepcopy(net), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    report = rt.optimize(net, x)
    for part in net:  # whichever was faster here
        part.__class__ = {nn.Conv2d: rt.Conv2d, nn.ConvTranspose2d: rt.ConvTranspose2d}.get(
            type(part), type(part)
        )
    assert not report.waiting
    assert _apart(rt.TrainingStep(net, x), theirs, net, x) < 1e-10
