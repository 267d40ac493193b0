"""Which normalizations of a module go to generated functions, and how they are written then.

Where a backward call is told by y what an activation let through, and the forward call that made y
is here, bits go from one to the other instead.  A sum of two gradients, which is what comes back to
where a residual branches off, is added by the backward call itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.ir import op_name
from relay_wgrad.ops import batch_norm_train, batch_norm_train_backward
from relay_wgrad.ops.batch_norm import BACKWARD, FORWARD, dtype_of

from ..codegen.lowering import DirectEntry, FunctionView, Plan, Site, lower, same_type
from .call import NormCall, check
from .codegen import NORMS

_VECTOR = 16  # bytes of a row for which a mask has a byte
_Y = 6  # the backward operators' operand


def lower_norms(
    mod: tvm.IRModule, arch: int, *, bits: bool = True
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with all normalizations that `check` takes as calls of generated functions.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).
    bits : whether what passes an activation after a residual goes backward as bits.

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each normalization in program order.
    """
    return lower(mod, NORMS, lambda view: _planned(view, bits), arch)


def _planned(view: FunctionView, bits: bool) -> Plan:
    plan = Plan(view)
    for binding in view.bindings:
        value = binding.value
        if op_name(value) in (FORWARD, BACKWARD):
            call = _read(value)
            decision = check(replace(call, symbol=NORMS.codegen))
            if decision:
                plan.sites[binding.var] = Site(call, list(value.args))
            else:
                plan.refused[binding.var] = decision.reason
    if bits:
        _pass_bits(plan)
    _take_sums(plan)
    return plan


def _pass_bits(plan: Plan) -> None:
    """Of backward calls whose y is a forward call's of the same activation, both going."""
    view = plan.function
    for var, site in plan.sites.items():
        item = view.value.get(view.resolved(site.args[_Y])) if site.call.stored else None
        if not isinstance(item, relax.TupleGetItem) or int(item.index) != 0:
            continue
        forward = view.resolved(item.tuple_value)
        made = plan.sites.get(forward)
        if made is None or not made.call.residual or made.call.activation != site.call.activation:
            continue
        if forward not in view.whole and isinstance(forward, relax.DataflowVar):
            made.call, made.extra = replace(made.call, bits=True), _mask_type(made.args[0].ty)
            site.call = replace(site.call, bits=True)
            plan.takes[var] = (_Y, forward)


def _take_sums(plan: Plan) -> None:
    """Into backward calls whose dy is a sum of two tensors, made for nothing else."""
    view = plan.function
    for var, site in plan.sites.items():
        dy = site.args[0]
        total = view.call(dy, "relax.add") if site.call.stored and view.only_use(dy) else None
        if total is not None and all(same_type(arg, dy) for arg in total.args):
            site.call, site.args = replace(site.call, summed=True), [*total.args, *site.args[1:]]
            plan.dropped.add(dy)
            if var in plan.takes:
                place, forward = plan.takes[var]
                plan.takes[var] = (place + 1, forward)


def _read(value: relax.Call) -> NormCall:
    """What a call computes, but for its symbol."""
    forward = op_name(value) == FORWARD
    home: Any = batch_norm_train if forward else batch_norm_train_backward
    a, given = home.read(value), home.named(value)
    x = given["x"]
    last = x.ty.ndim > 0 and a.axis == x.ty.ndim - 1
    return NormCall(
        symbol="",
        direction="forward" if forward else "backward",
        dtype=dtype_of(x),
        activation=a.activation,
        residual="residual" in given or "y" in given,
        running="running_mean" in given,
        layout="NHWC" if last else f"channels on axis {a.axis} of {x.ty.ndim}",
        epsilon=a.epsilon,
        momentum=a.momentum,
        unbiased=a.unbiased,
    )


def _mask_type(x: relax.TensorType) -> relax.TensorType:
    """A byte for each 16 bytes of a row."""
    *rows, channels = x.shape.values
    each = _VECTOR // tvm.runtime.DataType(str(x.dtype)).itemsize
    return relax.TensorType([*rows, (channels + each - 1) // each], "uint8")
