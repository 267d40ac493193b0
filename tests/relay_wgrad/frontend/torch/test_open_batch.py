"""One graph for any number of images: values and gradients are autograd's for each number."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from torch.nn import functional as fn

import byoc_cudnn
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.frontend.sizes import Open, completed, factor_and_power, spec_of, variable
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import grad
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.torch.open_cases import (
    BATCHES,
    SIDE,
    compiled,
    difference,
    network,
    open_graph,
)

pytestmark = pytest.mark.usefixtures("registered")

X = torch.zeros(2, 3, SIDE, SIDE, dtype=torch.float64)


@pytest.mark.longer_cases("steps1")
@pytest.mark.parametrize(
    ("steps", "loss"),
    [
        (("bn", "max", "dropout", "windows"), "cross_entropy"),
        (("batch mean", "token", "bilinear"), "huber(delta=0.5)"),
    ],
)
def test_value_and_gradient(steps: Sequence[str], loss: str) -> None:
    module = network(steps)
    graph = open_graph(module, loss)
    assert graph.inputs[0].shape == (Open(), 3, SIDE, SIDE)
    assert str(graph.inputs[0].shape) == f"(N, 3, {SIDE}, {SIDE})"
    vm = compiled(graph)
    for count in BATCHES:
        assert difference(module, graph, vm, count, loss) < 1e-12, count


@pytest.mark.longer
def test_the_same_as_of_a_number() -> None:
    """A graph for a number is that for any with the number in its place."""
    module = network(["dropout of maps"])
    graph = open_graph(module)
    x = torch.zeros(3, 3, SIDE, SIDE, dtype=torch.float64)
    fixed, of_three = from_torch(module, (x,), dropout="mask"), graph.of_batch(3)
    assert of_three.inputs == fixed.inputs
    assert of_three.batch == 3
    assert not of_three.is_open
    batch = of_three.random_batch(1)
    assert all(np.array_equal(v, graph.random_batch(1, 3)[k]) for k, v in batch.items())
    vm = compiled(of_three)
    assert difference(module, of_three, vm, 3) < 1e-12


class Of(nn.Module):
    """A function of a convolution's result."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1).double()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.conv(x)).mean()


REFUSED = {
    "a part of the batch": (lambda y: y[1:], r"export refuses Of: Not all values.*; an example, o"),
    "one image": (lambda y: y[0], r"select.int .*a part of the batch is taken"),
    "a fixed number": (
        lambda y: y + torch.ones(2, 1, 1, 1).double(), "torch.export refuses Of"
    ),
    "unbound": (lambda y: torch.stack([a.sin() for a in y]), "it is for one number of images"),
    "an extremum over it": (lambda y: y.max(0)[0], "max.dim .*it wants a number; the batch"),
    "few images": (lambda y: y * (3 if y.shape[0] < 4 else 1), "export refuses Of: .* 4 <= "),
    "an even number": (lambda y: y * (3 if y.shape[0] % 2 else 1), "export refuses Of: .* % 2"),
}  # fmt: skip


