"""Edges on which no gradient flows, and joined tensors, in the gradient of a module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.transform import grad
from tests.support.grad_modules import Emit, module
from tests.support.onnx.models import call

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op
stop = op.grad.no_grad
X, W = (np.random.default_rng(seed).standard_normal((2, 3)) for seed in (1, 2))


def counted(emit: Emit, y: Any, w: Any) -> Any:
    """A factor that depends on no parameter, by ops that have no gradient."""
    steps = emit(op.astype(emit(op.arange(0, 3, 1, "int64")), "float64"))
    return emit(op.multiply(y, emit(op.flip(steps, 0))))


def straight(emit: Emit, y: Any, w: Any) -> Any:
    """Straight through: y + stop(round(y) - y)."""
    return emit(op.add(y, emit(stop(emit(op.subtract(emit(op.round(y)), y))))))


def fields(emit: Emit, y: Any, w: Any) -> Any:
    """The product of a split's first field, twice, and its last; nothing reads the one between."""
    first, _, last = (emit(relax.TupleGetItem(parts, i)) for parts in [emit(op.split(y, 3, 1))]
                      for i in range(3))  # fmt: skip
    return emit(op.multiply(emit(op.multiply(first, first)), last))


A, _, B = np.split(X * W, 3, 1)


# name -> (what is summed, its value, its gradient by w)
CASES: dict[str, tuple[Any, np.ndarray, np.ndarray]] = {
    "a constant's chain": (counted, X * W * np.flip(np.arange(3), 0), X * np.flip(np.arange(3), 0)),
    "straight through": (straight, np.round(X * W), X),
    "stopped": (lambda e, y, w: e(op.multiply(y, e(stop(w)))), X * W * W, X * W),
    "stopped before an op without a gradient": (
        lambda e, y, w: e(op.multiply(y, e(op.flip(e(stop(y)), 0)))),
        X * W * np.flip(X * W, 0), X * np.flip(X * W, 0),
    ),
    "a mask by logic": (
        lambda e, y, w: e(op.multiply(y, e(op.astype(e(op.logical_not(
            e(op.greater(y, relax.const(0.0, "float64"))))), "float64")))),
        X * W * (X * W <= 0), X * (X * W <= 0),
    ),
    "joined with itself": (lambda e, y, w: e(op.concat([y], 0)), X * W, X),
    "joined with itself, as a variable": (
        lambda e, y, w: e(op.concat(e(relax.Tuple([y])), 1)), X * W, X
    ),
    "a stopped part": (
        lambda e, y, w: e(op.concat([y, e(stop(y)), e(op.flip(e(stop(w)), 0))], 0)),
        np.concatenate([X * W, X * W, np.flip(W, 0)]), X,
    ),
    "a split's fields": (fields, A * A * B, X * np.concatenate([2 * A * B, 0 * A, A * A], 1)),
    "nothing of it": (lambda e, y, w: e(op.flip(e(stop(y)), 0)), np.flip(X * W, 0), 0 * X),
}  # fmt: skip


@pytest.mark.parametrize(("build", "value", "expected"), CASES.values(), ids=CASES)
def test_gradient(build: Any, value: np.ndarray, expected: np.ndarray) -> None:
    mod = module(build)
    out = grad(mod, wrt=["w"])
    assert not any(op_name(b.value) == "relax.grad.no_grad"
                   for b in out["main_adjoint"].body.blocks[0].bindings)  # fmt: skip
    assert tvm_ffi.structural_equal(out["main"], mod["main"])
    got, (by_w,) = call(out, "main_adjoint", [X, W])
    np.testing.assert_allclose(got.numpy(), value.sum(), rtol=1e-12)
    np.testing.assert_allclose(by_w.numpy(), expected, rtol=1e-12)


def test_no_sum_with_zeros() -> None:
    """The stock pass begins the gradients of a split's fields with zeros."""
    made = grad(module(fields), wrt=["w"])["main_adjoint"]
    sums = [b for b in made.body.blocks[0].bindings if op_name(b.value) == "relax.add"]
    assert len(sums) == 1, "the two gradients of the first field"


def test_a_second_order_sees_the_stop() -> None:
    """d²/dw² of sum(x·w·w·stop(w)): 2·x·w, not 6."""

    def build(emit: Emit, y: Any, w: Any) -> Any:
        return emit(op.multiply(emit(op.multiply(y, w)), emit(stop(w))))

    out = grad(module(build), order=2, wrt=["w"])
    _, (second,) = call(out, "main_adjoint2", [X, W, np.ones_like(W)])
    np.testing.assert_allclose(second.numpy(), 2 * X * W, rtol=1e-12)


def test_what_fails_inside_tvm_is_named() -> None:
    """An assertion of the stock pass on its own rules is an error of ours, with op and place."""
    with pytest.raises(ValueError, match=r"TVM's gradient fails at 'lv2' \(relax.triu\): Check"):
        grad(module(lambda e, y, w: e(op.triu(e(op.exp(y))))))
    with pytest.raises(ValueError, match=r"'lv1' is a relax.tile, an op that has no gradient"):
        grad(module(lambda e, y, w: e(op.tile(y, (2, 1)))))
