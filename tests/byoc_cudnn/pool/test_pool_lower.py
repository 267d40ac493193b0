"""Max poolings of a module become calls of generated functions; no GPU is needed."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from byoc_cudnn.pool.lower import lower_pools
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad, mixed_precision
from relay_wgrad.transform.mixed_precision import accumulate_wide

pytestmark = pytest.mark.usefixtures("registered")


def step(dtype: str | None = None, **attrs: Any) -> tvm.IRModule:
    """The gradient of the sum of a pooling's squares."""
    window = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1), "layout": "NHWC"} | attrs
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 8, 9, 5), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = bb.emit(relax.op.nn.max_pool2d(bb.emit(relax.op.sin(x)), **window))
            out = bb.emit_output(relax.op.sum(relax.op.multiply(y, y)))
        bb.emit_func_output(out)
    mod = bb.get() if dtype is None else mixed_precision(bb.get(), dtype=dtype)
    mod = grad(mod, "main")
    mod = mod if dtype is None else accumulate_wide(mod, ADJOINT)
    return tvm.IRModule({ADJOINT: mod[ADJOINT]})


def packed(mod: tvm.IRModule) -> list[relax.Call]:
    values = [b.value for b in mod[ADJOINT].body.blocks[0].bindings]
    names = [str(getattr(getattr(v, "op", None), "name", "")) for v in values]
    return [v for v, n in zip(values, names, strict=True) if n == "relax.call_dps_packed"]


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_an_index_goes_from_forward_to_backward(dtype: str | None) -> None:
    """Also in bfloat16, whose gradient TVM's kernel computes of widened tensors."""
    mod, entries = lower_pools(step(dtype), 90)
    relax.analysis.well_formed(mod)
    assert [e.op for e in entries] == ["max_pool2d", "max_pool2d_backward"]
    forward, backward = packed(mod)
    kind = dtype or "float32"
    assert [str(t.dtype) for t in forward.ty.fields] == [kind, "uint8"]
    assert [str(a.ty.dtype) for a in backward.args[1].fields] == [kind, "uint8"]
    assert str(backward.ty.dtype) == kind
    used = relax.analysis.remove_all_unused(mod[ADJOINT]).body.blocks[0].bindings
    casts = [b.value for b in used if op_name(b.value) == "relax.astype"]
    assert len(casts) == (0 if dtype is None else 4)  # sin's result, y, and their gradients
    source = mod.attrs["external_mods"][0].inspect_source()
    assert all(f"__tvm_ffi_{entry.symbol}(" in source for entry in entries)
    forward, backward = packed(lower_pools(step(dtype), 90, index=False)[0])
    assert [str(a.ty.dtype) for a in backward.args[1].fields] == [kind, kind]


@pytest.mark.parametrize(
    ("attrs", "reason"),
    [({"layout": "NCHW"}, "layout NCHW; there is NHWC"), ({"dilation": (2, 2)}, "dilation [2, 2]"),
     ({"pool_size": (16, 16), "padding": (8, 8)}, "a window of 16×16 pixels, at most 225")],
)  # fmt: skip
def test_what_stays_has_a_reason(attrs: Any, reason: str) -> None:
    before = step(**attrs)
    mod, entries = lower_pools(before, 90)
    assert all(entry.reason.startswith(reason) and not entry.symbol for entry in entries)
    assert len(entries) == 2
    assert mod[ADJOINT].same_as(before[ADJOINT])


@I.ir_module
class Branching:
    """A pooling's gradient that is rounded, and in a branch is not."""

    @R.function
    def main(
        dy: R.Tensor((2, 4, 4, 8), "float16"),
        x: R.Tensor((2, 8, 8, 8), "float16"),
        c: R.Tensor((), "bool"),
    ) -> R.Tuple(R.Tensor((2, 8, 8, 8), "float16"), R.Tensor((2, 8, 8, 8), "float32")):
        wide_dy = R.astype(dy, "float32")
        wide_x = R.astype(x, "float32")
        dx = R.grad.max_pool2d_backward(
            wide_dy, wide_x, (2, 2), (2, 2), layout="NHWC", out_layout="NHWC"
        )
        rounded = R.astype(dx, "float16")
        if c:
            e = R.exp(dx)
            z = R.negative(e)
        else:
            z = R.sin(dx)
        return (rounded, z)


def test_what_a_branch_reads_stays_in_its_dtype() -> None:
    relax.analysis.well_formed(Branching)
    out, (entry,) = lower_pools(Branching, 90)
    assert entry.symbol
    relax.analysis.well_formed(out)  # raises where the branch reads what is no more
    (call,) = (b.value for b in out["main"].body.blocks[0].bindings if str(b.var.name) == "dx")
    assert str(call.ty.dtype) == "float32"
