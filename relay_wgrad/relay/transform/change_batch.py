"""A program for another number of images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...argument_types import check_type, checked_integer
from ..ast import Expr, Function, IRModule, Var
from ..rewrite import rewrite
from ..types import TensorType
from .context import TvmPassContext
from .passes import FunctionPass, PassInfo, on_functions

_MOST_AXES = 64


def _with_size(var: Var, axis: int, size: int) -> Var:
    ty = var.type_annotation
    if not isinstance(ty, TensorType):
        raise TypeError(f"ChangeBatch: {var!r} must be stated as a tensor, got {ty}")
    if not -len(ty.shape) <= axis < len(ty.shape):
        raise ValueError(f"ChangeBatch: {var!r} of type {ty} has no axis {axis}")
    shape = list(ty.shape)
    shape[axis] = size
    return Var(var.name, TensorType(tuple(shape), ty.dtype), var.span)


def ChangeBatch(data: Mapping[Var, int], batch_size: int = 16) -> FunctionPass:  # noqa: N802
    """Functions whose parameters have another batch: `data` says along which axis each has one.

    All other types are inferred anew, so the program must not state the batch elsewhere.

    Raises TypeError for `data` that is no dict of variables, and what is no integer.
    """
    check_type("ChangeBatch: data", data, Mapping, "a dict of axes by variable")
    size = checked_integer("ChangeBatch: batch_size", batch_size, 0)
    new: dict[Expr, Expr] = {}
    for var, axis in data.items():
        check_type("ChangeBatch: what has a batch", var, Var, "a variable")
        new[var] = _with_size(var, checked_integer("ChangeBatch: axis", axis, -_MOST_AXES), size)

    def change(function: Function, mod: IRModule, context: TvmPassContext) -> Function:
        def without_types(old: Expr, node: Expr) -> Expr:
            return node if node.checked_type is None else replace(node, checked_type=None)

        out = rewrite(replace(function, ret_type=None), without_types, dict(new))
        assert isinstance(out, Function)
        return out

    return FunctionPass(on_functions(change), PassInfo("ChangeBatch"))
