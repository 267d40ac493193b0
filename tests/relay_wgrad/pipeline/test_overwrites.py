"""Results that lie where operands do: which kernels may, and that no bit changes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from relay_wgrad import keys
from relay_wgrad.pipeline import arena, overwrites
from relay_wgrad.pipeline.arena import Arena, lifetimes
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.kernel_order import Step, most_alive
from relay_wgrad.pipeline.overwrites import matched, of_kernel, overwrites_of, with_symbols
from tests.support.compiled import virtual_machine
from tests.support.memory_plans import Machine, network, planned, run, same, storages

N = (4, 8)


def kernel(compute: Any, *shapes: tuple[int, ...], dtype: str = "float32") -> tirx.PrimFunc:
    """Of a function of placeholders to its results."""
    given = [te.placeholder(shape, dtype, f"in{i}") for i, shape in enumerate(shapes)]
    made = compute(*given)
    return te.create_prim_func([*given, *(made if isinstance(made, tuple) else (made,))])


def pointwise(x: Any, y: Any) -> Any:
    middle = te.compute(N, lambda i, j: x[i, j] * x[i, j], name="middle")
    return te.compute(N, lambda i, j: middle[i, j] + x[i, j] * y[i, j], name="out")


def test_what_is_element_by_element_may() -> None:
    assert of_kernel(kernel(pointwise, N, N)) == [(2, 0), (2, 1)]


def neighbours(x: Any) -> Any:
    """The second block reads two elements of the first, which may be written into it."""
    middle = te.compute(N, lambda i, j: x[i, j] * 2.0, name="middle")
    return te.compute(N, lambda i, j: middle[i, j] + middle[i, (j + 1) % 8], name="out")


def across_rows(x: Any) -> Any:
    k = te.reduce_axis((0, 4), "k")
    total = te.compute((8,), lambda j: te.sum(x[k, j], k), name="total")
    return te.compute(N, lambda i, j: x[i, j] - total[j], name="out")


def two_results(x: Any) -> Any:
    """The second may be computed after the first one is written."""
    first = te.compute(N, lambda i, j: x[i, j] * 2.0, name="first")
    return first, te.compute(N, lambda i, j: x[i, j] * 3.0, name="second")


@pytest.mark.parametrize(
    ("compute", "shapes"),
    [
        (neighbours, [N]),
        (across_rows, [N]),
        (two_results, [N]),
        (lambda x: te.compute(N, lambda i, j: x[i, 7 - j], name="out"), [N]),
        (lambda x: te.compute((8, 4), lambda i, j: x[j, i], name="out"), [N]),
        (lambda x: te.compute((4, 4), lambda i, j: x[j, i], name="out"), [(4, 4)]),
        (lambda x: te.compute(N, lambda i, j: x[j] + 1.0, name="out"), [(8,)]),
        (lambda x: te.compute(N, lambda i, j: x[i, j].astype("int32"), name="out"), [N]),
    ],
)
def test_what_is_not_may_not(compute: Any, shapes: list[tuple[int, ...]]) -> None:
    assert of_kernel(kernel(compute, *shapes)) == []


def test_a_finished_kernel_is_not_looked_at() -> None:
    made = kernel(pointwise, N, N)
    assert of_kernel(made.with_attr(keys.SCHEDULED, True)) == []


def test_a_device_compiler_is_promised_that_nothing_overlaps() -> None:
    mod = relax.transform.LegalizeOps()(function(chain))
    marked = []
    for target in ("llvm", {"kind": "cuda", "arch": "sm_90"}):
        with tvm.target.Target(target):
            found = overwrites.Overwrites()(mod).functions_items()
        marked.append(any(f.attrs and keys.OVERWRITES in f.attrs for _, f in found))
    assert marked == [True, False]


def test_symbols_are_the_modules() -> None:
    mod = with_symbols(with_symbols(tvm.IRModule({}), {"a": [(2, 0)], "b": []}), {"c": [(3, 1)]})
    found = [overwrites_of(mod, relax.ExternFunc(name)) for name in "abc"]
    assert found == [[(2, 0)], [], [(3, 1)]]


def test_each_result_and_operand_is_taken_once() -> None:
    pairs = [(4, 0), (4, 1), (5, 0), (5, 1)]
    assert matched(pairs, lambda result, operand: True) == {4: 0, 5: 1}
    assert matched(pairs, lambda result, operand: operand != 0) == {4: 1}


def function(body: Any) -> tvm.IRModule:
    """Of (64, 64) to what `body` makes of it in a builder."""
    x = relax.Var("x", relax.TensorType((64, 64), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = [bb.emit_output(relax.op.exp(y)) for y in body(bb.emit, x)]
        bb.emit_func_output(relax.Tuple(out))
    return bb.get()


def chain(emit: Any, y: Any) -> list[Any]:
    for _ in range(4):
        y = emit(relax.op.tanh(y))
    return [y]


def over(mod: tvm.IRModule) -> list[bool]:
    return [t.over is not None for t in lifetimes(mod["main"], mod)]


def test_a_chain_is_one_tensor() -> None:
    before = planned(function(chain))
    after = Arena()(before)
    assert over(before) == [False, True, True, True]
    assert storages(after["main"]) == [4 * 64 * 64]
    assert len(storages(before["main"])) == 2
    names = {str(var.name_hint): func for var, func in after.functions_items()}
    assert not names["tir_tanh"].attrs[keys.NO_ALIAS]
    assert names["tir_exp"].attrs[keys.NO_ALIAS]  # its results are the function's
    Machine(after["main"], after)


def read_later(emit: Any, x: Any) -> list[Any]:
    first = emit(relax.op.tanh(x))
    return [emit(relax.op.tanh(first)), first]


def given_twice(emit: Any, x: Any) -> list[Any]:
    y = emit(relax.op.tanh(x))
    return [emit(relax.op.nn.softmax(emit(relax.op.add(y, y))))]


@pytest.mark.parametrize("body", [read_later, given_twice])
def test_what_is_still_read_keeps_its_place(body: Any) -> None:
    assert not any(over(planned(function(body))))


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(8))
def test_bits_of_random_functions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = network(seed, 24)
    plan = planned(module)
    Machine(Arena()(plan)["main"], plan)
    ours = run(module)
    monkeypatch.setattr(arena, "overwrites_of", lambda mod, callee: [])
    assert same(ours, run(module))


def _of_three(pairs: list[Any], func: Any) -> list[Any]:
    return pairs if len(func.params) == 3 else []


def product(emit: Any, x: Any) -> list[Any]:
    y = emit(relax.op.matmul(emit(relax.op.nn.softmax(x)), x))
    return [emit(relax.op.nn.softmax(y))]


def test_a_fact_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of matrices in the place of an operand, each of whose rows it reads again."""
    given = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((64, 64), "float32"))
    found = []
    for wrong in ([], [(2, 0)]):
        fact = partial(_of_three, wrong)
        monkeypatch.setattr(overwrites, "of_kernel", fact)
        built = virtual_machine(function(product), "llvm", cpu_pipeline())
        found.append(built["main"](given)[0].numpy())
    assert not np.array_equal(*found)


def test_the_most_that_is_alive_counts_a_place_once() -> None:
    steps = [
        Step(frozenset(), frozenset(), (0,)),
        Step(frozenset([0]), frozenset([0]), (1,), ((1, 0),)),
        Step(frozenset([1]), frozenset([1]), ()),
    ]
    assert most_alive(steps, [8, 8], range(3)) == 8
    steps[2] = Step(frozenset([1]), frozenset([0, 1]), ())
    assert most_alive(steps, [8, 8], range(3)) == 16
