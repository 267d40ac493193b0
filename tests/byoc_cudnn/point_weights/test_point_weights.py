"""Weight gradients of one pixel become one call; what the kernel computes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
import tvm_ffi
from torch import nn
from tvm import relax

import byoc_cudnn
from byoc_cudnn.point_weights import POINT_WEIGHTS, PointWeightsCall, Product, check
from byoc_cudnn.point_weights.call import MOST
from byoc_cudnn.point_weights.lower import (
    lower_point_weights,
    point_symbols,
    product_of,
    without_point_weights,
)
from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.problem import ConvProblem
from relay_wgrad.training.libraries import library_symbols
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support import cuda_emulated
from tests.support.compiled import step_results
from tests.support.cuda_emulated import DTYPES, aligned
from tests.support.point_weights import Gated, values

pytestmark = pytest.mark.usefixtures("registered")

WGRAD = "relax.nn.conv2d_backward_weight"
TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


def step(module: nn.Module, dtype: str | None, batch: int = 3) -> tvm.IRModule:
    graph = from_torch(module.train(), (torch.zeros(batch, 3, 6, 6),))
    made = step_module(graph, dtype=dtype, raise_norms=True, wide_weight_gradients=False)
    return converted(made, "NHWC")


def bindings_of(mod: tvm.IRModule) -> list[Any]:
    return list(mod[ADJOINT].body.blocks[0].bindings)


@pytest.mark.parametrize("dtype", ["float16", None])
def test_all_are_one_call(dtype: str | None) -> None:
    before = step(Gated(), dtype)
    mod, entries = lower_point_weights(before, 90)
    relax.analysis.well_formed(mod)
    assert [e.op for e in entries] == ["point_weights"]
    wgrads = [op_name(b.value) for b in bindings_of(mod)].count(WGRAD)
    assert wgrads == 5  # of 3x3
    assert [op_name(b.value) for b in bindings_of(before)].count(WGRAD) == 15
    (module,) = mod.attrs["external_mods"]
    kernels = [name for _, name in POINT_WEIGHTS.kernels_of(module.inspect_source())]
    assert kernels == [f"relay_wgrad_point_weights_{dtype or 'float32'}"]
    # Nothing adds up a bias' gradient for the gates any more, but where there is none.
    sums = [b for b in bindings_of(mod) if op_name(b.value) == "relax.collapse_sum_to"]
    assert all(tuple(map(int, b.value.args[0].ty.shape.values))[1:3] != (1, 1) for b in sums)


def test_a_partitioned_module_gives_them_back() -> None:
    mod, report = byoc_cudnn.partition(step(Gated(), "float16"), ("cudnn",), products=True)
    taken = [e.problem for e in report.entries if e.backend]
    points = [p for p in taken if product_of(ConvProblem.parse(p)) is not None]
    assert len(points) == 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("byoc_cudnn.point_weights.lower.LEAST", 11)
        assert without_point_weights(mod).same_as(mod)
        assert point_symbols(mod) == frozenset()
    symbols = list(library_symbols(mod))  # in the order of what was taken
    assert point_symbols(mod) == {s for s, p in zip(symbols, taken, strict=True) if p in points}
    after = without_point_weights(mod)
    relax.analysis.well_formed(after)
    assert [op_name(b.value) for b in bindings_of(after)].count(WGRAD) == 10
    library = byoc_cudnn.build(mod, TARGET, direct=True)
    assert [e.op for e in library.direct].count("point_weights") == 1
    without = byoc_cudnn.build(mod, TARGET, direct=False)
    assert "point_weights" not in "".join(without.sources)


@pytest.mark.parametrize("batch", [1, 5])
def test_the_call_computes_the_step(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[PointWeightsCall] = []
    made = POINT_WEIGHTS.__class__.generate

    def generate(self: Any, given: Sequence[Any], arch: int) -> str:
        calls.extend(given)
        return made(self, given, arch)

    monkeypatch.setattr(type(POINT_WEIGHTS), "generate", generate)
    before = step(Gated(), None, batch)
    after, _ = lower_point_weights(before, 90)
    (call,) = calls
    assert call.biases == (9 if batch > 1 else 0)  # nothing is summed of one image
    tvm_ffi.register_global_func(call.symbol, _packed(call), override=True)
    rng = np.random.default_rng(0)
    given = [
        rng.integers(0, 3, batch) if str(p.ty.dtype).startswith("int") else
        rng.standard_normal([int(n) for n in p.ty.shape.values]).astype("float32")
        for p in after[ADJOINT].params
    ]  # fmt: skip
    got, want = (step_results(mod, given) for mod in (after, before))
    assert len(got) == len(want) > 20
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert np.linalg.norm(a - b) < 2e-5 * max(np.linalg.norm(b), 1e-3), i


def _packed(call: PointWeightsCall) -> Any:
    def run(*tensors: Any) -> None:
        given = 2 * len(call.products)
        results = values(call, [t.numpy() for t in tensors[:given]])
        for out, value in zip(tensors[given:], results, strict=True):
            tvm.runtime.tensor(value.reshape(out.shape).astype(str(out.dtype))).copyto(out)

    return run


def test_what_feeds_another_has_a_call_of_its_own() -> None:
    """The second gradient is of what the first was for."""
    op = relax.op
    bb = relax.BlockBuilder()
    names = {"dy": (4, 1, 1, 6), "x": (4, 1, 1, 6), "z": (4, 1, 1, 6)}
    dy, x, z = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in names.items())
    wgrad = relax.op.nn.conv2d_backward_weight
    layouts = {"grad_layout": "NHWC", "data_layout": "NHWC", "kernel_layout": "OHWI"}
    with bb.function("main", [dy, x, z]):
        with bb.dataflow():
            one = bb.emit(wgrad(dy, x, (1, 1), **layouts))
            row = bb.emit(op.sum(bb.emit(op.exp(one)), [0], keepdims=True))
            two = bb.emit(wgrad(bb.emit(op.add(dy, row)), z, (1, 1), **layouts))
            three = bb.emit(wgrad(z, z, (1, 1), **layouts))
            out = bb.emit_output(relax.Tuple([one, two, three]))
        bb.emit_func_output(out)
    mod, entries = lower_point_weights(bb.get(), 90)
    relax.analysis.well_formed(mod)
    assert len(entries) == 2
    found = [b.value for b in mod["main"].body.blocks[0].bindings]
    counts = [len(v.args[1].fields) // 2 for v in found if op_name(v) == "relax.call_dps_packed"]
    assert sorted(counts) == [1, 2]


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        ({}, True), ({"h": 2, "w": 2}, False), ({"r": 3, "s": 3, "padding": (1, 1, 1, 1)}, False),
        ({"groups": 4}, False), ({"c": 1 << 16, "k": 1 << 10}, False),
        ({"n": tvm.tirx.Var("n", "int64")}, False), ({"grad_dtype": "float16"}, False),
        ({"strides": (2, 2)}, True),
    ],
)  # fmt: skip
def test_which_problems(changed: dict[str, Any], taken: bool) -> None:
    text = "wgrad n=8 c=64 h=1 w=1 k=16 r=1 s=1 stride=1,1 pad=0,0,0,0 dil=1,1 groups=1"
    problem = replace(
        ConvProblem.parse(f"{text} layout=NHWC/OHWI/NHWC dtype=f32/f32/f32"), **changed
    )
    assert (product_of(problem) is not None) == taken


def test_what_no_kernel_is_for_has_a_reason() -> None:
    good = Product(4, 3, 9)
    assert check(PointWeightsCall("f", "float16", (good,)))
    for call, reason in (
        (PointWeightsCall("f", "float64", (good,)), "dtype 'float64'"),
        (PointWeightsCall("f-", "float16", (good,)), "no identifier"),
        (PointWeightsCall("f", "float16", ()), "no weight"),
        (PointWeightsCall("f", "float16", (Product(0, 3, 9),)), "from 1 to"),
        (PointWeightsCall("f", "float16", (Product(MOST, 2, 1),)), "from 1 to"),
    ):
        assert reason in check(call).reason


# ---- the kernel, on a device that is the CPU -----------------------------------------------------

PRODUCTS = (
    Product(5, 7, 9, True), Product(1, 1, 1, True), Product(33, 70, 3), Product(16, 3, 130, True),
    Product(17, 64, 64, True), Product(2, 129, 1, True),
)  # fmt: skip


class _Product(ctypes.Structure):
    """`RelayWgradPointWeight` of point_weights_call.h."""

    _fields_ = (
        *((n, ctypes.c_void_p) for n in ("dy", "x", "dw", "db")),
        *((n, ctypes.c_int64) for n in "nkc"),
    )


class _Call(ctypes.Structure):
    _fields_ = (("products", ctypes.POINTER(_Product)), ("count", ctypes.c_int64))


@pytest.mark.longer_cases("bfloat16", "float32", why="256 threads emulated for each tile")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_kernel(tmp_path: Path, dtype: str) -> None:
    products = PRODUCTS + (Product(2, 3, 2, True),) * 52  # more than a launch's table holds
    call = PointWeightsCall("f", dtype, products)
    rng, half = np.random.default_rng(0), DTYPES[dtype]
    dy = [aligned(rng.standard_normal((p.n, p.k)).astype(half)) for p in products]
    x = [aligned(rng.standard_normal((p.n, p.c)).astype(half)) for p in products]
    dy[3][2, 1] = np.nan
    dw = [aligned(np.full((p.k, p.c), 7, half)) for p in products]
    db = [aligned(np.full(p.k, 7, np.float32)) if p.biased else None for p in products]
    table = (_Product * len(products))()
    for i, p in enumerate(products):
        table[i].n, table[i].k, table[i].c = p.n, p.k, p.c
        table[i].dy, table[i].x, table[i].dw = (t[i].ctypes.data for t in (dy, x, dw))
        table[i].db = None if db[i] is None else db[i].ctypes.data
    own = cuda_emulated.loaded(tmp_path, POINT_WEIGHTS.kernel_of(call))
    packed = _Call(table, len(products))
    assert getattr(own, POINT_WEIGHTS.kernel_of(call))(ctypes.byref(packed), None) == 0
    got = [*dw, *(one for one in db if one is not None)]
    rounding = {"float16": 4e-4, "bfloat16": 3e-3, "float32": 1e-6}[dtype]
    for i, (a, b) in enumerate(zip(got, values(call, [*dy, *x]), strict=True)):
        assert (np.isnan(a.astype("float64")) == np.isnan(b)).all(), i
        a, b = np.nan_to_num(a.astype("float64")), np.nan_to_num(b)
        assert np.linalg.norm(a - b) <= rounding * max(np.linalg.norm(b), 1e-3), i
