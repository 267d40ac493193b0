"""FLegalize of the convolution family: from a call to the kernel that computes it.

Static problems get a kernel generated for them: `legalize.cpu` for LLVM, also where the number of
images is open, `legalize.cuda` for CUDA.  Other symbolic sizes, and targets without kernels of
ours, get the one reduction of `legalize.generic`, which is right everywhere.  What is not the
family's at all (integers, blocked layouts) goes to upstream's rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any

import tvm
from tvm import relax
from tvm.relax.utils import gen_call_tir_inputs
from tvm.target import Target

from relay_wgrad import keys
from relay_wgrad.ir import OPAQUE
from relay_wgrad.opdef import OpDef
from relay_wgrad.ops.call_problem import problem_of
from relay_wgrad.ops.conv import is_family
from relay_wgrad.problem import ConvKind, ConvProblem

from . import generic
from .kernel import Kernel

KERNELS = {"llvm": "legalize.cpu", "cuda": "legalize.cuda"}  # target kind -> kernel generator
OPEN = {("llvm", 2)}  # (target kind, dimensions) whose kernels take any number of images
MISSING = {("cuda", 3): "CUDA kernels are of two dimensions"}  # (target kind, dimensions) -> why


def legalize_rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The FLegalize rule of one op; `upstream` is the rule it stands in for, or None."""

    def rule(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        assert definition.read_attrs is not None
        if upstream is not None and not is_family(call):
            return upstream(bb, call)
        return lower(bb, call, problem_of(call), definition.short)

    return rule


def lower(bb: relax.BlockBuilder, call: relax.Call, problem: ConvProblem, name: str) -> relax.Expr:
    """A call_tir of the kernel for `problem` on the current target."""
    target = Target.current(allow_none=True)
    kind = str(target.kind.name) if target is not None else ""
    facts = {keys.OP: name, keys.PROBLEM: problem.repro()}
    is_open = (kind, problem.rank) in OPEN and _is_open(problem)
    if (problem.is_static or is_open) and kind in KERNELS and (kind, problem.rank) not in MISSING:
        one = replace(problem, n=1) if is_open else problem
        kernel = _kernel(KERNELS[kind], one, str(target), is_open)
        # A global symbol would make the kernel public, and clash with others of its name.
        func = kernel.func.without_attr(keys.SYMBOL)
        facts |= {keys.SOURCE: f"{kind} {kernel.name}", keys.REASON: kernel.reason}
        func = func.with_attr({keys.OP_PATTERN: OPAQUE, **facts})
        return relax.call_tir(bb.add_func(func, name), list(call.args[:2]), out_ty=call.ty)
    # The result's pixels, of which dgrad's operands know nothing, go along as sizes.
    func, args, out_ty = gen_call_tir_inputs(
        lambda a, b, size: generic.te_conv(problem, a, b, size),
        call.args[0],
        call.args[1],
        list(problem.spatial) if problem.kind is ConvKind.DGRAD else None,
    )
    reason = "sizes are symbolic" if kind in KERNELS else f"target {kind or 'none'} has no other"
    reason = MISSING.get((kind, problem.rank), reason)
    func = func.with_attr({keys.SOURCE: "generic", keys.REASON: reason, **facts})
    if kind == "llvm":
        func = generic.cpu_schedule(func).with_attr(keys.OP_PATTERN, OPAQUE)
    # Elsewhere it stays unscheduled: the target's own pipeline schedules and fuses it.
    return relax.call_tir(bb.add_func(func, name), args, out_ty)


def _is_open(problem: ConvProblem) -> bool:
    """Whether the number of images is all that is symbolic."""
    return not problem.is_static and replace(problem, n=1).is_static


@lru_cache(maxsize=1024)
def _kernel(module: str, problem: ConvProblem, given: str, is_open: bool) -> Kernel:
    """The kernel that `module` generates for a target's text.  Networks repeat their layers: one
    for each distinct problem and target, for any number of images where that is open."""
    if is_open:
        problem = replace(problem, n=tvm.tirx.Var("n", "int64"))
    kernel: Kernel = import_module(module).kernel(problem, Target(given))
    return kernel