@pytest.mark.parametrize(("function", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(function: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_torch(Of(function), (X,), batch="N", loss="own")


ONE = {
    "a branch": (lambda y: y * 10 if y.shape[0] == 1 else y, "computes aten.mul.Tensor"),
    "on several": (lambda y: y * 10 if y.shape[0] > 1 else y, "of more aten.mul.Tensor"),
    "all axes of 1": (lambda y: y.mean((2, 3), True).squeeze().softmax(-1), "squeeze"),
    "the batch squeezed": (lambda y: y.squeeze(0).softmax(0), "squeeze"),
    "no statistics": (
        lambda y: fn.batch_norm(y.mean((2, 3)), None, None, training=True), "more than one value"
    ),
}  # fmt: skip
"""Of one image each is another function, or none."""


@pytest.mark.longer_cases("on several", "all axes")
@pytest.mark.parametrize(("function", "reason"), ONE.values(), ids=ONE)
def test_one_image_is_refused_where_it_is_another_function(function: Any, reason: str) -> None:
    graph = from_torch(Of(function), (X,), batch="N", loss="own")
    assert graph.limits.least == 2
    with pytest.raises(ValueError, match=rf"Of: a batch must be of at least 2 .*{reason}.*got 1"):
        graph.random_batch(0, 1)


def test_the_compiled_step_refuses_one_image() -> None:
    """By itself, of any order, dtype and layout, and where libraries take its convolutions."""
    module = Of(ONE["a branch"][0])
    graph = from_torch(module, (X,), batch="N", loss="own")
    second = grad(graph.module, wrt=list(graph.trainable), order=2)
    narrow = from_torch(module.float(), (X.float(),), batch="N", loss="own")
    half = converted(step_module(narrow, dtype="float16"), "NHWC")
    parted, _ = byoc_cudnn.partition(half)
    assert "check_batch" in parted[ADJOINT].script()
    byoc_cudnn.build(parted)
    params = [tvm.runtime.tensor(v) for v in graph.params.values()]
    directions = [tvm.runtime.tensor(graph.params[name]) for name in graph.trainable]
    for mod, names in (
        (graph.gradient(), ("main", ADJOINT)), (second, ("main_adjoint1", "main_adjoint2")),
        (half, (ADJOINT,)),
    ):  # fmt: skip
        vm = virtual_machine(mod, FAST)
        dtype = "float32" if mod is half else "float64"
        one, many = (tvm.runtime.tensor(np.ones((n, *X.shape[1:]), dtype)) for n in (1, 3))
        given = [tvm.runtime.tensor(p.numpy().astype(dtype)) for p in params]
        for name in names:
            more = directions if name == "main_adjoint2" else []
            with pytest.raises(ValueError, match=r"Of: a batch must be of at least 2 .*, got 1"):
                vm[name](one, *given, *more)
            vm[name](many, *given, *more)
    assert "check_batch" not in graph.of_batch(2).module.script()


SAME = {
    "a size": lambda y: y / y.shape[0] + y.sum(0) / max(y.shape[0] - 1, 1),
    "whole slices": lambda y: y[:, 1:3, :, ::2].contiguous().view(y.shape[0], -1),
    "one and more": lambda y: y * 10 if y.shape[0] >= 1 else y,
    "broadcast": lambda y: y[:, None] - y[None] + torch.ones(1, 4, 6, 6).double(),
    "heads": lambda y: fn.scaled_dot_product_attention(*[y.transpose(0, 1)] * 3),
}


@pytest.mark.share(5)
@pytest.mark.longer_cases("one and", "broadcast", "heads")
@pytest.mark.parametrize("function", SAME.values(), ids=SAME)
def test_one_image_is_taken_where_it_is_the_same(function: Any) -> None:
    module = Of(function)
    graph = from_torch(module, (X,), batch="N", loss="own")
    assert graph.limits.least == 1
    vm = virtual_machine(graph.gradient(), FAST)
    for count in (1, 2, 3):
        batch = graph.random_batch(0, count)
        outputs, gradients = vm[ADJOINT](*map(tvm.runtime.tensor, graph.arguments(batch)))
        wanted = module(torch.tensor(batch["x"]))
        found = torch.autograd.grad(wanted, [*module.parameters()])
        assert float(outputs[0].numpy()) == pytest.approx(wanted.item(), rel=1e-12)
        for a, b in zip(gradients, found, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.longer("views of an ONNX file's batch stay")
@pytest.mark.parametrize("step", ["cat and chunk", "similar"])
def test_views_joined_along_the_batch(step: str) -> None:
    module = network([step])
    graph = open_graph(module, "mse")
    vm = compiled(graph)
    for count in (1, 2, 3):
        assert difference(module, graph, vm, count, "mse") < 1e-12, count


def exported(module: nn.Module, axes: Any) -> Any:
    given = (X, torch.cat([X, X])) if len(axes) == 2 else (X,)
    return torch.export.export(module, given, dynamic_shapes=axes)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1).double()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean() + self.conv(y).mean()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # of PyTorch
def test_exported_programs() -> None:
    """Their dynamic first axes are the batch, within their range; other open sizes are refused."""
    dim = torch.export.Dim
    module = Of(lambda y: y)
    graph = from_torch(exported(module, ({0: dim("images", min=2, max=64)},)), loss="own")
    assert graph.inputs[0].shape[0] == Open()
    assert graph.random_batch(0, 64)["x"].shape[0] == 64
    for wrong in (1, 65):
        with pytest.raises(ValueError, match=rf"at least 2 and at most 64 .*, got {wrong}"):
            graph.random_batch(0, wrong)
    plain = from_torch(exported(module, ({0: dim("images")},)), loss="own")
    with pytest.raises(ValueError, match=r"at least 2 .*pass the module itself.*, got 1"):
        plain.random_batch(0, 1)  # which of 1 may be another function
    with pytest.raises(ValueError, match=r"'x' has symbolic sizes .*: only a batch, its first"):
        from_torch(exported(module, ({2: dim("rows")},)), loss="own")
    with pytest.raises(ValueError, match=r"'y' has a batch .* only one size may be open"):
        from_torch(exported(Two(), ({0: dim("n")}, {0: dim("m")})), loss="own")
    with pytest.raises(TypeError, match=r"batch of a .* is what it was exported with"):
        from_torch(exported(module, ({},)), batch="N")


def test_an_example_of_one_image() -> None:
    module = network(["relu"])
    assert open_graph(module, batch=1).inputs == open_graph(module).inputs


def test_options() -> None:
    with pytest.raises(ValueError, match="batch='M': expected 'N'"):
        from_torch(network([]), (X,), batch="M")
    with pytest.raises(ValueError, match="first input has no axis for the batch"):
        from_torch(network([]), (torch.zeros(()),), batch="N")


@pytest.fixture(scope="module")
def normed() -> TrainingGraph:
    """Of statistics over the batch alone."""
    module = nn.Sequential(nn.Conv2d(3, 4, SIDE), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))
    return open_graph(module.double())


def test_batches_that_are_not_taken(normed: TrainingGraph) -> None:
    """By name: too few images for statistics, none, of different numbers, another size."""
    batch = normed.random_batch(0, 3)
    normed.batch_values(batch)
    wrong = "at least 2 (batch statistics need more than one value per channel), got 1"
    with pytest.raises(ValueError, match=re.escape(wrong)):
        normed.batch_values({"input": X[:1], "labels": np.zeros(1, "int64")})
    with pytest.raises(ValueError, match=r"'labels' is int64\[3\], got int64\[2\]"):
        normed.batch_values({**batch, "labels": batch["labels"][:2]})
    with pytest.raises(ValueError, match="no value for argument 'input'"):
        normed.batch_values({"labels": batch["labels"]})
    with pytest.raises(ValueError, match=r"float64\[3, 3, 6, 6\], got float64\[3, 3, 6, 5\]"):
        normed.batch_values({**batch, "input": batch["input"][..., :5]})
    with pytest.raises(ValueError, match=r"batch is open, .*`of_batch\(n\)` is the graph for n"):
        _ = normed.batch
    with pytest.raises(ValueError, match=r"the batch of \[N, 3, 6, 6\] is open: give a number"):
        normed.random_batch()
    with pytest.raises(ValueError, match="at least 2"):
        normed.of_batch(1)
    with pytest.raises(ValueError, match="its batch is 3, got 4"):
        normed.of_batch(3).of_batch(4)


def test_sizes() -> None:
    n = variable()
    assert factor_and_power(7) == (7, 0)
    assert factor_and_power(n * 14 // 2) == (7, 1)
    assert spec_of([3, n, n * 36]) == (3, Open(), Open(36))
    assert repr(Open(36)) == "36N"
    with pytest.raises(ValueError, match="no multiple of the batch"):
        factor_and_power(n + 1)
    assert completed([n, -1], [n, 3, 4]) == [n, 12]
    rest = completed([-1, 12], [n, 3, 4])
    assert rest is not None
    assert factor_and_power(rest[0]) == (1, 1)
    assert completed([5, -1], [n, 3, 4]) is None
    assert completed([n, 13], [n, 3, 4]) is None
