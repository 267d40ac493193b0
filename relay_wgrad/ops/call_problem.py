"""A call of the convolution family as a ConvProblem: the one place that reads it."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.ir import Op

from ..layouts import is_permutation, to_layout
from ..opdef import OpDef
from ..problem import ROLES, ConvProblem
from ..relation import as_size
from ..rules import Size
from . import FAMILY


def family_def(expr: Any) -> OpDef | None:
    """The OpDef of a call of the family, None for anything else."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, Op):
        return FAMILY.get(str(expr.op.name))
    return None


def problem_of(call: relax.Call) -> ConvProblem:
    """The problem that a call of the family solves.

    Sizes are ints where they are known, symbolic expressions elsewhere.

    Raises
    ------
    ValueError : for a call of another op, a blocked layout, an operand of unknown shape or dtype.
    """
    definition = family_def(call)
    if definition is None or definition.kind is None or definition.read_attrs is None:
        raise ValueError(f"not a call of the convolution family: {call}")
    a = definition.read_attrs(call)
    layouts = {"data": a.data_layout, "weight": a.kernel_layout, "grad": a.grad_layout}
    first, second, result = ROLES[definition.kind]
    types = {first: call.args[0].ty, second: call.args[1].ty, result: call.ty}
    sizes: dict[str, tuple[Size, ...]] = {}
    for role, ty in types.items():
        canonical = a.kernel if role == "weight" else a.activation
        if not is_permutation(layouts[role], canonical):
            raise ValueError(f"{definition.short}: {role} has the blocked layout {layouts[role]}")
        known = isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)
        if not known or ty.dtype is None:
            raise ValueError(f"{definition.short}: shape or dtype of {role} is unknown: {ty}")
        values = [as_size(v) for v in ty.shape.values]
        sizes[role] = to_layout(values, layouts[role], canonical)
    return ConvProblem.from_shapes(
        definition.kind, sizes["data"], sizes["weight"],
        strides=a.strides, padding=a.padding, dilation=a.dilation, groups=a.groups,
        data_layout=a.data_layout, kernel_layout=a.kernel_layout, grad_layout=a.grad_layout,
        data_dtype=str(types["data"].dtype), weight_dtype=str(types["weight"].dtype),
        grad_dtype=str(types["grad"].dtype),
    )  # fmt: skip
