"""What Relay's own tests ask of a program: types, passes, gradients against slopes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm

from ..ast import Call, Expr, Function, IRModule, Op, post_order
from ..executor import create_executor
from ..expr import TupleWrapper
from ..infer import infer_expr
from ..transform import InferType, Pass, gradient
from ..types import TensorType


def run_infer_type(expr: Expr | TupleWrapper) -> Any:
    """The expression with the types of all nodes; of a TupleWrapper a list of its parts.

    Raises TypeError or ValueError for a violated type relation.
    """
    if isinstance(expr, TupleWrapper):
        return [infer_expr(part) for part in expr]
    return infer_expr(expr)


def run_opt_pass(expr: Expr, opt_pass: Pass, import_prelude: bool = False) -> Expr:
    """A function, or an expression of free variables, after one pass, with types.

    `import_prelude` has no meaning here: Relay's prelude is of algebraic data types.
    """
    main = opt_pass(InferType()(IRModule.from_expr(expr)))["main"]
    return main if isinstance(expr, Function) else main.body


def enabled_targets() -> list[tuple[str, Any]]:
    """The (target, device) pairs to test on: LLVM on the CPU."""
    return [("llvm", tvm.cpu())]


def rand(dtype: str, *shape: int) -> Any:
    """An array of TVM, uniform in [0, 1)."""
    return tvm.runtime.tensor(np.random.default_rng().random(shape).astype(dtype))


def count_ops(expr: Expr) -> Counter[str]:
    """How many calls of each operator there are; a shared node is one."""
    calls = (node.op for node in post_order(expr) if isinstance(node, Call))
    return Counter(op.name for op in calls if isinstance(op, Op))


def check_grad(
    func: Function,
    inputs: Sequence[np.ndarray[Any, Any]] | None = None,
    test_inputs: Sequence[np.ndarray[Any, Any]] | None = None,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    scale: float | None = None,
    mean: float = 0,
    mode: str = "higher_order",
    target_devices: Sequence[tuple[Any, Any]] | None = None,
    executor_kind: str = "debug",
) -> None:
    """Compares a function's gradient with two-sided slopes of the sum of its result.

    Parameters
    ----------
    func : of one tensor; float64 parameters, for the slopes to tell anything.
    inputs : the parameters' values; by default normal ones about `mean`, `scale` wide (10 `eps`).
    test_inputs : those of `inputs`, by identity, whose gradients are compared; by default all.
    target_devices : (target, device) pairs; by default the CPU.

    Raises
    ------
    AssertionError : if they differ by more than `atol` and `rtol` allow.
    """
    forward = run_infer_type(func)
    assert isinstance(forward, Function)
    backward = gradient(forward, mode=mode)
    if inputs is None:
        spread = 10 * eps if scale is None else scale
        inputs = [_np_randn_from_type(p.checked_type, spread, mean) for p in forward.params]
    tested = inputs if test_inputs is None else test_inputs
    for target, device in target_devices or enabled_targets():
        executor = create_executor(executor_kind, device=device, target=target)
        value = executor.evaluate(forward)
        _, grads = executor.evaluate(backward)(*inputs)
        for x in tested:
            where = [i for i, given in enumerate(inputs) if given is x]
            if not where:
                raise ValueError("check_grad: test_inputs must be among inputs")
            slopes = np.zeros(x.shape)
            for i in np.ndindex(*x.shape):
                was = x[i]
                x[i] = was + eps
                above = value(*inputs).numpy().astype("float64")
                x[i] = was - eps
                below = value(*inputs).numpy().astype("float64")
                x[i] = was
                slopes[i] = np.sum(above - below) / (2 * eps)
            got = grads[where[0]].numpy().astype("float64")
            np.testing.assert_allclose(got, slopes, atol=atol, rtol=rtol)


def _np_randn_from_type(t: Any, scale: float = 1, mean: float = 0) -> np.ndarray[Any, Any]:
    """Normal numbers of a tensor type; private in Relay too, whose tests import it."""
    if not isinstance(t, TensorType):
        raise ValueError(f"check_grad: parameters must be tensors, got {t}")
    values = mean + scale * np.random.default_rng().standard_normal(t.concrete_shape)
    return np.asarray(values).astype(t.dtype)
