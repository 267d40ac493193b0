"""Relax functions of convolutions and moves, evaluated node by node: convolutions by PyTorch in
float64, all else by NumPy.  For many small programs, whose compilation would take minutes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from relay_wgrad.ops.auxiliary import slice_bounds
from relay_wgrad.ops.call_problem import family_def, problem_of
from tests.support.problems import torch_reference

Array = np.ndarray[Any, Any]


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(n) for n in value.ty.shape.values)


def _pad(call: relax.Call, x: Array) -> Array:
    widths = [int(w) for w in call.attrs.pad_width]
    pairs = list(zip(widths[::2], widths[1::2], strict=True))
    return np.pad(x, pairs, constant_values=float(call.attrs.pad_value))


def _slice(call: relax.Call, x: Array, *bounds: Any) -> Array:
    found = slice_bounds(call, x.shape)
    return x[tuple(slice(b, b + (n - 1) * s + 1, s) for b, n, s in found)]


MOVES: dict[str, Callable[..., Array]] = {
    "relax.reshape": lambda call, x, *_: x.reshape(_shape(call)),
    "relax.broadcast_to": lambda call, x, *_: np.broadcast_to(x, _shape(call)),
    "relax.permute_dims": lambda call, x: x.transpose([int(a) for a in call.attrs.axes]),
    "relax.flip": lambda call, x: np.flip(x, int(call.attrs.axis)),
    "relax.nn.pad": _pad,
    "relax.strided_slice": _slice,
    "relax.add": lambda call, a, b: a + b,
    "relax.multiply": lambda call, a, b: a * b,
}


def evaluated(module: tvm.IRModule, arguments: Sequence[Array]) -> list[Array]:
    """What `main` gives, a tuple's fields."""
    main = module["main"]
    env: dict[Any, Any] = dict(zip(main.params, arguments, strict=True))

    def value(expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return env[expr]
        if isinstance(expr, tvm.ir.Constant) and hasattr(expr.value, "numpy"):
            return expr.value.numpy()
        if isinstance(expr, relax.Tuple):
            return [value(field) for field in expr.fields]
        if not isinstance(expr, relax.Call):
            return None  # a shape, bounds: the call has them
        operands = [value(a) for a in expr.args]
        if family_def(expr) is not None:
            return torch_reference(problem_of(expr), operands[0], operands[1])
        return MOVES[str(expr.op.name)](expr, *operands)

    for block in main.body.blocks:
        for binding in block.bindings:
            env[binding.var] = value(binding.value)
    return list(value(main.body.body))
