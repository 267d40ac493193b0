"""What passes leave of a function that they write anew: its span, its type, its attributes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax

import byoc_cudnn
from relay_wgrad.frontend import from_onnx
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from relay_wgrad.pipeline.recompute import Recompute
from relay_wgrad.training.step import ADJOINT, step_module
from relay_wgrad.transform import ConvertLayout, grad
from relay_wgrad.transform.grad_paths import prepared
from relay_wgrad.transform.mask_order import masks_early
from relay_wgrad.transform.raise_norm import raise_batch_norm
from tests.support.graphs import spanned
from tests.support.training_models import residual_net

pytestmark = pytest.mark.usefixtures("registered")
op, nn = relax.op, relax.op.nn
Emit = Callable[[relax.Expr], relax.Var]
WINDOW = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1)}


def module(body: Callable[[Emit, Any], relax.Expr], *shape: int) -> tvm.IRModule:
    """`main` of x with what `body` gives as its result, and an attribute."""
    bb, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(shape, "float32"))
    with bb.function("main", [x], attrs={"kept": 3}):
        with bb.dataflow():
            out = bb.emit_output(body(bb.emit, x))
        bb.emit_func_output(out)
    return bb.get()


def masks(func: relax.Function) -> relax.Function:
    return masks_early(tvm.IRModule({ADJOINT: func}), ADJOINT)[ADJOINT]


def pooled() -> relax.Function:
    mod = module(lambda emit, x: op.sum(emit(nn.max_pool2d(emit(nn.relu(x)), **WINDOW))),
                 2, 3, 8, 8)  # fmt: skip
    return grad(mod, "main")[ADJOINT].with_attr("kept", 3)


def normalized() -> relax.Function:
    ones = relax.const([1.0, 1.0, 1.0], "float32")

    def body(emit: Emit, x: Any) -> relax.Expr:
        whole = emit(nn.batch_norm(x, ones, ones, ones, ones, axis=1, training=True))
        return emit(relax.TupleGetItem(whole, 0))

    return module(body, 2, 3, 8, 8)["main"]


@cache
def read_often() -> tvm.IRModule:
    """Kernels, of which one is so cheap that each of its users makes it anew."""

    def body(emit: Emit, x: Any) -> relax.Expr:
        y = emit(op.negative(x))
        first, second = emit(op.sum(emit(op.exp(y)), [0])), emit(op.sum(emit(op.sin(y)), [1]))
        return emit(op.add(emit(op.sum(first)), emit(op.sum(second))))

    passes = [p for p in fused_kernels() if p.info.name not in ("FuseOps", "FuseTIR")]
    names = [p.info.name for p in passes]
    with tvm.target.Target("llvm"):
        before = passes[: names.index("relay_wgrad.recompute")]
        return tvm.transform.Sequential(before)(module(body, 64, 64))


def recomputed(func: relax.Function) -> relax.Function:
    mod = read_often().clone()
    mod.update_func(mod.get_global_var("main"), func)
    return Recompute()(mod)["main"]


def cut(func: relax.Function) -> relax.Function:
    return prepared(func, func.params, func.body.body)


def fixed() -> relax.Function:
    def body(emit: Emit, x: Any) -> relax.Expr:
        ones = emit(op.ones((8,), "float32"))
        return emit(op.sum(emit(op.multiply(x, ones))))

    return module(body, 8)["main"]


CASES = {
    "masks_early": (pooled, masks),
    "raise_batch_norm": (
        normalized, lambda func: raise_batch_norm(tvm.IRModule({"main": func}))[0]["main"]
    ),
    "Recompute": (lambda: read_often()["main"], recomputed),
    "ConvertLayout": (
        lambda: module(lambda emit, x: op.permute_dims(emit(op.exp(x))), 2, 3, 4, 5)["main"],
        lambda func: ConvertLayout()(tvm.IRModule({"main": func}))["main"],
    ),
    "prepared": (fixed, cut),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_pass_keeps_span_type_and_attributes(name: str) -> None:
    make, change = CASES[name]
    func, span = spanned(make())
    made = change(func)
    assert made.span == span
    assert int(made.attrs["kept"]) == 3
    assert made.body.ty is not None
    assert tvm_ffi.structural_equal(made.body.ty, func.body.ty)
    if name != "ConvertLayout":  # it changes nothing here
        assert not tvm_ffi.structural_equal(made, func)
    kept = {b.var: b for b in bindings_of(func)}
    old = [b for b in bindings_of(made) if b.var in kept and b.value.same_as(kept[b.var].value)]
    assert all(b.span == span for b in old)


def test_a_scaled_step_keeps_its_functions_attributes() -> None:
    graph = from_onnx(residual_net(blocks=1))
    module = graph.module.clone()
    module["main"] = graph.main.with_attr("kept", 3)
    graph = replace(graph, module=module)
    plain, scaled = (step_module(graph, scaled=scaled)[ADJOINT].attrs for scaled in (False, True))
    assert dict(scaled.items()) == dict(plain.items())
    assert int(plain["kept"]) == 3


def test_a_call_adapted_for_a_library_keeps_its_source() -> None:
    x, w = (relax.Var(n, relax.TensorType(s, "float32")) for n, s in (
        ("x", (2, 8, 9, 9)), ("w", (8, 8, 3, 3)),
    ))  # fmt: skip
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            out = bb.emit_output(nn.conv2d(x, w, padding=(0, 1, 2, 1)))
        bb.emit_func_output(out)
    func, _ = spanned(bb.get()["main"])
    _, report = byoc_cudnn.partition(tvm.IRModule({"main": func}))
    (entry,) = report.entries
    assert entry.adapted
    assert entry.source == "w model.py:7"
