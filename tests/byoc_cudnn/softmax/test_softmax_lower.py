"""Softmax and its gradient become calls, with what is around them; products read filled rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax

from byoc_cudnn.batched_products import BATCHED_PRODUCTS
from byoc_cudnn.batched_products.lower import lower_batched_products
from byoc_cudnn.softmax import SOFTMAX
from byoc_cudnn.softmax.lower import lower_softmax
from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.frontend import from_torch
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import grad
from tests.support import batched_products, softmax
from tests.support.batched_products import Attention, apart
from tests.support.compiled import step_results, virtual_machine
from tests.support.softmax import LIMITS

pytestmark = pytest.mark.usefixtures("registered")
op = relax.op
DPS = "relax.call_dps_packed"


def names_of(mod: tvm.IRModule, fn: str = "main") -> list[str]:
    return [op_name(b.value) for b in bindings_of(mod[fn])]


def symbols_of(mod: tvm.IRModule, fn: str = "main") -> list[str]:
    return [
        str(b.value.args[0].global_symbol).rstrip("0123456789")
        for b in bindings_of(mod[fn])
        if op_name(b.value) == DPS
    ]


def lowered(
    mod: tvm.IRModule, monkeypatch: pytest.MonkeyPatch, products: bool = True
) -> tuple[tvm.IRModule, list[Any]]:
    """The module with calls of functions that NumPy computes, and those of softmax."""
    calls: list[Any] = []
    made = type(SOFTMAX).generate

    def generate(self: Any, given: Sequence[Any], arch: int) -> str:
        calls.extend(given)
        return made(self, given, arch)

    monkeypatch.setattr(type(SOFTMAX), "generate", generate)
    mod, _ = lower_softmax(mod, 90, fill=products)
    relax.analysis.well_formed(mod)
    if products:
        mod, _ = lower_batched_products(mod, 90)
        relax.analysis.well_formed(mod)
    of_softmax = [call for call in calls if call.symbol.startswith(SOFTMAX.codegen)]
    for call in calls:
        home = softmax if call in of_softmax else batched_products
        tvm_ffi.register_global_func(call.symbol, home.packed(call), override=True)
    return mod, of_softmax


class Random:
    """A softmax of products, masked and scaled in some way, and by hand its gradient, or none."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = np.random.default_rng(seed)
        self.dtype = str(rng.choice(["float16", "bfloat16", "float32"]))
        self.n, self.h = (int(v) for v in rng.integers(1, 4, 2))
        self.m, self.k = (int(v) for v in rng.integers(5, 30, 2))
        self.scale = float(rng.choice([1.0, 0.25, -0.3]))
        self.divides, self.merged = (bool(v) for v in rng.integers(2, size=2))
        self.rounds, self.kept, self.wide = (bool(v) for v in rng.integers(2, size=3))
        shapes = [(self.h, self.m, self.m), (self.n, 1, 1, self.m), (self.m,), (self.m, 1),
                  (self.n, self.h, self.m, self.m)]  # fmt: skip
        self.masks = [shapes[i] for i in rng.permutation(5)[: rng.integers(0, 4)]]
        self.wider = bool(rng.integers(2))
        self.form = str(rng.choice(["none", "factored", "expanded", "negated"]))

    def module(self) -> tvm.IRModule:
        bb = relax.BlockBuilder()
        q, k = (relax.Var(x, relax.TensorType((self.n, self.h, self.m, self.k), self.dtype))
                for x in "qk")  # fmt: skip
        masks = [relax.Var(f"mask{i}", relax.TensorType(s, "float32"))
                 for i, s in enumerate(self.masks)]  # fmt: skip
        with bb.function("main", [q, k, *masks]):
            with bb.dataflow():
                out = [bb.emit_output(v) for v in self._made(bb.emit, q, k, masks)]
            bb.emit_func_output(relax.Tuple(out))
        return bb.get()

    def _made(self, emit: Any, q: Any, k: Any, masks: list[Any]) -> list[Any]:
        def wide(x: Any) -> Any:
            return x if str(x.ty.dtype) == "float32" else emit(op.astype(x, "float32"))

        def narrow(x: Any) -> Any:
            return x if str(x.ty.dtype) == self.dtype else emit(op.astype(x, self.dtype))

        def scaled(x: Any) -> Any:
            if self.divides:
                return emit(op.divide(x, relax.const(1 / self.scale, "float32")))
            return emit(op.multiply(relax.const(self.scale, "float32"), x))

        def turned(x: Any) -> Any:
            return emit(op.permute_dims(x, [0, 1, 3, 2]))

        whole = [self.n, self.h, self.m, self.m]
        rows = [self.n * self.h, self.m, self.m] if self.merged else whole
        x = scaled(wide(emit(op.matmul(q, turned(k)))))
        x = wide(narrow(x)) if self.rounds else x
        for mask in masks:
            x = emit(op.add(x, mask))
        weights = emit(op.nn.softmax(emit(op.reshape(x, rows)), -1))
        used = emit(op.reshape(narrow(weights), whole))
        out = [emit(op.matmul(used, k))]
        out += [weights] if self.kept else []
        if self.form == "none":
            return out
        g = wide(emit(op.reshape(emit(op.matmul(q, turned(k))), rows)))
        product = emit(op.multiply(weights, g))
        sums = emit(op.sum(product, [-1], keepdims=True))
        if self.form == "factored":
            d = emit(op.multiply(emit(op.subtract(g, sums)), weights))
        elif self.form == "expanded":
            d = emit(op.subtract(product, emit(op.multiply(sums, weights))))
        else:
            less = emit(op.multiply(weights, emit(op.negative(sums))))
            d = emit(op.add(less, product))
        out += [emit(op.sum(d, [0]))] if self.wide else []
        d = emit(op.reshape(d, whole))
        out += [emit(op.sum(d, [0, 1]))] if self.wider else []
        made = narrow(scaled(wide(narrow(d))) if self.rounds else scaled(d))
        return [*out, emit(op.matmul(made, k)), emit(op.matmul(turned(made), q))]

    def operands(self) -> list[np.ndarray]:
        rng, kind = np.random.default_rng(0), numpy_dtype(self.dtype)
        shape = (self.n, self.h, self.m, self.k)
        return [
            *((0.5 * rng.standard_normal(shape)).astype(kind) for _ in range(2)),
            *(rng.standard_normal(s).astype("float32") for s in self.masks),
        ]

    def wanted(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """In float64."""
        q, k, *masks = (a.astype("float64") for a in arrays)
        logits = q @ np.swapaxes(k, 2, 3)
        g = logits
        logits = logits * self.scale + sum(masks, np.zeros(1))
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        rows = [-1, self.m, self.m] if self.merged else weights.shape
        out = [weights @ k, *([weights.reshape(rows)] if self.kept else [])]
        if self.form == "none":
            return out
        d = weights * (g - (g * weights).sum(-1, keepdims=True))
        out += [d.reshape(rows).sum(0)] if self.wide else []
        out += [d.sum((0, 1))] if self.wider else []
        d = d * self.scale
        return [*out, d @ k, np.swapaxes(d, 2, 3) @ q]


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_random_graphs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loose where halves are rounded in between; in float32 nothing is."""
    calls = 0
    for seed in range(first, first + 15):
        case = Random(seed)
        after, made = lowered(case.module(), monkeypatch)
        calls += len(made)
        arrays = case.operands()
        vm = virtual_machine(after.without_attr("external_mods"))
        got = [t.numpy() for t in vm["main"](*map(tvm.runtime.tensor, arrays))]
        for i, (a, b) in enumerate(zip(got, case.wanted(arrays), strict=True)):
            assert apart(a, b) < 12 * LIMITS[case.dtype], (seed, i)
    assert calls > 15


def attention(dtype: str | None) -> tuple[Any, tvm.IRModule]:
    torch.manual_seed(0)
    graph = from_torch(Attention().train(), (torch.zeros(4, 10, 6),))
    made = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    return graph, converted(made, "NHWC")


@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("products", [False, True])
def test_a_step(dtype: str | None, products: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two softmax, of which one has a bias that is trained; beside PyTorch's in float64."""
    graph, before = attention(dtype)
    after, calls = lowered(before, monkeypatch, products)
    assert "relax.nn.softmax" not in names_of(after, ADJOINT)
    assert symbols_of(after, ADJOINT).count("relay_wgrad_softmax_") == 4
    assert sorted((c.direction, len(c.added), c.wide) for c in calls) == [
        ("backward", 0, False), ("backward", 0, dtype is not None), ("forward", 0, False),
        ("forward", 1, False),
    ]  # fmt: skip
    assert {c.source for c in calls} | {c.dtype for c in calls} == {dtype or "float32"}
    text = after[ADJOINT].script()
    pitch = 16 if dtype else 12
    assert (f"(4, 3, 10, {pitch})" in text) == products
    assert "_columns" not in text  # products read rows in place
    batch = graph.random_batch(0)
    got = step_results(after, [np.asarray(v) for v in graph.arguments(batch)])
    torch.manual_seed(0)
    model = Attention().double()
    logits = model(torch.tensor(batch["x"], dtype=torch.float64))
    nn.functional.cross_entropy(logits, torch.tensor(batch["labels"])).backward()
    wanted = {n.replace(".", "_"): p.grad.numpy() for n, p in model.named_parameters()}
    for name, made in zip(graph.trainable, got[-len(graph.trainable) :], strict=True):
        assert apart(made, wanted[name]) < (2e-2 if dtype else 2e-5), name


def module(body: Any, *shapes: Any, dtype: str = "float32") -> tvm.IRModule:
    bb = relax.BlockBuilder()
    given = [relax.Var(n, relax.TensorType(s, dtype)) for n, s in zip("abc", shapes, strict=False)]
    with bb.function("main", given):
        with bb.dataflow():
            out = bb.emit_output(body(bb.emit, *given))
        bb.emit_func_output(out)
    return bb.get()


def test_what_stays() -> None:
    n = tvm.tirx.Var("n", "int64")
    for mod, reason in (
        (module(lambda emit, a: op.nn.softmax(a, 1), (2, 3, 4)), "along axis 1 of 3"),
        (module(lambda emit, a: op.nn.softmax(a, -1), (2, 3), dtype="float64"), "dtype float64"),
        (module(lambda emit, a: op.nn.softmax(a, -1), (2, n)), "columns that are known when"),
    ):
        after, (entry,) = lower_softmax(mod, 90, fill=True)
        assert reason in entry.reason
        assert not entry.symbol
        assert names_of(after) == names_of(mod)
    logs = module(lambda emit, a: op.nn.log_softmax(a, -1), (2, 3))
    assert lower_softmax(logs, 90)[1] == ()


def test_an_open_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are not filled up; a mask of as many images is added before, one for all within."""
    n = tvm.tirx.Var("n", "int64")
    for shape, added in (((3, 9, 9), 1), ((n, 3, 9, 9), 0)):
        mod = module(
            lambda emit, a, b, c: op.nn.softmax(
                emit(op.add(emit(op.matmul(a, emit(op.permute_dims(b, [0, 1, 3, 2])))), c)), -1
            ),
            (n, 3, 9, 20), (n, 3, 9, 20), shape,
        )  # fmt: skip
        after, (call,) = lowered(mod, monkeypatch)
        assert len(call.added) == added
        rng = np.random.default_rng(0)
        sizes = [(2, 3, 9, 20)] * 2 + [tuple(2 if s is n else s for s in shape)]
        a, b, c = (rng.standard_normal(s).astype("float32") for s in sizes)
        vm = virtual_machine(after.without_attr("external_mods"))
        got = vm["main"](*map(tvm.runtime.tensor, (a, b, c))).numpy()
        logits = torch.tensor(a @ b.swapaxes(2, 3) + c, dtype=torch.float64)
        assert apart(got, logits.softmax(-1).numpy()) < 1e-6


def test_second_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gradient's own gradient reads float32 weights; each is right."""

    def body(emit: Any, a: Any, b: Any) -> Any:
        weights = emit(op.nn.softmax(a, -1))
        return op.sum(emit(op.multiply(emit(op.multiply(weights, weights)), b)))

    second = grad(module(body, (6, 13), (6, 13)), wrt=["a"], order=2)
    after, _ = lowered(second, monkeypatch)
    fn = "main_adjoint2"
    assert SOFTMAX.codegen + "_" in symbols_of(after, fn)
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((6, 13)).astype("float32") for _ in range(2)]
    v = rng.standard_normal((6, 13)).astype("float32")
    vm = virtual_machine(after.without_attr("external_mods"))
    got = vm[fn](*map(tvm.runtime.tensor, (*arrays, v)))
    x, w = (torch.tensor(a.astype("float64"), requires_grad=True) for a in arrays)
    loss = (x.softmax(-1) ** 2 * w).sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    (wanted,) = torch.autograd.grad((slope * torch.tensor(v)).sum(), x)
    assert apart(np.asarray(got[1][0].numpy()), wanted.numpy()) < 1e-5


def test_products_that_stay_read_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that cuBLAS does not take: nothing is filled up for them."""
    case = Random(0)
    case.m, case.k, case.n, case.h, case.masks, case.form = 5, 5, 1, 1, [], "none"
    after, _ = lower_softmax(case.module(), 90, fill=True)
    assert "_filled" not in after["main"].script()
    assert BATCHED_PRODUCTS.codegen not in after["main"].script()
