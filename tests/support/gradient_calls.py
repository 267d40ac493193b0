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

WGRAD = "relax.nn.conv2d_backward_weight"
DGRAD = "relax.nn.conv2d_backward_data"


def module(params: dict[str, relax.Type], body: Callable[..., relax.Expr]) -> tvm.IRModule:
    """One function `main` of one dataflow block."""
    bb = relax.BlockBuilder()
    variables = [relax.Var(name, ty) for name, ty in params.items()]
    with bb.function("main", variables):
        with bb.dataflow():
            out = bb.emit_output(body(*variables))
        bb.emit_func_output(out)
    return bb.get()


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
        return relay_wgrad.conv2d_backward_weight(a, b, (p.r, p.s), **common)
    return relay_wgrad.conv2d_backward_data(a, b, p.shape("data"), **common)


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
    return relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())


def run(vm: relax.VirtualMachine, *operands: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return vm["main"](*(tvm.runtime.tensor(x) for x in operands)).numpy()
