"""`relax.nn.process_mean(x)`: the mean of x over the processes that train together.

With x_r the tensor of process r of R,

    y = sum(x_r) / R        the same y in each

The loss of all is L = sum(u_r L_r) / U, with weights u_r and their sum U; gradients of process r
are multiplied by u_r / U when they are added up.  So that by x_r is, of all of L,

    (U / u_r) dL/dx_r = sum(u_s dy_s) / (R u_r)        with dy_s the gradient of L_s by y

which is the operator with `transposed` set; its gradient is the operator without.  Where weights
are the same both are the plain mean.  They are the process's: what runs a step sets them
(`relay_wgrad.training.exchange`).
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .. import opdef
from ..attrs import as_int
from ..relation import Checks
from .algebra import get_op, operands

NAME = "relax.nn.process_mean"
OP = "process_mean"
RUNS = {0: "relay_wgrad.process_mean", 1: "relay_wgrad.process_mean_transposed"}
"""What runs it, by `transposed`: global functions of (x, y), which writes y."""


def process_mean(x: relax.Expr, transposed: int = 0) -> relax.Expr:
    """The mean of a tensor over the processes that train together.

    Parameters
    ----------
    x : float32 or float64 tensor, of the same type in each.
    transposed : 0, or 1 for what its gradient takes.

    Raises
    ------
    TypeError, ValueError : for another `transposed`, here; for another type of x when the call's
        type is inferred.
    RuntimeError : before `relay_wgrad.register()`.
    """
    operands(OP, x=x)
    kind = as_int(OP, "transposed", transposed)
    if kind not in RUNS:
        raise ValueError(f"{OP}: transposed must be 0 or 1, got {kind}")
    attrs = tvm.ir.make_node("ir.DictAttrs", transposed=kind)
    return relax.Call(get_op(NAME), [x], attrs=attrs)


def infer_type(call: relax.Call, ctx: relax.BlockBuilder) -> relax.Type:
    """x's type."""
    Checks(OP).arity(call, ("x",))
    ty = call.args[0].ty
    if not isinstance(ty, relax.TensorType) or str(ty.dtype) not in ("float32", "float64"):
        raise TypeError(f"{OP}: x must be a float32 or float64 tensor, got {ty}")
    return ty


def gradient(var: Any, call: relax.Call, ct: relax.Var, ctx: Any) -> list[Any]:
    """The transpose."""
    return [process_mean(ct, 1 - int(call.attrs["transposed"]))]


DEF = opdef.OpDef(
    name=NAME,
    summary="the mean of a tensor over the processes that train together",
    arguments=(("x", "Tensor", "What the mean is of."),),
    constructor=process_mean,
    legalizer="legalize.process_mean:rule",
    rules={
        opdef.INFER_TYPE: infer_type,
        opdef.GRADIENT: gradient,
        opdef.PURITY: True,
        opdef.MIXED_POLICY: opdef.MIXED_NEVER,
    },
    missing={opdef.INFER_LAYOUT: "of vectors, which have one layout"},
)
