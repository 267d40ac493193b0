"""An expression as a graph: its nodes in order, who uses them, who dominates them.

A node B post-dominates A if every way from A to the result leads over B.
"""

from __future__ import annotations

from functools import cached_property

from ..ast import Expr, Function, Let, children
from ..iterative_walks import order


class Graph:
    """The nodes below an expression; `nodes` has them after their operands, `index` their place.

    A variable of a `let` stands after its value, which is its operand; a function's operand is its
    body.
    """

    def __init__(self, root: Expr) -> None:
        self.root = root
        self.nodes: list[Expr] = list(order(root, _visited))
        self.index: dict[Expr, int] = {node: i for i, node in enumerate(self.nodes)}

    @cached_property
    def inputs(self) -> dict[Expr, list[Expr]]:
        """What each node is computed from: earlier nodes (recursion's own variable is none)."""
        found: dict[Expr, list[Expr]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            pairs: list[tuple[Expr, Expr]]
            if isinstance(node, Let):
                pairs = [(node.var, node.value), (node, node.body)]
            elif isinstance(node, Function):
                pairs = [(node, node.body)]
            else:
                pairs = [(node, child) for child in children(node)]
            for user, operand in pairs:
                if self.index[operand] < self.index[user]:
                    found[user].append(operand)
        return found

    @cached_property
    def users(self) -> dict[Expr, list[Expr]]:
        """What is computed from each node."""
        found: dict[Expr, list[Expr]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand in self.inputs[node]:
                found[operand].append(node)
        return found

    @cached_property
    def _tree(self) -> tuple[list[int], list[int], list[int]]:
        """The tree of dominators by index: parent, a jump far up, depth.

        Jumps make the way from a node to any of its ancestors a logarithmic number of steps.
        """
        count = len(self.nodes)
        parent, jump, depth = [count] * (count + 1), [count] * (count + 1), [0] * (count + 1)
        # `count` stands above all: what has no user, and what joins only there.
        for i in range(count - 1, -1, -1):
            over = [self.index[user] for user in self.users[self.nodes[i]]]
            above = over[0] if over else count
            for other in over[1:]:
                above = _meet(above, other, parent, jump, depth)
            parent[i], depth[i] = above, depth[above] + 1
            far = jump[above]
            even = depth[above] - depth[far] == depth[far] - depth[jump[far]]
            jump[i] = jump[far] if even else above
        return parent, jump, depth

    def dominates(self, above: Expr, below: Expr) -> bool:
        """Whether every way from `below` to the result leads over `above`, another node."""
        parent, jump, depth = self._tree
        at, goal = self.index[below], self.index[above]
        if at == goal:
            return False
        while depth[at] > depth[goal]:
            at = jump[at] if depth[jump[at]] >= depth[goal] else parent[at]
        return at == goal


def _meet(a: int, b: int, parent: list[int], jump: list[int], depth: list[int]) -> int:
    """The lowest common ancestor."""
    while depth[a] > depth[b]:
        a = jump[a] if depth[jump[a]] >= depth[b] else parent[a]
    while depth[b] > depth[a]:
        b = jump[b] if depth[jump[b]] >= depth[a] else parent[b]
    while a != b:
        a, b = (jump[a], jump[b]) if jump[a] != jump[b] else (parent[a], parent[b])
    return a


def _visited(node: Expr) -> tuple[Expr, ...]:
    # A `let`'s value before its variable.
    return (node.value, node.var, node.body) if isinstance(node, Let) else children(node)
