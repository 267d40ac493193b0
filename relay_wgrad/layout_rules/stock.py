"""The same facts as `FRelaxInferLayout`, for the stock `relax.transform.ConvertLayout`.

The stock pass writes a layout as letters, A for the first axis of the logical tensor; ABCD is a
tensor as it was and ACDB one that is stored channels last.  Its rules are asked in program order:
each is given the layouts that its operands have by now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, tirx

from .convs import CONVS, conv_in_layout, desired_perms
from .in_layout import KEEP, InLayout, Taken, leaf_types, rank_of
from .perms import Perm, identity, is_identity
from .table import FOLLOW, call_in_layout

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
InferLayout = Callable[..., Any]

# Ops of the table for which upstream has no rule.
_ADDED = """
    where clip collapse_sum_to collapse_sum_like broadcast_to zeros_like ones_like
    full_like grad.max_pool2d_backward grad.avg_pool2d_backward grad.no_grad grad.start_checkpoint
    grad.end_checkpoint nn.log_softmax nn.softplus nn.leakyrelu nn.pad"""
ADDED = tuple(f"relax.{name}" for name in _ADDED.split())


def _decision(perm: Perm) -> Any:
    layout = tvm.get_global_func("s_tir.SLayout")("".join(LETTERS[a] for a in perm), "int32")
    return tvm.ir.make_node("relax.transform.LayoutDecision", layout=layout, is_unknown_dim=False)


def _present(arg: relax.Expr, layouts: Mapping[relax.Var, Any]) -> Perm | None:
    """The layout that an operand has; None for a blocked one."""
    rank = rank_of(arg.ty) or 0
    if not isinstance(arg, relax.Var) or arg not in layouts:
        return identity(rank)
    name = str(layouts[arg].layout.name)
    if len(name) != rank or not all(letter in LETTERS for letter in name):
        return None
    return tuple(LETTERS.index(letter) for letter in name)


def _output(call: relax.Call, moved: InLayout) -> Any:
    inputs = []
    for taken in moved.inputs:
        if not isinstance(taken, Taken):
            break
        inputs.append(_decision(taken.perm))
    outputs: list[Any] = [_decision(perm) for perm in moved.outputs]
    return tvm.ir.make_node(
        "relax.transform.InferLayoutOutput",
        input_layouts=inputs,
        # One for each result of the call, and a tuple is one.
        output_layouts=[outputs] if isinstance(call.ty, relax.TupleType) else outputs,
        new_attrs=call.attrs if moved.attrs is KEEP else moved.attrs,
        new_args={tirx.IntImm("int32", i): arg for i, arg in moved.args.items()},
    )


def _as_it_was(call: relax.Call) -> Any:
    inputs = []
    for arg in call.args:
        rank = rank_of(arg.ty)
        if rank is None:
            break
        inputs.append(Taken(identity(rank)))
    outputs = tuple(identity(rank_of(ty) or 0) for ty in leaf_types(call.ty))
    return _output(call, InLayout(tuple(inputs), outputs))


def conv_rule(name: str) -> InferLayout:
    """A convolution: the desired layouts if it is named, else those that its operands have."""

    def rule(call: relax.Call, desired: Mapping[str, Any], layouts: Mapping[Any, Any]) -> Any:
        if name in desired:
            perms = desired_perms(name, call, list(desired[name]))
        else:
            first, second = (_present(arg, layouts) for arg in call.args[:2])
            # The result is stored as the operand of its kind is; a weight's gradient as it was.
            kinds = CONVS[name].weights
            result = identity(CONVS[name].rank + 2) if kinds[2] else first
            perms = None if first is None or second is None else (first, second, result or first)
        shape = CONVS[name].shape
        unknown = shape is not None and not isinstance(call.args[shape], relax.ShapeExpr)
        if perms is not None and unknown:
            perms = (*perms[:2], identity(CONVS[name].rank + 2))
        moved = conv_in_layout(name, call, perms) if perms is not None else None
        return _as_it_was(call) if moved is None else _output(call, moved)

    return rule


def follow_rule(name: str) -> InferLayout:
    """An op of the table: the first layout other than their own among its largest operands."""

    def rule(call: relax.Call, desired: Mapping[str, Any], layouts: Mapping[Any, Any]) -> Any:
        if name in desired:
            short = name.rpartition(".")[2]
            raise ValueError(
                f"{short}: follows the layouts of its operands and takes no desired layout,"
                f" got {[str(v) for v in desired[name]]}"
            )
        ranks = [rank_of(arg.ty) for arg in call.args] + [rank_of(t) for t in leaf_types(call.ty)]
        highest = max((r for r in ranks if r is not None), default=0)
        found = [_present(arg, layouts) for arg in call.args if rank_of(arg.ty) == highest]
        perm = next((p for p in found if p is not None and not is_identity(p)), None)
        moved = None if perm is None or None in found else call_in_layout(name, call, perm)
        if (
            moved is None
            or moved.squeeze
            or any(isinstance(taken, Taken) and taken.inserted for taken in moved.inputs)
        ):
            return _as_it_was(call)
        return _output(call, moved)

    if name not in FOLLOW:
        raise ValueError(f"layout rules: the table has no rule for {name}")
    return rule
