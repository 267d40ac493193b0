"""Kernels that only reshape become views, where TVM can tell."""

from __future__ import annotations

import tvm
from tvm import relax, tirx
from tvm.relax.analysis import has_reshape_pattern
from tvm.s_tir import SBlock, SBlockRealize

from ..graph.rebuild import with_changed_kernels

_NAME = "RewriteDataflowReshape"


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.Reshapes")
class Reshapes:
    """Upstream's pass, whose arithmetic fails for some sizes that are expressions: the reshapes
    stay kernels then, which copy.

    It also fails for the whole module where a kernel of one operand has no block at its root, as
    those that we write ourselves, of max pooling say.  It looks at one in its place that does
    nothing, and so is no reshape.
    """

    def transform_module(self, mod: tvm.IRModule, _: object) -> tvm.IRModule:
        """The module; itself where TVM cannot tell."""
        own = {
            var: func for var, func in mod.functions_items()
            if isinstance(func, tirx.PrimFunc) and not isinstance(func.body, SBlockRealize)
        }  # fmt: skip
        try:
            out = relax.transform.RewriteDataflowReshape()(with_changed_kernels(mod, _with_root))
        except tvm.error.InternalError:
            return mod
        out = out.clone() if own else out
        for var in out.get_global_vars():
            if var in own:
                out.update_func(var, own[var])
        return out


def only_reshapes(func: tirx.PrimFunc) -> bool:
    """Whether TVM can tell that a kernel copies one tensor to one of another shape."""
    if not isinstance(func.body, SBlockRealize):
        return False
    try:
        return bool(has_reshape_pattern(func))
    except tvm.error.InternalError:  # as above
        return False


def _with_root(func: tirx.PrimFunc) -> tirx.PrimFunc:
    if isinstance(func.body, SBlockRealize):
        return func
    nothing = tirx.Evaluate(tirx.IntImm("int32", 0))
    return func.with_body(SBlockRealize([], True, SBlock([], [], [], "root", nothing)))


def with_reshapes(passes: list[tvm.transform.Pass]) -> list[tvm.transform.Pass]:
    """Passes of upstream's, with this one in the place of theirs."""
    return [Reshapes() if str(each.info.name) == _NAME else each for each in passes]


def without_reshapes(passes: list[tvm.transform.Pass]) -> list[tvm.transform.Pass]:
    """Passes of upstream's that are left where this one has been before."""
    return [each for each in passes if str(each.info.name) != _NAME]
