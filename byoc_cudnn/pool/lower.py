"""Which max poolings of a module go to generated functions, and how they are written then.

Where forward and backward are here, forward says of each result which tap it is, in a byte, and
backward reads that instead of x.  Where x is channels of a wider tensor forward reads it in there.
Where a backward is computed in float32 of half-precision
operands for a half-precision result, since TVM cannot lower it otherwise, the casts go.
"""

from __future__ import annotations

from dataclasses import replace

import tvm
from tvm import relax

from relay_wgrad.attrs import padding4, pair
from relay_wgrad.dtypes import HALVES
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.ir import op_name
from relay_wgrad.problem import DTYPE_BYTES

from ..codegen.lowering import DirectEntry, Plan, Site, lower
from ..joins.channels import Channels
from .call import PoolCall, check
from .codegen import POOLS

FORWARD, BACKWARD = "relax.nn.max_pool2d", "relax.grad.max_pool2d_backward"
CAST = "relax.astype"
_X = 1  # the backward operator's operand
_PACK = 16  # bytes that a thread reads at once


def lower_pools(
    mod: tvm.IRModule, arch: int, *, index: bool = True
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with all max poolings that `check` takes as calls of generated functions.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).
    index : whether which tap a maximum is goes from forward to backward.

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each pooling in program order.
    """
    return lower(mod, POOLS, lambda view: planned(view, index), arch)


def planned(view: Graph, index: bool = True) -> Plan:
    """Which poolings of a function go, and how."""
    plan = Plan(view)
    forward: dict[object, relax.Var] = {}  # of a tensor and a window -> the call
    for binding in view.bindings:
        var, value = binding.var, view.call(binding.var, FORWARD, BACKWARD)
        if value is None:
            continue
        call, reason = _read(value)
        if reason or not (decision := check(replace(call, symbol=POOLS.codegen))):
            plan.refused[var] = reason or decision.reason
            continue
        site = Site(call, list(value.args))
        if op_name(value) == BACKWARD:
            _without_casts(view, var, value, site)
        plan.sites[var] = site
        x = view.resolved(site.args[-1])
        key = (x, site.call.dtype, call.kernel, call.strides, call.padding)
        if op_name(value) == FORWARD:
            forward.setdefault(key, var)
        elif index and key in forward:
            _pass_index(plan, var, forward[key])
    _take_slices(plan)
    return plan


def _take_slices(plan: Plan) -> None:
    """Into forward calls x's that are channels of a tensor, in whole packs."""
    channels = Channels(plan.function)
    for site in plan.sites.values():
        x = site.args[-1]
        form = channels.form(x) if site.call.direction == "forward" else None
        if form is None or len(form) != 1 or len(form[0].sources) != 1:
            continue
        (source,), width = form[0].sources, form[0].width
        all_of = int(source.tensor.ty.shape.values[-1])
        pack = _PACK // DTYPE_BYTES[site.call.dtype]
        if width < all_of and all(n % pack == 0 for n in (width, all_of, source.first)):
            site.call = replace(site.call, slice=(source.first, all_of))
            site.args = [source.tensor]


def _pass_index(plan: Plan, backward: relax.Var, forward: relax.Var) -> None:
    made, site = plan.sites[forward], plan.sites[backward]
    shapes = [plan.function.value[forward].ty.shape, plan.function.value[backward].args[0].ty.shape]
    if tuple(shapes[0].values) != tuple(shapes[1].values):
        return
    made.call = replace(made.call, index=True)
    made.extra = relax.TensorType(plan.function.value[forward].ty.shape, "uint8")
    site.call = replace(site.call, index=True)
    plan.takes[backward] = (_X, forward)


def _without_casts(view: Graph, var: relax.Var, value: relax.Call, site: Site) -> None:
    """In the dtype that both operands come in and the result goes out."""
    casts = [view.call(arg, CAST) for arg in value.args]
    inner = [cast.args[0] for cast in casts if cast is not None]
    dtypes = {str(arg.ty.dtype) for arg in inner}
    users = view.users_of(var)
    back = {str(b.var.ty.dtype) for b in users if op_name(b.value) == CAST}
    same = len(inner) == 2 and len(dtypes) == 1 and dtypes == back and dtypes <= set(HALVES)
    if same and all(op_name(b.value) == CAST for b in users) and var not in view.results:
        site.args, site.narrow = inner, tuple(b.var for b in users)
        site.call = replace(site.call, dtype=dtypes.pop())


def windows_of(value: relax.Call) -> tuple[int, ...] | None:
    """Taps, strides and padding, eight numbers; None where there is no kernel for a call."""
    call, reason = _read(value)
    if reason or not check(replace(call, symbol=POOLS.codegen)):
        return None
    return (*call.kernel, *call.strides, *call.padding)


def _read(value: relax.Call) -> tuple[PoolCall, str]:
    """What a call computes, but for its symbol; and what no kernel is for, in words."""
    a, forward = value.attrs, op_name(value) == FORWARD
    x = value.args[-1]
    name = op_name(value).rpartition(".")[2]
    layouts = (str(a.layout), str(a.out_layout) or str(a.layout))
    reason = "" if set(layouts) == {"NHWC"} else f"layout {layouts[0]}; there is NHWC"
    if pair(name, "dilation", a.dilation) != (1, 1):
        reason = f"dilation {[int(n) for n in a.dilation]}; there is none"
    if x.ty.ndim != 4 or not isinstance(x.ty.shape, relax.ShapeExpr):
        reason = f"x {x.ty}; 4 sizes have to be known or named"
    call = PoolCall(
        symbol="",
        direction="forward" if forward else "backward",
        dtype=str(x.ty.dtype),
        kernel=pair(name, "pool_size", a.pool_size),
        strides=pair(name, "strides", a.strides),
        padding=padding4(name, a.padding),
    )
    return call, reason
