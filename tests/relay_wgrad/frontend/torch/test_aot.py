"""`from_aot`: graphs of AOTAutograd and of `torch.func.grad`, in float64 beside PyTorch's."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import byoc_cudnn
from relay_wgrad.frontend import from_aot
from relay_wgrad.frontend.torch.aot import convolution_gradients
from relay_wgrad.frontend.torch.aot_ops import AOT_OPS
from relay_wgrad.frontend.torch.retracing import decompositions
from relay_wgrad.ir import op_name
from tests.support.onnx.models import call as called
from tests.support.torch import op_cases
from tests.support.torch.aot import Scalar, apart, compared, joint, ran

pytestmark = pytest.mark.usefixtures("registered")

aten = torch.ops.aten
F64 = torch.float64


def data(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


def ops_of(module: Any) -> list[str]:
    return [op_name(b.value) for block in module["main"].body.blocks for b in block.bindings]


class Classified(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Any, labels: Any) -> Any:
        return (nn.functional.cross_entropy(self.net(x), labels),)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.Flatten(), nn.Linear(36, 3),
    )  # fmt: skip


# ---- whole graphs --------------------------------------------------------------------------------


def test_a_joint_graph() -> None:
    """Loss, gradients and running statistics; every gradient of a convolution is an operator."""
    module, x, labels = Classified(small()), data(2, 2, 8, 8), torch.tensor([1, 2])
    graph, inputs = joint(module, x, labels)
    made = from_aot(graph, inputs, name="joint")
    assert convolution_gradients(graph) == 3  # the image has none
    found = ops_of(made.module)
    assert found.count("relax.nn.conv2d_backward_weight") == 2
    assert found.count("relax.nn.conv2d_backward_data") == 1
    assert apart(ran(made, inputs), graph(*inputs)) < 1e-9


def test_partition_takes_the_gradients() -> None:
    """What a library takes of a graph in float32, by the report."""
    module = Scalar(nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1)))
    graph, inputs = joint(module, data(2, 4, 6, 6).float(), dtype=torch.float32)
    _, report = byoc_cudnn.partition(from_aot(graph, inputs).module, ("cudnn",))
    gradients = [e for e in report.entries if "backward" in e.op]
    assert len(gradients) == convolution_gradients(graph) == 3
    assert all(entry.backend == "cudnn" for entry in report.entries)


def parts(module: nn.Module, *x: Any) -> list[tuple[Any, list[Any], Any]]:
    """(graph, its inputs, its results) of the forward and of the backward part of a step."""
    from functorch.compile import aot_module

    found: list[Any] = []

    def kept(graph: Any, example: Any) -> Any:
        def run(*inputs: Any) -> Any:
            given = [i.detach().clone() for i in inputs]
            found.append((graph, given, graph(*given)))
            return graph(*inputs)

        return run

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about PyTorch
        aot_module(module, fw_compiler=kept, bw_compiler=kept)(*x)[0].sum().backward()
    return found


def test_forward_and_backward_parts() -> None:
    """Results that are inputs, numbers of maxima, None; the backward part's own inputs."""
    module, x = Classified(small().double()), data(2, 2, 8, 8)
    forward, backward = parts(module, x, torch.tensor([0, 2]))
    for graph, inputs, wanted in (forward, backward):
        made = from_aot(graph, inputs)
        found = ran(made, inputs)
        assert apart(found, wanted) < 1e-9
        for result, got, want in zip(made.outputs, found, wanted, strict=True):
            if want is not None and not want.is_floating_point():
                assert np.array_equal(got, want), result
    kinds = {result.kind for result in from_aot(*forward[:2]).outputs}
    assert {"input", "result"} <= kinds
    assert "value" in {result.kind for result in from_aot(*backward[:2]).outputs}


def gradient(weight: Any, x: Any) -> Any:
    def loss(weight: Any) -> Any:
        y = nn.functional.conv2d(x, weight, stride=2, padding=1)
        return (torch.tanh(y) ** 2).sum()

    return torch.func.grad(loss)(weight)


