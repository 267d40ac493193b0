"""Matrix products become cuBLAS's calls, with transpositions as strides of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax

import byoc_cudnn
from byoc_cudnn.batched_products import BATCHED_PRODUCTS, BatchedProductsCall, Matrices, check
from byoc_cudnn.batched_products.lower import (
    lower_batched_products,
    products_of,
    tf32_of,
    with_tf32,
)
from byoc_cudnn.report import BY_CUBLAS
from relay_wgrad.frontend import from_torch
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support.batched_products import Attention, Random, apart, packed
from tests.support.compiled import step_results, virtual_machine

pytestmark = pytest.mark.usefixtures("registered")
op = relax.op
TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip
Body = Callable[..., Any]


def module(body: Body, *shapes: Sequence[Any], dtype: str = "float16") -> tvm.IRModule:
    bb = relax.BlockBuilder()
    given = [relax.Var(n, relax.TensorType(s, dtype)) for n, s in zip("abcd", shapes, strict=False)]
    with bb.function("main", given):
        with bb.dataflow():
            out = bb.emit_output(body(bb, *given))
        bb.emit_func_output(out)
    return bb.get()


def calls_of(mod: tvm.IRModule) -> list[BatchedProductsCall]:
    return [one.call for one in products_of(mod["main"]) if not one.reason]


def reason_of(mod: tvm.IRModule) -> str:
    (one,) = products_of(mod["main"])
    return one.reason


def names_of(mod: tvm.IRModule, fn: str = "main") -> list[str]:
    return [op_name(b.value) for b in bindings_of(mod[fn])]


def lowered(mod: tvm.IRModule, monkeypatch: pytest.MonkeyPatch) -> tvm.IRModule:
    """The module with calls of functions that NumPy computes."""
    calls: list[BatchedProductsCall] = []
    made = type(BATCHED_PRODUCTS).generate

    def generate(self: Any, given: Sequence[Any], arch: int) -> str:
        calls.extend(given)
        return made(self, given, arch)

    monkeypatch.setattr(type(BATCHED_PRODUCTS), "generate", generate)
    after, _ = lower_batched_products(mod, 90)
    relax.analysis.well_formed(after)
    for call in calls:
        tvm_ffi.register_global_func(call.symbol, packed(call), override=True)
    return after


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_random_products(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    for seed in range(first, first + 30):
        case = Random(seed)
        after = lowered(case.module(), monkeypatch)
        taken += "relax.call_dps_packed" in names_of(after)
        arrays = case.operands()
        vm = virtual_machine(after.without_attr("external_mods"))
        got = vm["main"](*map(tvm.runtime.tensor, arrays)).numpy()
        assert apart(got, case.wanted(arrays)) < case.limit, seed
    assert taken > 12


def test_transpositions_are_strides() -> None:
    """Of operands and of the result, one after another."""

    def body(bb: Any, a: Any, b: Any) -> Any:
        turned = bb.emit(op.permute_dims(b, [0, 1, 3, 2]))
        y = bb.emit(op.astype(bb.emit(op.matmul(a, turned, out_dtype="float32")), "float16"))
        return op.permute_dims(y, [0, 1, 3, 2])

    mod, entries = lower_batched_products(module(body, (2, 3, 9, 40), (2, 3, 11, 40)), 90)
    assert names_of(mod) == ["relax.call_dps_packed"]
    assert [(e.op, e.reason) for e in entries] == [("matmul", "")]
    (call,) = calls_of(module(body, (2, 3, 9, 40), (2, 3, 11, 40)))
    assert call.problem == "matmul b=6 m=9 n=11 k=40 turned=bc shared=- dtype=f16/f16/f16"
    assert call.places == (Matrices(40, 360), Matrices(40, 440, True), Matrices(9, 99, True))


def test_what_else_is_needed_stays() -> None:
    """A transpose that is a result too is computed; the product reads what it is made of."""

    def body(bb: Any, a: Any, b: Any) -> Any:
        turned = bb.emit(op.permute_dims(b, [0, 2, 1]))
        y = bb.emit(op.matmul(a, turned))
        return relax.Tuple([y, op.exp(turned), op.permute_dims(y, [0, 2, 1])])

    mod, _ = lower_batched_products(module(body, (4, 20, 30), (4, 25, 30)), 90)
    names = names_of(mod)
    assert names.count("relax.permute_dims") == 2
    assert "relax.matmul" not in names
    call = bindings_of(mod["main"])[names.index("relax.call_dps_packed")].value
    assert [str(x.name) for x in call.args[1].fields] == ["a", "b"]


def test_a_product_reads_what_another_writes() -> None:
    """The transpose that the first writes, and not the result that it does not make."""

    def body(bb: Any, a: Any, b: Any) -> Any:
        turned = bb.emit(op.permute_dims(bb.emit(op.matmul(a, b)), [0, 2, 1]))
        return op.matmul(turned, a)

    mod, entries = lower_batched_products(module(body, (4, 20, 30), (4, 30, 20)), 90)
    relax.analysis.well_formed(mod)
    assert names_of(mod) == ["relax.call_dps_packed"] * 2
    assert all(e.symbol for e in entries)


def test_parts_of_a_tensor_are_read_in_it() -> None:
    """q, k and v of one, however the cuts are said; of parts that differ in size too."""

    def body(sections: Any) -> Body:
        def made(bb: Any, x: Any) -> Any:
            cut = bb.emit(op.split(bb.emit(op.permute_dims(x, [2, 0, 3, 1, 4])), sections, 0))
            q, k = (bb.emit(op.squeeze(bb.emit(relax.TupleGetItem(cut, i)), [0])) for i in (1, 2))
            return op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2])))

        return made

    for sections in (3, [1, 2]):
        mod, _ = lower_batched_products(module(body(sections), (2, 20, 3, 4, 8)), 90)
        assert names_of(mod) == ["relax.permute_dims", "relax.call_dps_packed"]
        (call,) = calls_of(module(body(sections), (2, 20, 3, 4, 8)))
        assert [at.first for at in call.places] == [1280, 2560, 0]

    def rest(bb: Any, x: Any) -> Any:
        cut = bb.emit(op.split(x, [20, 30], 1))
        a, b = (bb.emit(relax.TupleGetItem(cut, i)) for i in (0, 2))
        return op.matmul(a, bb.emit(op.permute_dims(b, [0, 2, 1])))

    (call,) = calls_of(module(rest, (3, 55, 8)))
    assert call.problem == "matmul b=3 m=20 n=25 k=8 turned=b shared=- dtype=f16/f16/f16"
    assert call.places[1] == Matrices(8, 440, True, first=240)


def test_one_matrix_for_all() -> None:
    def body(bb: Any, a: Any, b: Any) -> Any:
        return op.matmul(bb.emit(op.broadcast_to(a, (5, 20, 30))), b)

    (call,) = calls_of(module(body, (20, 30), (5, 30, 20)))
    assert (call.places[0], call.places[1].step) == (Matrices(30, 0), 600)
    (call,) = calls_of(module(lambda bb, a, b: op.matmul(a, b), (1, 20, 30), (5, 30, 20)))
    assert call.places[0].step == 0


@pytest.mark.parametrize(
    ("shapes", "dtype", "reason"),
    [
        (((3, 20, 30), (3, 30, 20)), "float32", ""),
        (((20, 30), (30, 20)), "float32", ""),
        (((30,), (3, 30, 20)), "float32", "an operand of one axis"),
        (((3, 20, 30), (3, 30, 1)), "float32", "m=20 n=1 k=30: a vector"),
        (((3, 20, 1), (3, 1, 20)), "float32", "m=20 n=20 k=1: a vector"),
        (((3, 20, 30), (3, 30, 20)), "int32", "dtype 'int32'; there are 'float16'"),
        (((2, 3, 20, 30), (3, 30, 20)), "float32", "not evenly apart"),
        (((3, 4, 5), (3, 5, 6)), "float32", "fewer than 4096 products"),
        (((1, 2, 1 << 31), (1, 1 << 31, 2)), "float32", "rows of more than"),
    ],
)
def test_what_stays_says_why(shapes: Any, dtype: str, reason: str) -> None:
    mod = module(lambda bb, a, b: op.matmul(a, b), *shapes, dtype=dtype)
    assert reason in reason_of(mod)
    assert bool(reason) == bool(reason_of(mod))
    after, entries = lower_batched_products(mod, 90)
    assert ("relax.matmul" in names_of(after)) == bool(reason)
    assert [bool(e.symbol) for e in entries] == [not reason]


def test_sizes_that_are_known_when_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    plain: Body = lambda bb, a, b: op.matmul(a, bb.emit(op.permute_dims(b, [0, 1, 3, 2])))  # noqa: E731
    mod = module(plain, (n, 3, 16, 20), (n, 3, 18, 20), dtype="float32")
    (call,) = calls_of(mod)
    assert call.problem.startswith("matmul b=N m=16 n=18 k=20 turned=b")
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((7, 3, s, 20)).astype("float32") for s in (16, 18))
    vm = virtual_machine(lowered(mod, monkeypatch).without_attr("external_mods"))
    got = vm["main"](*map(tvm.runtime.tensor, (a, b))).numpy()
    assert apart(got, a.astype("float64") @ b.transpose(0, 1, 3, 2)) < 1e-6
    for shapes in (((3, m, 20), (3, 20, 18)), ((2, n, 16, 20), (2, n, 20, 18))):
        mod = module(lambda bb, a, b: op.matmul(a, b), *shapes)
        assert "known when it runs" in reason_of(mod)


def test_mixed_dtypes_stay() -> None:
    good = BatchedProductsCall(
        "f", "float16", "float32", 2, 20, 30, 40,
        (Matrices(40, 800), Matrices(30, 1200), Matrices(30, 600)),
    )  # fmt: skip
    assert check(good)
    for changed, reason in (
        ({"dtype": "float32", "result": "float16"}, "float16 of float32"),
        ({"symbol": "f-"}, "no identifier"),
        ({"places": (Matrices(39, 800), *good.places[1:])}, "its rows overlap"),
        ({"places": (*good.places[:2], Matrices(30, 0))}, "c has one place for all"),
        ({"places": (Matrices(40, 800, first=-1), *good.places[1:])}, "its rows overlap"),
    ):
        assert reason in check(replace(good, **changed)).reason  # type: ignore[arg-type]


# ---- steps ---------------------------------------------------------------------------------------


def step(dtype: str | None) -> tuple[Any, tvm.IRModule]:
    torch.manual_seed(0)
    graph = from_torch(Attention().train(), (torch.zeros(3, 10, 6),))
    made = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    return graph, converted(made, "NHWC")


def test_a_partitioned_step() -> None:
    _, before = step("float16")
    mod, report = byoc_cudnn.partition(before, ("cudnn",), products=True)
    assert set(report.reasons()) == {BY_CUBLAS}
    library = byoc_cudnn.build(mod, TARGET, direct=True)
    found = [e for e in library.direct if e.op == "matmul"]
    whole = [e for e in library.direct if e.op == "attention" and e.symbol]
    assert len(found) + 6 * len(whole) == report.reasons()[BY_CUBLAS] > 8
    assert all(e.symbol for e in found)
    without = byoc_cudnn.build(mod, TARGET, direct=False)
    assert "cublas" not in "".join(without.sources)


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_what_the_partition_was_told(allowed: bool) -> None:
    _, before = step(None)
    mod, _ = byoc_cudnn.partition_for_cudnn(before, allow_tf32=allowed, products=True)
    assert tf32_of(mod) == allowed
    assert not tf32_of(with_tf32(mod, False))
    found = [one.call for one in products_of(mod[ADJOINT], tf32_of(mod)) if not one.reason]
    assert {call.tf32 for call in found} == {allowed}
    assert found[0].problem.endswith("tf32") == allowed
    library = byoc_cudnn.build(mod, TARGET, direct=True)
    assert (' tf32"' in "".join(library.sources)) == allowed


def test_the_calls_compute_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and gradients, beside PyTorch's in float64."""
    graph, before = step(None)
    after = lowered(before, monkeypatch)
    assert names_of(after, ADJOINT).count("relax.call_dps_packed") > 8
    batch = graph.random_batch(0)
    got = step_results(after, [np.asarray(v) for v in graph.arguments(batch)])
    torch.manual_seed(0)
    model = Attention().double()
    logits = model(torch.tensor(batch["x"], dtype=torch.float64))
    loss = nn.functional.cross_entropy(logits, torch.tensor(batch["labels"]))
    loss.backward()
    wanted = {n.replace(".", "_"): p.grad.numpy() for n, p in model.named_parameters()}
    assert abs(float(got[0]) - loss.item()) < 1e-5
    for name, gradient in zip(graph.trainable, got[-len(graph.trainable) :], strict=True):
        assert apart(gradient, wanted[name]) < 2e-5, name
