"""With `promoted` what is made of half tensors alone is half, computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import op_name
from relay_wgrad.training.step import ADJOINT, step_module
from relay_wgrad.transform import grad, mixed_precision
from relay_wgrad.transform.mixed_precision import accumulate_wide
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


P, V = (2, 5, 4), (4, 3)


def layers(bias: tuple[int, ...], rank: int = 3, swapped: bool = False) -> tvm.IRModule:
    """The sum of GELU of a product and a bias."""
    shapes = {"x": P[3 - rank :], "w": V, "b": bias}
    variables = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in shapes.items()]
    bb = relax.BlockBuilder()
    with bb.function("main", variables):
        with bb.dataflow():
            x, w, b = variables
            y = bb.emit(op.matmul(x, w))
            z = bb.emit(op.add(b, y) if swapped else op.add(y, b))
            out = bb.emit_output(op.sum(bb.emit(nn.gelu(z))))
        bb.emit_func_output(out)
    return bb.get()


def sums_of(mod: tvm.IRModule, fn: str = "main") -> list[str]:
    values = [b.value for b in mod[fn].body.blocks[0].bindings]
    return [str(v.ty.dtype) for v in values if op_name(v) == "relax.add"]


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("bias", [(3,), (1, 1, 3), (1,)])
def test_a_products_bias_is_added_in_half(bias: tuple[int, ...], swapped: bool) -> None:
    """As PyTorch's autocast has it, so that what is made of it is half too."""
    both = {"dtype": "bfloat16", "promoted": True}
    mod = mixed_precision(layers(bias, swapped=swapped), **both, rounded_products=True)
    assert sums_of(mod) == ["bfloat16"]
    assert sums_of(mixed_precision(layers(bias, swapped=swapped), **both)) == ["float32"]


@pytest.mark.parametrize(("bias", "rank"), [((3,), 2), ((5, 1), 3), ((5, 3), 3)])
def test_logits_and_other_sums_with_products_are_float32(bias: tuple[int, ...], rank: int) -> None:
    mod = mixed_precision(layers(bias, rank), dtype="float16", promoted=True, rounded_products=True)
    assert sums_of(mod) == ["float32"]


def test_gradients_of_rounded_products() -> None:
    """Beside float64, and the bias' is a float32 sum."""
    made = mixed_precision(layers((3,)), dtype="float16", promoted=True, rounded_products=True)
    mod: Any = accumulate_wide(
        grad(made, "main", wrt=["x", "w", "b"]), ADJOINT, weight_gradients=False
    )
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype("float32") for s in (P, V, (3,))]
    _, partials = virtual_machine(mod)[ADJOINT](*map(tvm.runtime.tensor, arrays))
    given = [torch.tensor(v).double().requires_grad_() for v in arrays]
    x, w, b = given
    wanted = torch.autograd.grad(torch.nn.functional.gelu(x @ w + b).sum(), given)
    for got, want in zip(partials, wanted, strict=True):
        assert got.dtype == "float32"
        assert np.linalg.norm(got.numpy() - want.numpy()) < 2e-3 * float(want.norm())


@pytest.mark.parametrize("wide", [False, True])
def test_a_step_rounds_products_where_their_sums_are(wide: bool) -> None:
    """With `wide_weight_gradients` products are never rounded, and so no sum with a bias."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 5), torch.nn.Flatten(),
        torch.nn.Linear(20, 3),
    )  # fmt: skip
    graph = from_torch(model, (torch.zeros(2, 4, 6),))
    mod = step_module(graph, dtype="bfloat16", raise_norms=True, wide_weight_gradients=wide)
    halves = [dtype for dtype in sums_of(mod, ADJOINT) if dtype == "bfloat16"]
    assert len(halves) == (0 if wide else 2)