def test_a_gradient_function() -> None:
    """`torch.func.grad`, traced, and exported after that: its weight comes first."""
    weight, x = data(3, 2, 3, 3), data(2, 2, 7, 7)
    graph = traced(gradient, weight, x)

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(weight)

        def forward(self, x: Any) -> Any:
            return graph(self.weight, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about PyTorch
        exported = from_aot(torch.export.export(Holder(), (x,)))
    assert [v.shape for v in exported.state.values()] == [(3, 2, 3, 3)]
    want = gradient(weight, x).numpy()
    for made in (from_aot(graph, (weight, x)), exported):
        (found,) = ran(made, [weight, x])
        assert ops_of(made.module).count("relax.nn.conv2d_backward_weight") == 1
        assert np.abs(found - want).max() < 1e-9 * np.abs(want).max()


def test_values_that_export_has_lost() -> None:
    """PyTorch makes constants of what `torch.func.grad` computes within an exported module."""

    class Gradient(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(data(3, 2, 3, 3))

        def forward(self, x: Any) -> Any:
            return gradient(self.weight, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Gradient(), (data(2, 2, 7, 7),))
    if program.constants:
        with pytest.raises(ValueError, match="made constants of 4 values within"):
            from_aot(program)


def test_channels_last() -> None:
    """Tensors that lie so come and go as they lie."""
    module = nn.Conv2d(2, 4, 3, bias=False).double()
    x = data(2, 2, 6, 6).to(memory_format=torch.channels_last)
    graph, inputs = joint(Scalar(module), x)
    made = from_aot(graph, inputs, channels_last=True)
    assert made.last[0] == (False, True)
    assert [spec.shape for spec in made.inputs if spec] == [(4, 2, 3, 3), (2, 6, 6, 2)]
    given = [inputs[0], inputs[1].permute(0, 2, 3, 1)]
    found = ran(made, given)
    assert made.last[1] == (False, True)  # PyTorch's gradient of the weight lies so too
    found[1] = found[1].transpose(0, 3, 1, 2)
    assert apart(found, graph(*inputs)) < 1e-9


# ---- rows ----------------------------------------------------------------------------------------

NETS: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...]]]] = {
    "transposed": lambda: (nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=2, dilation=2), nn.SiLU(),
        nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1, groups=2), nn.GELU(),
        nn.ConvTranspose2d(4, 2, 2, stride=2, dilation=3, output_padding=2),
    ), (2, 3, 7, 7)),
    "lines": lambda: (nn.Sequential(
        nn.Conv1d(3, 6, 3, stride=2, padding=1), nn.BatchNorm1d(6), nn.Sigmoid(),
        nn.ConvTranspose1d(6, 4, 3, stride=2), nn.ReflectionPad1d(2), nn.LayerNorm(21),
        nn.Softmax(1),
    ), (2, 3, 15)),
    "volumes": lambda: (nn.Sequential(
        nn.Conv3d(2, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool3d(2),
        nn.ConvTranspose3d(4, 2, 2, stride=2), nn.AvgPool3d(2),
    ), (2, 2, 9, 8, 8)),
    "windows": lambda: (nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.MaxPool2d(3, 2, 1, dilation=1), nn.AvgPool2d(3, 2, 1, True, False),
        nn.Upsample(scale_factor=2), nn.Upsample(size=(7, 9), mode="bilinear"),
        nn.ReplicationPad2d((1, 0, 2, 1)), nn.AdaptiveAvgPool2d((3, 4)),
    ), (2, 2, 12, 12)),
    "evaluated": lambda: (nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4).eval(), nn.ReLU6(), nn.GroupNorm(2, 4),
        nn.Hardswish(), nn.AdaptiveAvgPool2d(1),
    ), (2, 3, 8, 8)),
}  # fmt: skip


@pytest.mark.longer
@pytest.mark.parametrize("name", NETS)
def test_nets(name: str) -> None:
    torch.manual_seed(1)
    module, shape = NETS[name]()
    compared(Scalar(module), data(*shape))


# What is not taken in a joint graph, beside what is not by `from_torch`.
_REFUSED = ("parts that are nothing", "masked attention", "prelu", "weight norm")
GROUPS = ("math", "activations", "sums", "layers", "shapes", "stops", "resizing", "indexing",
          "products", "volumes")  # fmt: skip


