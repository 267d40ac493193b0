"""Building, lowering and running one gradient call: shared by the tests of the composite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Op

import relay_wgrad
from legalize.composite import StockLegalize, composite
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.built import built
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

WGRAD = "relax.nn.conv2d_backward_weight"
DGRAD = "relax.nn.conv2d_backward_data"


def module(params: dict[str, relax.Type], body: Callable[..., relax.Expr]) -> tvm.IRModule:
    """One function `main` of one dataflow block."""
    variables = [relax.Var(name, ty) for name, ty in params.items()]
    return built(variables, lambda emit: body(*variables))


def gradient_call(p: ConvProblem, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """The call of a new op that computes the problem."""
    common = {
        "strides": p.strides,
        "padding": p.padding,
        "dilation": p.dilation,
        "groups": p.groups,
        "grad_layout": p.grad_layout,
        "data_layout": p.data_layout,
        "kernel_layout": p.kernel_layout,
        "out_dtype": p.dtype(p.roles[2]),
    }
    if p.kind is ConvKind.WGRAD:
        wgrad: Any = getattr(relay_wgrad, f"conv{p.rank}d_backward_weight")
        return wgrad(a, b, p.taps, **common)
    dgrad: Any = getattr(relay_wgrad, f"conv{p.rank}d_backward_data")
    return dgrad(a, b, p.shape("data"), **common)


def problem_module(p: ConvProblem) -> tvm.IRModule:
    """The problem as one call; its sizes may be symbolic."""
    first, second, _ = p.roles
    params = {role: relax.TensorType(p.shape(role), p.dtype(role)) for role in (first, second)}
    if p.kind is ConvKind.DGRAD and not p.is_static:
        # Sizes that only the result has must come from somewhere: another operand's type.
        params["like"] = relax.TensorType(p.shape("data"), p.dtype("data"))
    return module(params, lambda a, b, *_: gradient_call(p, a, b))


def calls(mod: tvm.IRModule, name: str = "main") -> list[relax.Call]:
    """The bound calls of a function, in order."""
    return [
        binding.value
        for block in mod[name].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]


def ops(mod: tvm.IRModule, name: str = "main") -> list[str]:
    return [str(call.op.name) for call in calls(mod, name) if isinstance(call.op, Op)]


def stock_compiled(mod: tvm.IRModule) -> relax.VirtualMachine:
    """The composite of every gradient, compiled by upstream's rules alone."""
    mod = composite(mod, weight=True, data=True)
    assert WGRAD not in ops(mod)
    assert DGRAD not in ops(mod)
    mod = StockLegalize()(mod)
    # Nothing of the family is left for the pipeline to give to this package's kernels.
    assert not [name for name in ops(mod) if "conv2d" in name]
    return virtual_machine(mod, FAST)


def run(vm: relax.VirtualMachine, *operands: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return vm["main"](*(tvm.runtime.tensor(x) for x in operands)).numpy()


NAMED = {
    "plain": "n=2 c=4 h=7 w=9 k=6 r=3 s=3 pad=1,1,1,1",
    "one image": "n=1 c=4 h=7 w=9 k=6 r=3 s=3 pad=1,1,1,1",
    "one of everything": "n=1 c=1 h=1 w=1 k=1 r=1 s=1",
    "pointwise": "n=3 c=5 h=6 w=5 k=7 r=1 s=1",
    "pointwise stride 2": "n=2 c=5 h=6 w=7 k=4 r=1 s=1 stride=2,2",
    "padding beyond the kernel": "n=2 c=3 h=5 w=4 k=2 r=1 s=2 pad=1,2,2,3",
    "groups 2": "n=3 c=6 h=7 w=6 k=4 r=3 s=2 pad=1,0,1,1 groups=2",
    "groups 2, one filter each": "n=3 c=6 h=7 w=6 k=2 r=3 s=2 pad=1,0,1,1 groups=2",
    "groups 4": "n=2 c=8 h=9 w=8 k=12 r=3 s=3 stride=2,1 pad=1,1,1,1 groups=4",
    "depthwise": "n=2 c=5 h=7 w=6 k=5 r=3 s=3 pad=1,1,1,1 groups=5",
    "depthwise, multiplier 3": "n=2 c=4 h=7 w=6 k=12 r=3 s=3 stride=2,2 pad=1,1,1,1 groups=4",
    "stride 2, crop": "n=2 c=3 h=8 w=10 k=4 r=3 s=3 stride=2,2 pad=1,1,1,1",
    "stride 3, crop": "n=2 c=3 h=12 w=10 k=4 r=2 s=3 stride=3,3",
    "stride 3, crop, groups": "n=2 c=4 h=12 w=10 k=6 r=2 s=3 stride=3,3 groups=2",
    "dilation 2": "n=2 c=3 h=9 w=11 k=4 r=3 s=2 pad=2,1,1,0 dil=2,2",
    "dilation 3, stride 2, groups": "n=2 c=4 h=13 w=12 k=4 r=2 s=3 stride=2,2 dil=3,2 groups=2",
    "asymmetric padding": "n=2 c=3 h=6 w=7 k=4 r=3 s=4 pad=0,1,2,3",
    "NHWC/OHWI": "n=2 c=4 h=7 w=6 k=6 r=3 s=2 stride=2,1 groups=2 layout=NHWC/OHWI/NHWC",
    "NHWC/HWIO": "n=2 c=4 h=7 w=6 k=6 r=3 s=2 stride=2,1 pad=1,0,1,0 layout=NHWC/HWIO/NHWC",
    "three layouts": "n=2 c=4 h=7 w=6 k=6 r=3 s=2 dil=1,2 groups=2 layout=CHWN/WIOH/HNCW",
    "f16": "n=2 c=4 h=8 w=7 k=6 r=3 s=3 pad=1,1,1,1 groups=2 dtype=f16/f16/f16",
    "f64": "n=2 c=4 h=8 w=7 k=6 r=3 s=3 pad=1,1,1,1 groups=2 dtype=f64/f64/f64",
    "f32 from f16": "n=2 c=4 h=8 w=7 k=6 r=3 s=3 stride=2,2 dtype=f16/f32/f16",
    "f16 from f32": "n=2 c=4 h=8 w=7 k=6 r=3 s=3 stride=2,2 dtype=f32/f16/f32",
    "all different": "n=2 c=4 h=8 w=7 k=6 r=3 s=3 dtype=f64/f32/f16 layout=NHWC/HWIO/NCHW",
    "bf16": "n=2 c=4 h=8 w=7 k=6 r=3 s=3 pad=1,1,1,1 groups=2 dtype=bf16/bf16/bf16",
}
