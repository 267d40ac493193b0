"""Compiles a batch of cases into one module, runs each function, compares with the reference.

Every function runs twice, on different values or sizes.  Each time all memory that it will get is
NaN: what the virtual machine hands out is filled (`poison`), and a run on NaN operands before it
leaves NaN in the kernels' own workspace.  What a kernel leaves unwritten shows: NaN never passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.target import Target

import relay_wgrad
from tests.support.compiled import virtual_machine

from . import reference
from .case import Case
from .poison import poison
from .program import functions

Unit = tuple[Case, int]  # a case and an order


@dataclass
class Outcome:
    """What became of one case at one order."""

    op: str
    order: int
    line: str
    symbolic: bool = False
    failure: str | None = None
    # dtype -> (largest error, that error over its tolerance)
    worst: dict[str, tuple[float, float]] = field(default_factory=dict)


class Clock(dict[str, float]):
    """Seconds spent on each stage."""

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self[stage] = self.get(stage, 0.0) + time.perf_counter() - start


def default_target() -> str:
    """`host`, with the CPU's own kernels, where there are such."""
    return "host" if find_spec("legalize.cpu") is not None else "generic"


@lru_cache
def host_target() -> Target:
    try:
        from legalize.cpu import host_target as chosen
    except ImportError:
        cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
        return Target({"kind": "llvm", "mcpu": str(cpu)})
    return chosen(allow_winograd=True)  # one kernel more to be tried


def run_batch(units: Sequence[Unit], target: str) -> tuple[list[Outcome], dict[str, float]]:
    """All units in one module; when it does not compile, those that are at fault are taken out."""
    relay_wgrad.register()
    torch.set_num_threads(1)
    clock = Clock()
    outcomes = {
        unit: Outcome(u.op, o, u.line(o), bool(u.symbolic)) for unit in units for u, o in [unit]
    }
    built: dict[Unit, relax.Function] = {}
    by_case: dict[Case, list[int]] = {}
    for case, order in units:
        by_case.setdefault(case, []).append(order)
    with clock.of("gradients"):
        for case, orders in by_case.items():
            _differentiate(case, orders, built, outcomes)
    if built:
        try:
            machine = _compile(built, target, clock)
        except Exception:
            machine = _compile_rest(built, outcomes, target, clock)
        for unit in built:
            _try(unit, outcomes, lambda u=unit: _check(u, built, machine, target, clock))
    return list(outcomes.values()), dict(clock)


def _differentiate(
    case: Case, orders: list[int], built: dict[Unit, relax.Function], outcomes: dict[Unit, Outcome]
) -> None:
    try:
        built.update({(case, k): f for k, f in functions(case, tuple(orders)).items()})
    except Exception:  # a second order that fails must not hide the first
        for order in orders:

            def alone(order: int = order) -> Outcome:
                built[case, order] = functions(case, (order,))[order]
                return outcomes[case, order]

            _try((case, order), outcomes, alone)


def _try(unit: Unit, outcomes: dict[Unit, Outcome], step: Callable[[], Outcome]) -> None:
    """Whatever a step raises is that unit's failure: a fuzzer goes on."""
    try:
        outcomes[unit] = step()
    except Exception as error:
        text = " ".join(str(error).split())
        outcomes[unit].failure = f"{type(error).__name__}: {text[:600]}"


def _outcome(unit: Unit) -> Outcome:
    case, order = unit
    return Outcome(case.op, order, case.line(order), bool(case.symbolic))


def _name(index: int) -> str:
    return f"f{index}"


def _legalize(built: dict[Unit, relax.Function], target: str) -> tvm.IRModule:
    mod = tvm.IRModule(
        {_name(i): f.with_attr("global_symbol", _name(i)) for i, f in enumerate(built.values())}
    )
    # Without a target the rules choose the generic expression: no kernel is made for a machine.
    with host_target() if target == "host" else nullcontext():
        return relax.transform.LegalizeOps()(mod)


def _compile(built: dict[Unit, relax.Function], target: str, clock: Clock) -> Any:
    with clock.of("legalize"):
        mod = _legalize(built, target)
    with clock.of("llvm"):
        return virtual_machine(mod, host_target())


def _compile_rest(
    built: dict[Unit, relax.Function], outcomes: dict[Unit, Outcome], target: str, clock: Clock
) -> Any:
    """What can be legalized, in one module; None if that does not compile either."""
    for unit, function in list(built.items()):

        def alone(unit: Unit = unit, function: relax.Function = function) -> Outcome:
            with clock.of("legalize"):
                _legalize({unit: function}, target)
            return outcomes[unit]

        _try(unit, outcomes, alone)
        if outcomes[unit].failure is not None:
            del built[unit]
    try:
        return _compile(built, target, clock) if built else None
    except Exception:
        return None


def _check(
    unit: Unit, built: dict[Unit, relax.Function], machine: Any, target: str, clock: Clock
) -> Outcome:
    case, order = unit
    name = _name(list(built).index(unit))
    if machine is None:
        machine, name = _compile({unit: built[unit]}, target, clock), _name(0)
    outcome = _outcome(unit)
    for run, problem in enumerate(case.problems):
        arrays = reference.draw(case, problem, order, run)
        with clock.of("run"):
            _call(machine, name, {k: np.full_like(v, np.nan) for k, v in arrays.items()}, order)
            poison(problem)
            got = _call(machine, name, arrays, order)
        with clock.of("reference"):
            wanted, typical = reference.reference(case, problem, order, arrays)
        for result, (dtype, limit) in reference.tolerances(case, problem, order).items():
            if result not in wanted:
                continue
            error = reference.error(got[result], wanted[result], typical[result])
            if not error <= limit:
                where = f"run {run}, {problem.repro()}" if case.symbolic else f"run {run}"
                found = (
                    f"shape {got[result].shape}, expected {wanted[result].shape}"
                    if got[result].shape != wanted[result].shape
                    else f"relative error {error:.3g}, tolerance {limit:.3g}"
                )
                outcome.failure = outcome.failure or f"{result} ({where}): {found}"
            outcome.worst[dtype] = max(
                outcome.worst.get(dtype, (0.0, 0.0)), (error, error / limit), key=lambda x: x[1]
            )
    return outcome


def _call(machine: Any, name: str, arrays: reference.Arrays, order: int) -> reference.Arrays:
    """Runs a function and names its results; their memory is given back."""
    result = machine[name](*(tvm.runtime.tensor(v) for v in arrays.values()))
    if order == 0:
        return {"scalar": result[0].numpy(), "out": result[1].numpy()}
    partials = {key: x.numpy() for key, x in zip(("a", "b", "u"), result[1], strict=True)}
    if order == 2:
        return {"scalar": result[0].numpy(), **partials}
    return {"scalar": result[0][0].numpy(), "out": result[0][1].numpy(), **partials}
