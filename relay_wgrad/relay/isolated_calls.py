"""Calls compiled by themselves: which of a program's calls TVM cannot compile."""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm.target import Target

from ..pipeline.cpu import cpu_pipeline
from .ast import Call, Constant, Expr, Function, IRModule, Op, Tuple, Var, post_order
from .infer import infer_module, span_text
from .lower import lower
from .types import TensorType

_MOST = 200  # calls that are tried


def first_failing_call(mod: IRModule, target: Target) -> str:
    """The operator and the place of the first call that does not compile, for a message.

    Empty where none fails alone, or there are too many to try.
    """
    try:
        typed = infer_module(mod)
    except (TypeError, ValueError):
        return ""
    for call in _calls(typed):
        if not compiles(call, target):
            assert isinstance(call.op, Op)
            types = [arg.checked_type for arg in call.args]
            is_bool = any(isinstance(t, TensorType) and t.dtype == "bool" for t in types)
            hint = " of bool, which it has no arithmetic of: cast it to int32" if is_bool else ""
            return f"{call.op.name}{span_text(call)}{hint}: "
    return ""


def _calls(mod: IRModule) -> Iterator[Call]:
    count = 0
    for function in mod.functions.values():
        for node in post_order(function):
            if isinstance(node, Call) and isinstance(node.op, Op):
                count += 1
                if count > _MOST:
                    return
                yield node


def compiles(call: Call, target: Target) -> bool:
    """Whether TVM compiles a call, of an operator on its constants and on variables else."""
    free: dict[Expr, Var] = {}

    def given(node: Expr) -> Expr:
        if isinstance(node, Constant):
            return node
        if isinstance(node, Tuple):
            return Tuple(tuple(map(given, node.fields)))
        return free.setdefault(node, Var(f"x{len(free)}", node.checked_type))

    main = Function((), Call(call.op, tuple(map(given, call.args)), call.attrs))
    main = Function(tuple(free.values()), main.body)
    try:
        # A context of its own: the caller's instruments and settings are for its own program.
        with tvm.transform.PassContext(opt_level=3):
            tvm.compile(lower(IRModule({"main": main})), target, relax_pipeline=cpu_pipeline())
    except (TypeError, ValueError):
        return not _is_tensor_call(main)
    except (tvm.error.InternalError, RuntimeError, MemoryError):
        return False
    return True


def _is_tensor_call(main: Function) -> bool:
    """Whether all that is free is a tensor: a tuple can't be a parameter, and says nothing."""
    return all(isinstance(p.type_annotation, TensorType) for p in main.params)