@pytest.mark.longer_cases(
    "activations", "indexing", "layers", "math", "products", "resizing", "shapes", "sums", "volumes"
)
@pytest.mark.parametrize("group", GROUPS)
def test_gradients_of_each_op(group: str) -> None:
    """What `from_torch` takes is taken in the joint graph that AOTAutograd makes of it.

    PyTorch's own hardsigmoid has a sixth in float32 in its gradient, hence the bound.
    """
    chosen = [f for name, f in op_cases.GROUPS[group].items() if name not in _REFUSED]

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.side = op_cases.Side(chosen, F64)

        def forward(self, x: Any) -> Any:
            return (self.side(x),)

    graph, inputs = joint(Loss(), data(2, 4, 6, 6, seed=4))
    assert apart(ran(from_aot(graph, inputs), inputs), graph(*inputs)) < 1e-8


def traced(function: Callable[..., Any], *x: Any) -> Any:
    return make_fx(function, tracing_mode="fake")(*x)


def test_other_names_of_batch_norm() -> None:
    """cuDNN's ops and the newer ones, which no CPU has, beside the native ones."""
    x, dy = data(2, 3, 4, 4), data(2, 3, 4, 4, seed=1)
    weight, bias, mean = data(3, seed=2), data(3, seed=3), data(3, seed=4)
    var, reserve = data(3, seed=5).abs() + 1, torch.empty(0, dtype=torch.uint8)

    def native(x: Any, dy: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        r = aten._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-3)
        mask = [True, True, True]
        g = aten.native_batch_norm_backward(dy, x, w, m, v, r[1], r[2], True, 1e-3, mask)
        return r[0], g[0], g[1], g[2], r[3], r[4]

    def cudnn(x: Any, dy: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        r = aten.cudnn_batch_norm(x, w, b, None, None, True, 0.1, 1e-3)
        g = aten.cudnn_batch_norm_backward(x, dy, w, m, v, r[1], r[2], 1e-3, reserve)
        return r[0], g[0], g[1], g[2]

    def newer(x: Any, dy: Any, w: Any, b: Any, m: Any, v: Any) -> Any:
        r = aten._batch_norm_with_update_functional(x, w, b, m, v, 0.1, 1e-3)
        mask = [True, True, True]
        g = aten.batch_norm_backward(dy, x, w, m, v, r[1], r[2], True, 1e-3, mask, r[3])
        return r[0], g[0], g[1], g[2], r[4], r[5]

    given = (x, dy, weight, bias, mean, var)
    wanted = native(*given)
    for function, count in ((native, 6), (cudnn, 4), (newer, 6)):
        graph = renamed(function, given)
        found = ran(from_aot(graph, given), list(given))
        assert apart(found, wanted[:count]) < 1e-9, function.__name__


def renamed(function: Callable[..., Any], given: Any) -> Any:
    """The graph of a function, recorded without running it."""
    graph = torch.fx.symbolic_trace(function)
    for node, x in zip((n for n in graph.graph.nodes if n.op == "placeholder"), given, strict=True):
        node.meta["val"] = x
    return graph


def test_embedding_and_scatter() -> None:
    """Sums to rows that are chosen more than once, one of which is padding."""

    def function(dy: Any, index: Any, x: Any, place: Any) -> Any:
        rows = aten.embedding_dense_backward(dy, index, 5, 2, False)
        put = aten.index_put(x, [None, place], dy[:2, :, 0], True)
        return rows, put, aten.scatter_add(x, 1, index, x), aten.scatter.src(x, 1, index[:, :1], x)

    given = [
        data(2, 3, 4),
        torch.tensor([[0, 2, 4], [4, 4, 1]]),
        data(2, 6),
        torch.tensor([5, 0, 5]),
    ]
    graph = traced(function, *given)
    assert apart(ran(from_aot(graph, given), given), graph(*given)) < 1e-12


def test_places_in_memory() -> None:
    """Elements by strides, taken and put; of another memory order than the graph's they are not."""

    def function(x: Any, part: Any) -> Any:
        taken = aten.as_strided(x, [2, 3], [1, 4], 2)
        whole = aten.as_strided_scatter(x, part.expand(4, 5), [4, 5], [1, 4])
        return taken, aten.as_strided_scatter(x, part[:3], [3], [5], 1), whole

    given = [data(5, 4), data(5, seed=1)]
    graph = traced(function, *given)
    assert apart(ran(from_aot(graph, given), given), graph(*given)) < 1e-12
    with pytest.raises(ValueError, match="depends on its operand's memory order"):
        from_aot(graph, [given[0].T.contiguous().T, given[1]])


def test_dropout_is_drawn() -> None:
    """Its mask is an argument more, for whoever draws."""
    module = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Dropout(0.25))
    x = data(2, 2, 3, 3)
    graph, inputs = joint(Scalar(module), x)
    made = from_aot(graph, inputs)
    (spec,) = made.drawn
    shape = (2, 3, 3, 3)
    assert (spec.dtype, spec.shape, spec.distribution) == ("bool", shape, ("bernoulli", 0.75))
    mask = data(*shape, seed=2).numpy() > 0
    loss, _, of_bias = ran(made, inputs, [mask])
    factors = np.sin(np.arange(mask.size) + 1).reshape(shape) * mask / 0.75
    assert abs(loss - (module[0](x).detach().numpy() * factors).sum()) < 1e-12
    assert np.abs(of_bias - factors.sum((0, 2, 3))).max() < 1e-12


