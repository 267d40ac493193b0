"""`if` in Relax: each branch is a function, and so is the choice, which stays one call.

Relax allows no `if` in a dataflow block, and passes work on whole blocks: so a caller keeps its one
block, and so do the branches.  What a branch uses of its surroundings are its parameters.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from .types import FuncType, Type, all_dims, below


class Captured:
    """Parameters for the values around a branch that it uses."""

    def __init__(self) -> None:
        self.params: dict[relax.Var, relax.Var] = {}  # of the value outside: the parameter

    def parameter(self, outside: Any) -> Any:
        """What stands for a value within the branch."""
        if not isinstance(outside, relax.Var):
            return outside  # a constant
        if outside not in self.params:
            self.params[outside] = relax.Var(f"{outside.name}_in", outside.ty)
        return self.params[outside]


Branch = tuple[Any, list[Any]]  # a function's variable, and what its arguments are outside


def write_choice(
    home: relax.BlockBuilder,
    name: str,
    condition: Any,
    true: Branch,
    false: Branch,
) -> Any:
    """The call that gives the one branch's value or the other's."""
    outside = list(dict.fromkeys([*true[1], *false[1]]))
    inside = {var: relax.Var(f"{var.name}_in", var.ty) for var in outside}
    chosen = relax.Var("chosen", condition.ty)

    def branch(made: Branch) -> Any:
        block = relax.BlockBuilder()
        var, args = made
        with block.function("branch", []):
            out = block.emit(relax.Call(var, [inside[arg] for arg in args]))
            block.emit_func_output(out)
        return block.get()["branch"].body

    builder = relax.BlockBuilder()
    with builder.function("choice", [chosen, *inside.values()], private=True):
        out = builder.emit(relax.If(chosen, branch(true), branch(false)))
        builder.emit_func_output(out)
    var = home.add_func(builder.get()["choice"], name)
    return relax.Call(var, [condition, *outside])


def are_known(types: list[Type]) -> bool:
    """Whether all sizes are numbers, and none is a function's."""
    return all(
        not isinstance(ty, FuncType)
        and all(isinstance(dim, int) for dim in all_dims(ty))
        and are_known(list(below(ty)))
        for ty in types
    )


def is_static(value: Any) -> bool:
    """Whether all sizes of a Relax value are numbers."""
    return _is_static_type(value.ty)


def _is_static_type(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(map(_is_static_type, ty.fields))
    shape = getattr(ty, "shape", None)
    return isinstance(shape, relax.ShapeExpr) and all(
        isinstance(size, tirx.IntImm) for size in shape.values
    )
