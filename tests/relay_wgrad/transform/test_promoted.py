"""With `promoted` what is made of half tensors alone is half, computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad, mixed_precision
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")
op, nn = relax.op, relax.op.nn
X, W, C = (2, 3, 5, 4), (3, 3, 1, 1), (1, 3, 1, 1)


def forward(body: Callable[..., Any]) -> tvm.IRModule:
    """The sum of what a body makes of a convolution's result, and of a number for each channel."""
    shapes = {"x": X, "w": W, "c": C}
    variables = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        with bb.dataflow():
            y = bb.emit(nn.conv2d(*variables[:2]))
            out = bb.emit_output(op.sum(body(bb, y, variables[2])))
        bb.emit_func_output(out)
    return bb.get()


def residual(bb: Any, y: Any, c: Any) -> Any:
    scaled = bb.emit(op.multiply(bb.emit(nn.silu(y)), relax.const(1.75, "float32")))
    return bb.emit(op.add(scaled, y))


def scaled(bb: Any, y: Any, c: Any) -> Any:
    return bb.emit(op.add(bb.emit(op.multiply(y, c)), y))


def rounded(mod: tvm.IRModule) -> dict[str, str]:
    """By operator the dtype of what it computes, and that of the cast of it, if any."""
    bindings = mod["main"].body.blocks[0].bindings
    casts = {b.value.args[0]: str(b.var.ty.dtype) for b in bindings
             if op_name(b.value) == "relax.astype"}  # fmt: skip
    names = ("relax.add", "relax.multiply", "relax.nn.silu")
    return {op_name(b.value): f"{b.var.ty.dtype} {casts.get(b.var, '')}".strip()
            for b in bindings if op_name(b.value) in names}  # fmt: skip


def test_what_is_made_of_half_tensors_alone_is_half() -> None:
    mod = mixed_precision(forward(residual), dtype="float16", promoted=True)
    assert set(rounded(mod).values()) == {"float32 float16"}
    plain = mixed_precision(forward(residual), dtype="float16")
    assert set(rounded(plain).values()) == {"float32"}


def test_a_float32_tensor_beside_them_keeps_float32() -> None:
    """As PyTorch's types promote: a parameter does, which a convolution does not take."""
    mod = mixed_precision(forward(scaled), dtype="bfloat16", promoted=True)
    assert set(rounded(mod).values()) == {"float32"}


def square(bb: Any, y: Any, c: Any) -> Any:
    return bb.emit(op.multiply(y, y))


def test_squares_are_float32() -> None:
    """They are summed for norms, and 300 has none in float16."""
    mod = mixed_precision(forward(square), dtype="float16", promoted=True)
    assert set(rounded(mod).values()) == {"float32"}


def test_values_and_gradients_are_roundings() -> None:
    made = mixed_precision(forward(residual), dtype="float16", promoted=True)
    mod: Any = grad(made, "main", wrt=["x", "w"])
    rng = np.random.default_rng(0)
    x, w, c = (rng.standard_normal(s).astype("float32") for s in (X, W, C))
    first, partials = virtual_machine(mod)[ADJOINT](*map(tvm.runtime.tensor, (x, w, c)))
    tx, tw = (torch.tensor(v).double().requires_grad_() for v in (x, w))
    y = torch.nn.functional.conv2d(tx, tw)
    total = (torch.nn.functional.silu(y) * 1.75 + y).sum()
    wanted = torch.autograd.grad(total, (tx, tw))
    outputs = first if isinstance(first, tvm.runtime.Tensor) else first[0]
    assert abs(float(outputs.numpy()) - float(total.detach())) < 5e-3 * float(y.detach().norm())
    for got, want in zip(partials, wanted, strict=True):
        assert np.linalg.norm(got.numpy() - want.numpy()) < 2e-3 * float(want.norm())
