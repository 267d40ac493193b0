"""Builders against NumPy and PyTorch, and gradients against slopes, many in one compilation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import relay_wgrad
from relay_wgrad.relay.records import REGISTRY, lookup
from relay_wgrad.relay.types import TensorType, TupleType
from relay_wgrad.transform import grad
from tests.support.chosen import cases_of
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.relay.gradients import (
    FLOATS,
    differentiable,
    differentiates,
    function_of,
    type_of,
    wide,
    write,
)
from tests.support.relay.op_cases import CASES, Case
from tests.support.relay.run_cases import CASES as RUN_CASES

IDS = [f"{i}-{case.op}" for i, case in enumerate(CASES)]
TOGETHER = 32  # cases that are compiled in one module: those that a process gets one after another


def compiled(module: tvm.IRModule) -> relax.VirtualMachine:
    # Small operands: compiling is what takes the time.
    return virtual_machine(module, FAST)


def flat(args: tuple[Any, ...]) -> list[Any]:
    return [x for a in args for x in (a if isinstance(a, tuple) else (a,))]


def to_tvm(args: list[Any]) -> list[Any]:
    # ascontiguousarray makes a vector of a scalar.
    return [tvm.runtime.tensor(np.array(a, order="C")) for a in args]


@cache
def _compiled(indices: tuple[int, ...]) -> relax.VirtualMachine:
    bb = relax.BlockBuilder()
    for i in indices:
        write(bb, f"case{i}", CASES[i], CASES[i].args)
    return compiled(bb.get())


def _with_its_neighbours(index: int, session: pytest.Session) -> relax.VirtualMachine:
    every = cases_of(session, test_result_and_its_type, "index")
    place = every.index(index) // TOGETHER * TOGETHER
    return _compiled(tuple(every[place : place + TOGETHER]))


@pytest.mark.usefixtures("registered")
@pytest.mark.share(3)
@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_result_and_its_type(index: int, request: pytest.FixtureRequest) -> None:
    case = CASES[index]
    machine = _with_its_neighbours(index, request.session)
    got = machine[f"case{index}"](*to_tvm(flat(case.args)))
    expected = case.expected(*case.args)
    inferred = lookup(case.op).infer([type_of(a) for a in case.args], case.attrs)
    if not isinstance(inferred, TupleType):
        got, expected, inferred = [got], [expected], TupleType((inferred,))
    assert len(got) == len(expected) == len(inferred.fields)
    for ours, theirs, ty in zip(got, expected, inferred.fields, strict=True):
        assert TensorType(tuple(ours.shape), str(ours.dtype)) == ty
        assert np.shape(theirs) == tuple(ours.shape)
        tolerance = 2e-3 if str(ours.dtype) == "float16" else 2e-5
        np.testing.assert_allclose(ours.numpy(), theirs, tolerance, tolerance)


def test_every_operator_has_a_case() -> None:
    """Those checked against Relay have programs, and most of them cases here as well."""
    every = {c.op for c in (*CASES, *RUN_CASES)}
    without = {n for n, op in REGISTRY.items() if op.checked != "relay"} - every
    assert not without


def _wide_case(case: Case) -> Case:
    attrs = {k: "float64" if v in FLOATS else v for k, v in case.attrs.items() if k != "dtype"}
    if "dtype" in case.attrs:
        attrs["dtype"] = "float64"
    return replace(case, args=tuple(map(wide, case.args)), attrs=attrs)


@pytest.fixture(scope="module")
def adjoints(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[relax.VirtualMachine, dict[int, str]]]:
    """The adjoints of these cases, and why some have none: a rule may refuse its attributes."""
    was = relay_wgrad.is_registered()
    relay_wgrad.register()
    functions, refused = {}, {}
    for i in cases_of(request.session, test_gradient_is_the_slope, "index"):
        if not differentiates(CASES[i]):
            refused[i] = "without a gradient"
            continue
        case = _wide_case(CASES[i])
        try:
            module = grad(tvm.IRModule({"main": function_of(case, case.args, scalar=True)}))
        except ValueError as error:
            refused[i] = str(error)
            continue
        functions |= {f"value{i}": module["main"], f"adjoint{i}": module["main_adjoint"]}
    named = {k: f.with_attr("global_symbol", k) for k, f in functions.items()}
    yield compiled(tvm.IRModule(named)), refused
    if not was:
        relay_wgrad.unregister()


# All cases: to ask which have gradients takes seconds, of each process that collects tests.
@pytest.mark.share(11)
@pytest.mark.parametrize("index", range(len(CASES)), ids=IDS)
def test_gradient_is_the_slope(
    adjoints: tuple[relax.VirtualMachine, dict[int, str]], index: int
) -> None:
    """Along a random direction: central differences in float64."""
    machine, refused = adjoints
    if index in refused:
        assert "gradient" in refused[index]
        return
    args = flat(_wide_case(CASES[index]).args)
    value = machine[f"value{index}"]
    _, partials = machine[f"adjoint{index}"](*to_tvm(args))
    rng = np.random.default_rng(index)
    step = 1e-6
    # Indices and flags stay where they are.
    fixed = CASES[index].fixed
    free = [str(a.dtype) in FLOATS and i not in fixed for i, a in enumerate(args)]
    ways = [rng.standard_normal(a.shape) * moves for a, moves in zip(args, free, strict=True)]

    def at(distance: float) -> float:
        moved = [_moved(a, distance, w) for a, w in zip(args, ways, strict=True)]
        return float(value(*to_tvm(moved)).numpy())

    slope = (at(step) - at(-step)) / (2 * step)
    floats = [w for a, w in zip(args, ways, strict=True) if str(a.dtype) in FLOATS]
    inner = sum(float((p.numpy() * w).sum()) for p, w in zip(partials, floats, strict=True))
    np.testing.assert_allclose(inner, slope, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("registered")
def test_every_gradient_is_well_formed() -> None:
    """Of all cases: what compilers make of them is the slope of a share in make test."""
    refused = []
    for index in differentiable():
        case = _wide_case(CASES[index])
        try:
            module = grad(tvm.IRModule({"main": function_of(case, case.args, scalar=True)}))
        except ValueError as error:
            refused.append(str(error))
        else:
            relax.analysis.well_formed(module)
    assert all("gradient" in text for text in refused)


def _moved(x: Any, step: float, way: Any) -> Any:
    return x + step * way if str(x.dtype) in FLOATS else x
