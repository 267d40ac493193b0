"""Attention and its gradient become calls that read and write tensors in place; what stays, why."""

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

from byoc_cudnn.attention import ATTENTION
from byoc_cudnn.attention.lower import lower_attention
from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.frontend import from_torch
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support import attention
from tests.support.batched_products import Attention as Biased
from tests.support.batched_products import apart
from tests.support.compiled import step_results, virtual_machine

pytestmark = pytest.mark.usefixtures("registered")
op = relax.op
DPS = "relax.call_dps_packed"
FORMS = ("joined", "chunks", "apart", "crossed", "module")


class Heads(nn.Module):
    """Attention of tokens, q, k and v had in several ways; twice one after another."""

    def __init__(self, form: str, tokens: int = 9, heads: int = 2, width: int = 8) -> None:
        super().__init__()
        self.form, self.heads, self.wide = form, heads, heads * width
        self.embed = nn.Linear(6, self.wide)
        self.joined = nn.Linear(self.wide, 3 * self.wide)
        self.apart = nn.ModuleList(nn.Linear(self.wide, self.wide, i != 1) for i in range(3))
        self.module = nn.MultiheadAttention(self.wide, heads, batch_first=True)
        self.proj = nn.Linear(self.wide, self.wide)
        self.head = nn.Linear(self.wide, 5)

    def parts(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, t, c = x.shape
        if self.form == "joined":
            made = self.joined(x).reshape(n, t, 3, self.heads, c // self.heads)
            return made.permute(2, 0, 3, 1, 4).unbind(0)
        if self.form == "chunks":
            parts: Any = self.joined(x).chunk(3, -1)
        else:
            few = x[:, :5] if self.form == "crossed" else x
            parts = [f(y) for f, y in zip(self.apart, (few, x, x), strict=True)]
        return tuple(p.reshape(n, -1, self.heads, c // self.heads).transpose(1, 2) for p in parts)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        if self.form == "module":
            return self.module(x, x, x, need_weights=False)[0]
        y = nn.functional.scaled_dot_product_attention(*self.parts(x))
        return self.proj(y.transpose(1, 2).reshape(len(x), -1, self.wide))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        x = x + self.attention(x).mean(1, keepdim=True)
        return self.head((self.attention(x) * 0.5).mean(1))


def step_of(model: nn.Module, dtype: str | None, tokens: int = 9) -> tuple[Any, tvm.IRModule]:
    torch.manual_seed(0)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    graph = from_torch(model.train(), (torch.zeros(4, tokens, 6),))
    made = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    return graph, converted(made, "NHWC")


def lowered(
    mod: tvm.IRModule, monkeypatch: pytest.MonkeyPatch, arch: int = 90
) -> tuple[tvm.IRModule, list[Any], Sequence[Any]]:
    """The module with calls of functions that NumPy computes, the calls, and what became of each
    softmax."""
    calls: list[Any] = []
    made = type(ATTENTION).generate

    def generate(self: Any, given: Sequence[Any], arch: int) -> str:
        calls.extend(given)
        return made(self, given, arch)

    monkeypatch.setattr(type(ATTENTION), "generate", generate)
    mod, entries = lower_attention(mod, arch)
    relax.analysis.well_formed(mod)
    for call in calls:
        tvm_ffi.register_global_func(call.symbol, attention.packed(call), override=True)
    return mod, calls, entries


def products_of_tokens(mod: tvm.IRModule, fn: str = ADJOINT) -> list[str]:
    """Products that have matrices for each image and head, and softmax."""
    found = []
    for b in bindings_of(mod[fn]):
        name = op_name(b.value)
        if name == "relax.nn.softmax" or (
            name == "relax.matmul" and all(len(sizes_of(x.ty) or []) > 2 for x in b.value.args)
        ):
            found.append(str(b.var.name))
    return found


def wanted(model: nn.Module, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients in float64."""
    model = model.double()
    logits = model(torch.tensor(batch["x"], dtype=torch.float64))
    nn.functional.cross_entropy(logits, torch.tensor(batch["labels"])).backward()
    return {
        n.replace(".", "_"): p.grad.numpy() for n, p in model.named_parameters()
        if p.grad is not None
    }  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_step(form: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Heads(form)
    graph, before = step_of(model, dtype)
    after, calls, entries = lowered(before, monkeypatch)
    assert [(e.op, e.reason) for e in entries] == [("attention", "")] * 2
    assert {c.direction for c in calls} == {"forward", "backward"}
    scores = {9, 5} if form == "crossed" else {9}
    shapes = [sizes_of(b.var.ty) or [] for b in bindings_of(after[ADJOINT])
              if isinstance(b.var.ty, relax.TensorType)]  # fmt: skip
    assert not [s for s in shapes if len(s) > 2 and s[-1] == 9 and s[-2] in scores]
    if form == "joined":  # dq, dk and dv are one tensor, as the projection has it
        assert {c.results for c in calls if c.direction == "backward"} == {(0, 0, 0)}
        assert {p.row for c in calls for p in c.places} == {16, 48}
    batch = graph.random_batch(0)
    got = step_results(after, [np.asarray(v) for v in graph.arguments(batch)])
    of = wanted(model, batch)
    limit = 3e-2 if dtype == "float16" else 2e-1
    for name, made in zip(graph.trainable, got[-len(graph.trainable) :], strict=True):
        assert apart(made, of[name]) < limit, name


def test_inference(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = module(0)
    after, (call,), _ = lowered(mod, monkeypatch)
    assert call.direction == "forward"
    assert not products_of_tokens(after, "main")
    compare(after, call.rows, 2e-3)


class Random:
    """Attention by operators, with all that may be different: which axes come first, by which of
    them a tensor is permuted, a factor, casts, other shapes of the scores, another use."""

    def __init__(self, seed: int, crossed: bool = False) -> None:
        self.crossed = crossed  # q's gradient is by v
        rng = np.random.default_rng(seed)
        self.n, self.h = (int(v) for v in rng.integers(1, 4, 2))
        self.m, self.columns = (int(v) for v in rng.integers(2, 40, 2))
        self.d = 8 * int(rng.integers(1, 4))
        self.scale = float(rng.choice([1.0, 0.25]))
        self.dtype = str(rng.choice(["float16", "bfloat16"]))
        self.merged, self.rounds, self.turned = (bool(v) for v in rng.integers(2, size=3))
        self.orders = [tuple(int(v) for v in rng.permutation(3)) for _ in range(4)]
        self.used = str(rng.choice(["", "", "", "weights", "scores"]))
        shapes = [(self.h, self.m, self.columns), (self.n, 1, 1, self.columns), (self.columns,)]
        self.masks = [shapes[i] for i in rng.permutation(3)[: rng.integers(0, 4)]]
        self.wide = bool(rng.integers(2))

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of q, k, v and dout, (n, h, rows) permuted and the width last."""
        rows = (self.m, self.columns, self.columns, self.m)
        return [
            (*((self.n, self.h, r)[i] for i in order), self.d)
            for r, order in zip(rows, self.orders, strict=True)
        ]

    def module(self) -> tvm.IRModule:
        bb = relax.BlockBuilder()
        given = [
            relax.Var(name, relax.TensorType(s, self.dtype))
            for name, s in zip(("q", "k", "v", "dout"), self.shapes, strict=True)
        ]
        masks = [
            relax.Var(f"mask{i}", relax.TensorType(s, "float32")) for i, s in enumerate(self.masks)
        ]
        given += masks
        with bb.function("main", given):
            with bb.dataflow():
                out = [bb.emit_output(v) for v in self._made(bb.emit, *given)]
            bb.emit_func_output(relax.Tuple(out))
        return bb.get()

    def _made(self, emit: Any, *given: Any) -> list[Any]:
        given, masks = given[:4], given[4:]

        def heads(x: Any, order: tuple[int, ...]) -> Any:
            return emit(op.permute_dims(x, [*(order.index(i) for i in range(3)), 3]))

        def turned(x: Any) -> Any:
            return emit(op.permute_dims(x, [0, 1, 3, 2]))

        def cast(x: Any, dtype: str) -> Any:
            return emit(op.astype(x, dtype))

        q, k, v, dout = (heads(x, o) for x, o in zip(given, self.orders, strict=True))
        whole = [self.n, self.h, self.m, self.columns]
        rows = [self.n * self.h, self.m, self.columns] if self.merged else whole
        factor = relax.const(self.scale, "float32")
        scores = emit(op.matmul(q, turned(k)))
        x = emit(op.multiply(cast(scores, "float32"), factor))
        x = cast(cast(x, self.dtype), "float32") if self.rounds else x
        for mask in masks:
            x = emit(op.add(x, mask))
        x = emit(op.reshape(x, rows))
        weights = emit(op.nn.softmax(x, -1))
        used = emit(op.reshape(cast(weights, self.dtype), whole))
        out = emit(op.matmul(used, v))
        dv = emit(op.matmul(turned(used), dout))
        g = cast(emit(op.reshape(emit(op.matmul(dout, turned(v))), rows)), "float32")
        inner = emit(op.sum(emit(op.multiply(weights, g)), [-1], keepdims=True))
        d = emit(op.multiply(emit(op.subtract(g, inner)), weights))
        wide = [emit(op.sum(d, [0]))] if self.wide else []
        d = emit(op.reshape(d, whole))
        d = cast(cast(d, self.dtype), "float32") if self.rounds else d
        d = cast(emit(op.multiply(d, factor)), self.dtype)
        made = [
            out,
            emit(op.matmul(d, v if self.crossed else k)),
            emit(op.matmul(turned(d), q)),
            dv,
        ]
        if self.turned:
            made = [emit(op.permute_dims(x, [0, 2, 1, 3])) for x in made]
        more = {"weights": used, "scores": scores}
        return [*made, *wide, *([more[self.used]] if self.used else [])]

    def operands(self) -> list[np.ndarray]:
        rng, kind = np.random.default_rng(0), numpy_dtype(self.dtype)
        masks = [rng.standard_normal(s).astype("float32") for s in self.masks]
        return [*(rng.standard_normal(s).astype(kind) for s in self.shapes), *masks]

    def wanted(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """In float64."""
        q, k, v, dout = (
            a.astype("float64").transpose(*(o.index(i) for i in range(3)), 3)
            for a, o in zip(arrays[:4], self.orders, strict=True)
        )
        scores = q @ np.swapaxes(k, 2, 3)
        x = scores * self.scale + sum(arrays[4:], np.zeros(1))
        p = np.exp(x - x.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        g = dout @ np.swapaxes(v, 2, 3)
        wide = p * (g - (p * g).sum(-1, keepdims=True))
        d = wide * self.scale
        made = [p @ v, d @ k, np.swapaxes(d, 2, 3) @ q, np.swapaxes(p, 2, 3) @ dout]
        made = [x.transpose(0, 2, 1, 3) for x in made] if self.turned else made
        rows = (-1, self.m, self.columns) if self.merged else wide.shape
        made += [wide.reshape(rows).sum(0)] if self.wide else []
        return [*made, *({"weights": [p], "scores": [scores]}.get(self.used, []))]


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_graphs(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    for seed in range(first, first + 10):
        case = Random(seed)
        after, made, (entry,) = lowered(case.module(), monkeypatch)
        stays = case.used == "weights" or len(case.masks) > 2
        assert bool(entry.reason) == stays == (not made), (seed, entry.reason)
        calls += len(made)
        arrays = case.operands()
        vm = virtual_machine(after.without_attr("external_mods"))
        got = [t.numpy() for t in vm["main"](*map(tvm.runtime.tensor, arrays))]
        limit = 8 * attention.LIMITS[case.dtype]
        for i, (a, b) in enumerate(zip(got, case.wanted(arrays), strict=True)):
            assert apart(a, b) < limit, (seed, i)
    assert calls >= 6


def test_a_gradient_of_other_operands() -> None:
    seed = next(s for s in range(99) if not (Random(s).used or Random(s).masks))
    _, (entry,) = lower_attention(Random(seed, crossed=True).module(), 90)
    assert entry.reason == "a gradient of other operands"


# ---- what stays ----------------------------------------------------------------------------------


def module(change: Any, dtype: str = "float16", width: int = 16, n: Any = 2) -> tvm.IRModule:
    """softmax(q kᵀ / 4) v of 7 rows and columns, with something else by the number of `change`."""
    bb = relax.BlockBuilder()
    q, k, v = (relax.Var(x, relax.TensorType((n, 3, 7, width), dtype)) for x in "qkv")
    with bb.function("main", [q, k, v]):
        with bb.dataflow():
            x = bb.emit(op.matmul(q, bb.emit(op.permute_dims(k, [0, 1, 3, 2]))))
            x = bb.emit(op.multiply(x, relax.const(-0.25 if change == "minus" else 0.25, dtype)))
            for _ in range(3 if change == "masks" else 0):
                x = bb.emit(op.add(x, bb.emit(op.ones((7, 7), dtype))))
            weights = bb.emit(op.nn.softmax(x, -1))
            out = [bb.emit(op.matmul(weights, v))]
            if change == "weights":
                out = [bb.emit_output(weights)]
            if change == "twice":
                out.append(bb.emit(op.matmul(weights, q)))
            if change == "second":
                out = [bb.emit(op.matmul(bb.emit(op.permute_dims(v, [0, 1, 3, 2])), weights))]
            outs = [bb.emit_output(o) for o in out]
        bb.emit_func_output(outs[0] if len(outs) == 1 else relax.Tuple(outs))
    return bb.get()


def compare(after: tvm.IRModule, rows: int, limit: float, n: int = 2) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 3, rows, 16)).astype("float16") for _ in range(3))
    vm = virtual_machine(after.without_attr("external_mods"))
    got = vm["main"](*map(tvm.runtime.tensor, (q, k, v))).numpy()
    x = torch.tensor(q.astype("float64") @ k.astype("float64").swapaxes(2, 3) / 4)
    assert apart(got, x.softmax(-1).numpy() @ v.astype("float64")) < limit


def test_an_open_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    after, (call,), _ = lowered(module(0, n=tvm.tirx.Var("n", "int64")), monkeypatch)
    assert call.sizes == (0, 3, 1)
    compare(after, 7, 2e-3, n=5)


@pytest.mark.parametrize(
    ("change", "more", "reason"),
    [
        ("masks", {}, "3 tensors are added; at most 2"),
        ("weights", {}, "is a result"),
        ("twice", {}, "reads"),
        ("second", {}, "reads"),
        ("minus", {}, "not above 0"),
        (0, {"dtype": "float32"}, "weights of float32"),
        (0, {"width": 20}, "width '20'"),
        (0, {"width": 136}, "width '136'"),
    ],
)
def test_what_stays(change: Any, more: dict[str, Any], reason: str) -> None:
    mod = module(change, **more)
    after, (entry,) = lower_attention(mod, 90)
    assert reason in entry.reason
    assert products_of_tokens(after, "main") == products_of_tokens(mod, "main")


def test_gpus_that_are_too_old() -> None:
    after, (entry,) = lower_attention(module(0), 75)
    assert entry.reason == "sm_75: from sm_80 on"
    assert products_of_tokens(after, "main")


def test_a_bias_that_is_trained() -> None:
    _, before = step_of(Biased(), "float16", 10)
    after, entries = lower_attention(before, 90)
    assert [e.reason for e in entries] == ["", ""]
    assert len(products_of_tokens(after)) == len(products_of_tokens(before)) - 14
