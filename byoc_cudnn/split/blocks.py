"""Functions as lists of blocks of bindings: who uses what, and how to write some of them anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tvm import relax

Block: TypeAlias = Any  # relax.BindingBlock
Rewrite = Callable[[Block], "list[relax.Binding] | None"]


def blocks_of(body: relax.Expr) -> Iterator[Block]:
    """The blocks of a function's body and of the branches in it, in program order."""
    if not isinstance(body, relax.SeqExpr):
        return
    for block in body.blocks:
        yield block
        if isinstance(block, relax.DataflowBlock):
            continue  # no branch can stand in it
        for binding in block.bindings:
            value = binding.value if isinstance(binding, relax.VarBinding) else None
            if isinstance(value, relax.If):
                yield from blocks_of(value.true_branch)
                yield from blocks_of(value.false_branch)


def rewrite_blocks(func: relax.Function, rewrite: Rewrite) -> relax.Function:
    """The function with each block's bindings replaced by what `rewrite` gives for the block.

    None keeps a block; bindings of branches are looked for among the block's new ones.  Variables
    that other blocks use must be bound in the same block as before, with their types.
    """
    body = _rewrite(func.body, rewrite)
    if body is func.body:
        return func
    return relax.Function(list(func.params), body, func.ret_ty, func.is_pure, func.attrs, func.span)


def _rewrite(body: relax.Expr, rewrite: Rewrite) -> relax.Expr:
    if not isinstance(body, relax.SeqExpr):
        return body
    blocks, changed = [], False
    for block in body.blocks:
        bindings = rewrite(block)
        is_new = bindings is not None
        if bindings is None:
            bindings = list(block.bindings)
        if not isinstance(block, relax.DataflowBlock):
            for i, binding in enumerate(bindings):
                branch = _rewrite_branches(binding, rewrite)
                if branch is not binding:
                    bindings[i], is_new = branch, True
        if is_new:
            block = (
                relax.DataflowBlock(bindings, block.span)
                if isinstance(block, relax.DataflowBlock)
                else relax.BindingBlock(bindings, block.span)
            )
        changed |= is_new
        blocks.append(block)
    if not changed:
        return body
    return _typed(relax.SeqExpr(blocks, body.body, body.span), body.ty)


def _rewrite_branches(binding: relax.Binding, rewrite: Rewrite) -> relax.Binding:
    value = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(value, relax.If):
        return binding
    branches = [value.true_branch, value.false_branch]
    new = [_rewrite(branch, rewrite) for branch in branches]
    if all(a is b for a, b in zip(new, branches, strict=True)):
        return binding
    return relax.VarBinding(binding.var, _typed(relax.If(value.cond, *new, value.span), value.ty))


def _typed(expr: relax.Expr, ty: Any) -> relax.Expr:
    relax.expr._update_type(expr, ty)
    return expr


@dataclass
class Uses:
    """Where each variable of a function is bound and used.

    `users` : variable -> the bindings that use it, each once.  `outside` : variables that are used
    elsewhere too, as a function's result or within a branch or a local function.  `makers` : what
    binds a variable.  `block` : the block in which it is bound, by its place in `blocks_of`.
    """

    users: dict[relax.Var, list[relax.Binding]] = field(default_factory=dict)
    outside: set[relax.Var] = field(default_factory=set)
    makers: dict[relax.Var, relax.Binding] = field(default_factory=dict)
    block: dict[relax.Var, int] = field(default_factory=dict)

    def sole_user(self, var: relax.Var) -> relax.Binding | None:
        """The only binding that uses a variable, if it stands in the same block."""
        users = self.users.get(var, [])
        if len(users) != 1 or var in self.outside:
            return None
        return users[0] if self.block.get(users[0].var) == self.block[var] else None

    def sole_pair(self, var: relax.Var) -> tuple[relax.Binding, relax.Binding] | None:
        """The only two bindings that use a variable, if only the second uses the first, in one
        block."""
        users = self.users.get(var, [])
        if len(users) != 2 or var in self.outside:
            return None
        for first, second in (users, users[::-1]):
            here = self.block.get(first.var) == self.block[var]
            if here and self.sole_user(first.var) is second:
                return first, second
        return None

    def describe(self, var: relax.Var) -> str:
        """Names of what uses a variable, for a reason."""
        names = [binding.var.name for binding in self.users.get(var, [])]
        names += ["the function's result or another block"] if var in self.outside else []
        return ", ".join(names)


def uses_of(func: relax.Function) -> Uses:
    """All uses in one walk over the function."""
    uses = Uses()
    for number, block in enumerate(blocks_of(func.body)):
        for binding in block.bindings:
            uses.makers[binding.var] = binding
            uses.block[binding.var] = number
            value = binding.value
            if isinstance(value, relax.If | relax.Function):
                uses.outside |= set(relax.analysis.free_vars(value))
                if isinstance(value, relax.If):
                    for branch in (value.true_branch, value.false_branch):
                        uses.outside |= set(_leaves(getattr(branch, "body", branch)))
                continue
            for var in dict.fromkeys(_leaves(value)):
                uses.users.setdefault(var, []).append(binding)
    uses.outside |= set(_leaves(getattr(func.body, "body", func.body)))
    return uses


def _leaves(expr: Any) -> list[relax.Var]:
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.Call):
        return [var for arg in expr.args for var in _leaves(arg)]
    if isinstance(expr, relax.Tuple):
        return [var for item in expr.fields for var in _leaves(item)]
    if isinstance(expr, relax.TupleGetItem):
        return _leaves(expr.tuple_value)
    return []
