"""What is broadcast is computed once on CUDA, where it takes many instructions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import relax as R

from relay_wgrad.keys import OP_PATTERN
from relay_wgrad.pipeline.broadcasts import BroadcastOnce
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from tests.support.built import built
from tests.support.compiled import virtual_machine

LARGE, SMALL = (4, 64, 64, 272), (4, 1, 1, 272)
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
Program = Callable[[Callable[..., Any], Any, Any], Any]


def module(program: Program, large: tuple[int, ...] = LARGE) -> tvm.IRModule:
    small = (large[0], 1, 1, large[3])
    given = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("x", large), ("s", small))]
    return built(given, lambda emit: program(emit, *given))


def fused(mod: tvm.IRModule, target: tvm.target.Target = CUDA) -> tvm.IRModule:
    with target:
        return tvm.transform.Sequential(fused_kernels())(mod)


def kernels(mod: tvm.IRModule) -> list[str]:
    """Names of kernels in program order."""
    return [
        str(b.value.args[0].name_hint)
        for block in mod["main"].body.blocks
        for b in block.bindings
        if getattr(b.value, "op", None) is not None and hasattr(b.value.args[0], "name_hint")
    ]


def gate(emit: Any, x: Any, s: Any) -> Any:
    return emit(R.multiply(x, emit(R.sigmoid(s))))


def given_back(emit: Any, x: Any, s: Any) -> Any:
    share = emit(R.divide(s, R.const(4096.0, "float32")))
    return emit(R.add(x, emit(R.broadcast_to(share, LARGE))))


def long_chain(emit: Any, x: Any, s: Any) -> Any:
    root = emit(R.sqrt(emit(R.add(s, R.const(1.0, "float32")))))
    scaled = emit(R.multiply(emit(R.divide(s, root)), R.const(2.0, "float32")))
    return emit(R.multiply(x, scaled))


def cheap(emit: Any, x: Any, s: Any) -> Any:
    return emit(R.add(x, emit(R.multiply(s, R.const(2.0, "float32")))))


def of_its_size(emit: Any, x: Any, s: Any) -> Any:
    return emit(R.multiply(s, emit(R.sigmoid(s))))


def as_large(emit: Any, x: Any, s: Any) -> Any:
    return emit(R.add(emit(R.exp(x)), s))


def twice(emit: Any, x: Any, s: Any) -> Any:
    """What a broadcast gives is broadcast again: nothing there takes long any more."""
    gated = emit(R.multiply(x, emit(R.sigmoid(s))))
    return emit(R.broadcast_to(gated, (8, *LARGE)))


@pytest.mark.parametrize(
    ("program", "count"),
    [(gate, 2), (given_back, 2), (long_chain, 2), (twice, 2), (cheap, 1), (of_its_size, 1),
     (as_large, 1)],
)  # fmt: skip
def test_how_many_kernels(program: Program, count: int) -> None:
    """On CUDA those that take long stand before the broadcast, as one; on a CPU none does."""
    made = fused(module(program))
    assert len(kernels(made)) == count, kernels(made)
    assert len(kernels(fused(module(program), tvm.target.Target("llvm")))) == 1


def test_few_elements_are_not_worth_a_launch() -> None:
    assert len(kernels(fused(module(gate, (4, 8, 8, 16))))) == 1


def test_a_sum_of_what_is_broadcast() -> None:
    def program(emit: Any, x: Any, s: Any) -> Any:
        return emit(R.sum(emit(R.multiply(x, emit(R.sigmoid(s)))), [1, 2]))

    first, second = kernels(fused(module(program)))
    assert "sigmoid" in first
    assert "sigmoid" not in second
    assert "sum" in second


def test_marks_are_a_sums() -> None:
    """What fusion then does is upstream's: nothing that follows becomes part of such a kernel."""
    with CUDA:
        before = tvm.transform.Sequential([
            relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
        ])(module(gate))  # fmt: skip
        after = BroadcastOnce()(before)
        assert BroadcastOnce()(after).script() == after.script()
    changed = {
        var.name_hint: int(func.attrs[OP_PATTERN])
        for var, func in after.functions_items()
        if OP_PATTERN in func.attrs
        and before[var.name_hint].attrs[OP_PATTERN] != func.attrs[OP_PATTERN]
    }
    assert list(changed.values()) == [3]
    assert "sigmoid" in next(iter(changed))


@pytest.mark.parametrize("program", [gate, given_back, long_chain])
def test_values_stay(program: Program) -> None:
    """The kernels that CUDA would get, run on a CPU."""
    made = fused(module(program))
    rng = np.random.default_rng(0)
    x, s = (rng.uniform(0.5, 2, size).astype("float32") for size in (LARGE, SMALL))
    got = virtual_machine(made)["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(s)).numpy()
    wide = s.astype("float64")
    want = {
        gate: lambda: x / (1 + np.exp(-wide)),
        given_back: lambda: x + wide / 4096,
        long_chain: lambda: x * (2 * wide / np.sqrt(wide + 1)),
    }[program]()
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)
