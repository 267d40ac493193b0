"""Training normalizations as one operator: their numbers on the CPU beside PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import tvm

import legalize.cpu
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.transform import grad
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.norm_cases import TOLERANCE, Case, distance, module, reference

pytestmark = pytest.mark.usefixtures("registered")

CASES = [
    Case((3, 4, 5, 6), activation="relu", running=True),
    Case((3, 4, 5, 6), activation="relu", residual=True, statistics=True, running=True),
    Case((2, 5, 4, 3), activation="relu6", axis=3, residual=True, statistics=True),
    Case((4, 3, 2, 2), activation="silu", statistics=True, running=True, unbiased=False),
    Case((7, 3), residual=True),
    Case((2, 5, 5, 9), "float32", axis=3, activation="relu", residual=True, running=True),
    Case((2, 5, 5, 9), "float16", axis=3, activation="relu", residual=True, running=True),
    Case((2, 9, 5, 5), "bfloat16", activation="relu"),
    Case((1, 6, 1, 1)),  # one pixel: nothing but beta comes through
    Case((1, 1, 4, 4), activation="relu"),
    Case((3, 4, 5, 6), activation="relu", running=True, symbolic=True),
    Case((2, 3, 4, 5), activation="leaky_relu", residual=True, running=True),
    # Instance normalization, of volumes and lines; groups of several channels.
    Case((2, 5, 3, 4, 3), activation="leaky_relu", groups=5, statistics=True),
    Case((2, 3, 4, 3, 5), activation="leaky_relu", axis=4, groups=5, residual=True),
    Case((3, 6, 7), activation="relu", groups=2, statistics=True),
    Case((2, 4, 3, 6), activation="gelu_tanh", axis=3, groups=3),
    Case((2, 3, 4, 3, 9), "bfloat16", axis=4, activation="leaky_relu", groups=9),
    Case((2, 6, 5, 5), "float32", activation="leaky_relu", groups=3, residual=True),
    Case((2, 6, 1, 1), activation="relu", groups=6),  # one pixel
    Case((3, 4, 5, 6), activation="hardswish", groups=2, symbolic=True),
]
ORDER_TWO = [
    Case((3, 2, 3, 2), activation="relu", residual=True, statistics=True, running=True),
    Case((3, 2, 3, 2), activation="relu", axis=3),
    Case((3, 2, 3, 2), activation="silu"),
    Case((2, 4, 3, 2), activation="leaky_relu", groups=4, residual=True, statistics=True),
    Case((2, 3, 2, 4), activation="elu", axis=3, groups=2, statistics=True),
    *(Case((3, 2, 3, 2), activation=name) for name in ("gelu", "gelu_tanh", "hardswish", "elu")),
]


def run(mod: tvm.IRModule, name: str, values: Any, pipeline: Any = None) -> list[Any]:
    target = legalize.cpu.host_target()
    vm = virtual_machine(mod, target, pipeline or cpu_pipeline())
    first, partials = vm[name](*(tvm.runtime.tensor(v) for v in values))
    return [[t.numpy() for t in first], [t.numpy() for t in partials]]


def close(got: Any, want: Any, limit: float) -> bool:
    """By the relative norm; zeros are zeros."""
    return distance(got, want) < limit if bool(want.abs().max() > 0) else not np.any(got)


def tensors(values: dict[str, Any]) -> dict[str, Any]:
    return {n: torch.tensor(v, dtype=torch.float64, requires_grad=True) for n, v in values.items()}


@pytest.mark.share(5)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case: Case) -> None:
    values = case.values()
    zeros = () if case.statistics else tuple(n for n in values if n[:6] == "weight" and n[6] != "0")
    mod = grad(module(case, zeros), "main", wrt=case.names)
    given = [v for n, v in values.items() if n not in zeros]
    (loss, *results), partials = run(mod, "main_adjoint", given)
    exact = tensors(values)
    want, expected = reference(case, exact)
    wanted = torch.autograd.grad(want, [exact[n] for n in case.names], allow_unused=True)
    limit = TOLERANCE[case.dtype]
    for got, right in zip((loss, *results), (want, *expected), strict=True):
        assert distance(got, right.detach()) < limit
    for name, got, right in zip(case.names, partials, wanted, strict=True):
        right = torch.zeros_like(exact[name]) if right is None else right
        if case.shape[2:] == (1, 1) and name in ("x", "gamma"):
            assert not np.any(got), name
            assert right.abs().max() < 1e-12, name
        else:
            assert close(got, right, limit), name


@pytest.mark.longer_cases(
    "Case(shape=(3, 2, 3, 2), dtype='float64', axis=1, activation='relu', residual=True"
)
@pytest.mark.share(6)
@pytest.mark.parametrize("case", ORDER_TWO, ids=str)
def test_second_order(case: Case) -> None:
    values = case.values()
    zeros = () if case.statistics else tuple(n for n in values if n[:6] == "weight" and n[6] != "0")
    mod = grad(module(case, zeros), "main", order=2, wrt=case.names)
    given = {n: v for n, v in values.items() if n not in zeros}
    exact = tensors(values)
    directions = case.values(seed=7)
    directions = {n: directions[n] for n in case.names}
    _, partials = run_second(mod, [*given.values(), *directions.values()])
    loss, _ = reference(case, exact)
    operands = [exact[n] for n in case.names]
    first = torch.autograd.grad(loss, operands, create_graph=True, allow_unused=True)
    inner = sum(
        (g * torch.tensor(d)).sum()
        for g, d in zip(first, directions.values(), strict=True)
        if g is not None
    )
    wanted = torch.autograd.grad(inner, operands, allow_unused=True)
    for name, got, right in zip(case.names, partials, wanted, strict=True):
        right = torch.zeros_like(exact[name]) if right is None else right
        assert close(got, right.detach(), 1e-10), name


def run_second(mod: tvm.IRModule, values: list[Any]) -> Any:
    target = legalize.cpu.host_target()
    vm = virtual_machine(mod, target, cpu_pipeline())
    value, partials = vm["main_adjoint2"](*(tvm.runtime.tensor(v) for v in values))
    return value, [t.numpy() for t in partials]


def test_nan_and_infinity_as_in_pytorch() -> None:
    """A NaN, or an infinity, in a channel is one in all of its results, and in no other channel."""
    case = Case((2, 3, 2, 2), "float32", activation="relu", residual=True)
    values = case.values()
    values["x"][0, 1, 0, 0], values["x"][1, 2, 1, 1] = np.nan, np.inf
    values["residual"][0, 0, 0, 0] = np.nan
    mod = grad(module(case, ("weight1", "weight2")), "main", wrt=case.names)
    given = [v for n, v in values.items() if n not in ("weight1", "weight2")]
    (_, *results), partials = run(mod, "main_adjoint", given)
    exact = tensors(values)
    want, expected = reference(case, exact)
    wanted = torch.autograd.grad(want, [exact[n] for n in case.names])
    for got, right in zip([*results, *partials], [*expected, *wanted], strict=True):
        right = right.detach().numpy()
        assert (np.isnan(got) == np.isnan(right)).all()
        assert np.allclose(got, right, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_upstream_pipeline_compiles_it() -> None:
    case = Case((2, 3, 4, 4), "float32", activation="relu")
    mod = grad(module(case, ("weight1", "weight2")), "main", wrt=case.names)
    vm = virtual_machine(mod, FAST)
    values = case.values()
    given = [v for n, v in values.items() if n not in ("weight1", "weight2")]
    _, partials = vm["main_adjoint"](*(tvm.runtime.tensor(v) for v in given))
    exact = tensors(values)
    wanted = torch.autograd.grad(reference(case, exact)[0], [exact[n] for n in case.names])
    for got, right in zip(partials, wanted, strict=True):
        assert distance(got.numpy(), right) < 2e-5
