"""The block in which each value is computed: a body of a function or a `let`, an `if`'s branch.

A value that two blocks need belongs to the innermost block around both.  If the first of them, in
the order of evaluation, is another one, then the value is lifted out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from .ast import Expr, Function, GlobalVar, If, Let, Op, children
from .iterative_walks import order


@dataclass(eq=False)
class Block:
    """`around` is the block that it stands in; `bindings` is for who fills it."""

    around: Block | None = None
    bindings: list[tuple[Expr, Expr]] = field(default_factory=list)
    depth: int = field(init=False)

    def __post_init__(self) -> None:
        self.depth = 0 if self.around is None else self.around.depth + 1


@dataclass(frozen=True)
class Blocks:
    """Of each node its block; the blocks within one; the nodes that are lifted out of one."""

    of: dict[Expr, Block]
    within: dict[Expr, tuple[Block, ...]]
    lifted: set[Expr]


def blocks(root: Expr, whole: Callable[[Expr], bool] = lambda node: False) -> Blocks:
    """The blocks below an expression, which itself stands in the outermost.

    Nothing is asked of what is below a node that is `whole`.
    """

    def below(node: Expr) -> tuple[Expr, ...]:
        return () if whole(node) else children(node)

    edges = list(_edges(root, below))
    users: dict[Expr, list[tuple[Expr, int]]] = {root: []}
    for user, index, child in edges:
        users.setdefault(child, []).append((user, index))
    of: dict[Expr, Block] = {}
    within: dict[Expr, tuple[Block, ...]] = {}
    lifted: set[Expr] = set()
    for node in reversed(list(order(root, below))):  # all users of a node come before it
        found = [_block(user, index, of, within) for user, index in users[node]] or [Block()]
        common = found[0]
        for block in found[1:]:
            common = _common(common, block)
        of[node] = common
        if common is not found[0] and not isinstance(node, (Op, GlobalVar)):
            lifted.add(node)
        within[node] = tuple(Block(common) for _ in range(_count(node)))
    return Blocks(of, within, lifted)


def _edges(
    root: Expr, below: Callable[[Expr], tuple[Expr, ...]]
) -> Iterator[tuple[Expr, int, Expr]]:
    """(user, which of its children, child), in the order in which operands are evaluated."""
    seen = {root}
    stack = [(root, iter(enumerate(below(root))))]
    closing: list[tuple[Expr, int, Expr] | None] = [None]
    while stack:
        node, rest = stack[-1]
        step = next(rest, None)
        if step is None:
            stack.pop()
            edge = closing.pop()
            if edge is not None:
                yield edge
            continue
        index, child = step
        if child in seen:
            yield (node, index, child)
            continue
        seen.add(child)
        stack.append((child, iter(enumerate(below(child)))))
        closing.append((node, index, child))


def _count(node: Expr) -> int:
    return {Let: 1, Function: 1, If: 2}.get(type(node), 0)


def _block(
    user: Expr, index: int, of: dict[Expr, Block], within: dict[Expr, tuple[Block, ...]]
) -> Block:
    """The block of one child of a node."""
    if isinstance(user, If):
        return of[user] if index == 0 else within[user][index - 1]
    return within[user][0] if isinstance(user, (Let, Function)) else of[user]


def _common(a: Block, b: Block) -> Block:
    while a is not b:
        if a.depth >= b.depth:
            assert a.around is not None
            a = a.around
        else:
            assert b.around is not None
            b = b.around
    return a


def check_basic_block_normal_form(expr: Expr) -> None:
    """Whether blocks share only what a `let` or a parameter around them binds.

    Raises ValueError, with the first value that is to be lifted, if they share another one.
    """
    found = blocks(expr)
    if found.lifted:
        first = next(node for node in found.of if node in found.lifted)
        raise ValueError(
            f"not in basic block normal form: several branches or functions need {first!r}, which"
            " no `let` around them binds"
        )
