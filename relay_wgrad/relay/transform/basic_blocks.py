"""Basic block normal form: what several branches or functions need is bound around them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ..ast import Expr, Function, GlobalVar, If, Let, Op, Var, children
from ..iterative_walks import run
from ..rewrite import with_children
from ..scopes import Block, Blocks, blocks
from .user_hooks import is_kernel


def to_basic_block_normal_form(function: Function) -> Function:
    """The function with a `let` for each value that several blocks need, in the one around them.

    All other values stay where they are.
    """
    while True:
        found = blocks(function, is_kernel)
        out = run(_Filler(found).function(function))
        assert isinstance(out, Function)
        # A value that is bound is evaluated sooner, and with it what it needs: another value may so
        # come to be needed in an inner block first.
        if not found.lifted:
            return out
        function = out


@dataclass
class _Filler:
    """Rebuilds nodes, and binds the chosen ones in their blocks."""

    blocks: Blocks
    known: dict[Expr, Expr] = field(default_factory=dict)

    def function(self, node: Function) -> Any:
        if is_kernel(node):
            return node
        block = self.blocks.within[node][0]
        body = self._closed(block, (yield self._value(node.body, None)))
        return replace(node, body=body)

    def _closed(self, block: Block, result: Expr) -> Expr:
        for var, value in reversed(block.bindings):
            assert isinstance(var, Var)
            result = Let(var, value, result)
        return result

    def _value(self, node: Expr, var: Var | None) -> Any:
        """What stands for a node: a variable, if it is bound as `var` or because it is chosen."""
        if node in self.known:
            if var is not None:
                self.blocks.of[node].bindings.append((var, self.known[node]))
            return self.known[node]
        if isinstance(node, (Var, GlobalVar, Op)):
            out: Expr = node if var is None else self._bound(node, node, var)
        else:
            made = yield self._rebuilt(node)
            out = made
            if var is not None or node in self.blocks.lifted:
                out = self._bound(node, made, var or Var("x", node.checked_type))
        self.known[node] = out
        return out

    def _bound(self, node: Expr, value: Expr, var: Var) -> Var:
        bindings = self.blocks.of[node].bindings
        while isinstance(value, Let):
            bindings.append((value.var, value.value))
            value = value.body
        bindings.append((var, value))
        return var

    def _rebuilt(self, node: Expr) -> Any:
        within = self.blocks.within[node]
        if isinstance(node, Function):
            return (yield self.function(node))
        if isinstance(node, If):
            cond = yield self._value(node.cond, None)
            true = self._closed(within[0], (yield self._value(node.true_branch, None)))
            false = self._closed(within[1], (yield self._value(node.false_branch, None)))
            return replace(node, cond=cond, true_branch=true, false_branch=false)
        if isinstance(node, Let):
            return (yield self._let(node))
        new: dict[Expr, Expr] = {}
        for child in children(node):
            new[child] = yield self._value(child, None)
        return with_children(node, new)

    def _let(self, node: Let) -> Any:
        first: Expr = node
        lets: list[Block] = []
        body: Expr = node
        while isinstance(body, Let) and (body is first or not self._stops(body)):
            lets.append(self.blocks.within[body][0])
            yield self._value(body.value, body.var)
            body = body.body
        out = yield self._value(body, None)
        for block in reversed(lets):
            out = self._closed(block, out)
        return out

    def _stops(self, node: Expr) -> bool:
        """Whether a `let` within a chain of them has a form of its own."""
        return node in self.known or node in self.blocks.lifted