# ---- half precision ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half(dtype: torch.dtype) -> None:
    """An op rounds once, as PyTorch's; products and moves stay half; types are PyTorch's."""

    def function(x: Any, w: Any, y: Any) -> Any:
        conv = aten.convolution(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        centred = (conv.permute(1, 0, 2, 3) - 300) * 0.125 + y.to(dtype)
        return centred, centred.float().sum(), torch.addmm(y, x[0, 0], x[0, 1]), x.sum(), x > 1

    given = [data(2, 2, 3, 3).to(dtype), data(4, 2, 1, 1).to(dtype), data(3, 3, seed=1).to(dtype)]
    graph = traced(function, *given)
    made = from_aot(graph, given)
    found = {}
    for block in made.module["main"].body.blocks:
        for binding in block.bindings:
            args = getattr(binding.value, "args", [])
            types = [str(a.ty.dtype) for a in args if hasattr(a.ty, "dtype")]
            found[op_name(binding.value)] = (types, str(getattr(binding.var.ty, "dtype", "")))
    half = str(dtype).removeprefix("torch.")
    assert found["relax.nn.conv2d"] == ([half, half], half)
    assert found["relax.permute_dims"] == ([half], half)
    assert found["relax.matmul"] == ([half, half], "float32")
    assert found["relax.subtract"][1] == found["relax.multiply"][1] == "float32"
    array = import_module("relay_wgrad.frontend.torch.call").array
    results = called(made.module, "main", made.arguments([array(x) for x in given]))
    for got, want in zip(results, graph(*given), strict=True):
        exact = want.double().numpy()
        assert got.dtype == str(want.dtype).removeprefix("torch.")
        close = {"float16": 1e-3, "bfloat16": 8e-3}[half]
        off = np.linalg.norm(got.numpy().astype("float64") - exact)
        assert off <= close * np.linalg.norm(exact)


def test_half_state_of_a_program() -> None:
    """Parameters of an exported program come in its type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about PyTorch
        made = from_aot(torch.export.export(nn.Linear(2, 3).half(), (data(1, 2).half(),)))
    assert [str(v.dtype) for v in made.state.values()] == ["float16", "float16"]


# ---- refusals ------------------------------------------------------------------------------------


def test_an_unknown_op_is_named() -> None:
    graph = traced(lambda x: torch.linalg.inv(x), data(3, 3))
    with pytest.raises(ValueError, match=r"mine: PyTorch op linalg_inv_ex.* is not supported"):
        from_aot(graph, [data(3, 3)], name="mine")


def test_a_dtype_that_is_refused() -> None:
    graph = traced(lambda x: x + 1, data(3).to(torch.complex64))
    with pytest.raises(ValueError, match="input 'x_1' is complex64"):
        from_aot(graph, [data(3).to(torch.complex64)])


def test_what_is_no_graph() -> None:
    with pytest.raises(TypeError, match=r"expected a torch\.fx\.GraphModule, got int"):
        from_aot(3)
    graph = traced(operator.neg, data(3))
    with pytest.raises(ValueError, match="takes 1 inputs, got 2 example_inputs"):
        from_aot(graph, [data(3), data(3)])


def test_what_is_kept_whole() -> None:
    """Convolutions, batch normalization and poolings are not decomposed, whatever PyTorch can."""
    kept = {"convolution_backward.default", "native_batch_norm_backward.default",
            "max_pool2d_with_indices_backward.default", "convolution.default"}  # fmt: skip
    assert kept <= set(AOT_OPS)
    assert not kept & {str(getattr(key, "__name__", key)) for key in decompositions()}
