"""Which nodes of a function become one kernel: Relay 0.19's rules of fusion.

A node may be fused with its immediate post-dominator, the nearest node that all its uses lead to,
if all between them may be.  What may follow what is said by the kinds in `ops.facts`.

Phases: 0 what ends in an element-wise operator or a reduction, 1 shapes and tuples, 2 what feeds
the tuples that phase 1 fused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..ast import Call, Constant, Expr, Function, If, Let, Op, Tuple, TupleGetItem, children
from ..iterative_walks import order
from ..op.registration import get_attr
from ..records.facts import OpPattern
from ..types import TensorType, TupleType
from .user_hooks import is_kernel

# Constants of no axes and these dtypes are written into the kernel.
_SIMPLE = frozenset(["int32", "int64", "float32", "float64", "bool"])


@dataclass(eq=False)
class Node:
    """A node of the program, who uses it and how, and the group that it is in."""

    expr: Expr
    index: int = -1
    kind: int = OpPattern.OPAQUE
    outside: bool = False  # whether something that is never fused uses it
    users: list[tuple[Node, int]] = field(default_factory=list)
    # Its immediate post-dominator, how deep that lies, and the most complex kind on the way there.
    parent: Node | None = None
    depth: int = 1
    path: int = OpPattern.OPAQUE
    # The group: a tree of nodes, whose root gives the result.
    into: Node | None = None
    size: int = 1
    group_kind: int = OpPattern.OPAQUE
    anchor: bool = False

    def root(self) -> Node:
        """The node whose value the group gives."""
        root = self
        while root.into is not None:
            root = root.into
        node = self
        while node.into is not None and node.into is not root:
            node.into, node = root, node.into
        return root


def groups(function: Function, opt_level: int, most: int) -> dict[Expr, Node]:
    """The node of each expression, with its group; a group has at most `most` nodes.

    With `opt_level` 0 each operator is alone.  Needs types.
    """
    nodes = _graph(function)
    for node in nodes.values():
        node.group_kind, node.anchor = node.kind, node.kind == OpPattern.OUT_ELEMWISE_FUSABLE
    ordered = sorted((n for n in nodes.values() if n.index >= 0), key=lambda n: n.index)
    if opt_level > 0:
        for node in reversed(ordered):
            _find_parent(node)
        for phase in range(3):
            for node in ordered:
                _fuse(node, phase, most)
    return nodes


# ---- the graph -----------------------------------------------------------------------------------


def _graph(function: Function) -> dict[Expr, Node]:
    nodes: dict[Expr, Node] = {}

    def at(expr: Expr) -> Node:
        if expr not in nodes:
            nodes[expr] = Node(expr)
        return nodes[expr]

    at(function).outside = True
    count = 0
    for expr in order(function, lambda n: () if is_kernel(n) else children(n)):
        node = at(expr)
        node.index, count = count, count + 1
        node.kind = _kind(expr)
        for child, kind in _uses(expr, node.kind):
            if kind is None:
                at(child).outside = True
            else:
                at(child).users.append((node, kind))
    return nodes


def _kind(expr: Expr) -> int:
    if isinstance(expr, Constant):
        simple = expr.data.ndim == 0 and str(expr.data.dtype) in _SIMPLE
        return OpPattern.ELEMWISE if simple else OpPattern.OPAQUE
    if isinstance(expr, Call) and isinstance(expr.op, Op):
        found = get_attr(expr.op.name, "TOpPattern")
        return OpPattern.OPAQUE if found is None else int(found)
    if isinstance(expr, Tuple):
        return OpPattern.TUPLE
    if isinstance(expr, TupleGetItem) and _of_tensors(expr.tuple_value):
        return OpPattern.INJECTIVE
    return OpPattern.OPAQUE


def _of_tensors(expr: Expr) -> bool:
    ty = expr.checked_type
    return isinstance(ty, TupleType) and all(isinstance(f, TensorType) for f in ty.fields)


def _uses(expr: Expr, kind: int) -> list[tuple[Expr, int | None]]:
    """What an expression uses, and the kind of the use; None if nothing is fused through it."""
    if isinstance(expr, Call):
        uses: list[tuple[Expr, int | None]] = [(expr.op, None)]
        for arg in expr.args:
            same = kind == OpPattern.BROADCAST and _shape(arg) == _shape(expr) is not None
            uses.append((arg, OpPattern.ELEMWISE if same else kind))
        return uses
    if isinstance(expr, Tuple):
        return [
            (f, OpPattern.INJECTIVE if isinstance(f.checked_type, TensorType) else None)
            for f in expr.fields
        ]
    if isinstance(expr, TupleGetItem):
        return [(expr.tuple_value, kind if kind == OpPattern.INJECTIVE else None)]
    if isinstance(expr, (Let, If, Function)) and not is_kernel(expr):
        return [(child, None) for child in children(expr)]
    return []


def _shape(expr: Expr) -> object:
    ty = expr.checked_type
    return ty.shape if isinstance(ty, TensorType) else None


# ---- post-dominators -----------------------------------------------------------------------------


def _find_parent(node: Node) -> None:
    """Of a node whose users have theirs."""
    if node.outside or not node.users:
        return
    node.path = OpPattern.ELEMWISE
    parent: Node | None = node.users[0][0]
    node.path = max(node.path, node.users[0][1])
    for user, kind in node.users[1:]:
        left, right = parent, user  # type: tuple[Node | None, Node | None]
        kinds = [node.path, kind]
        while left is not right:
            if left is None or right is None:
                left = None
                break
            a, b = left, right
            if a.depth <= b.depth:
                kinds.append(b.path)
                right = b.parent
            if b.depth <= a.depth:
                kinds.append(a.path)
                left = a.parent
        parent, node.path = left, max(kinds)
    node.parent = parent
    node.depth = parent.depth + 1 if parent is not None else 1


# ---- fusion --------------------------------------------------------------------------------------


def _fuse(node: Node, phase: int, most: int) -> None:
    kind, sink = node.group_kind, node.parent
    if kind == OpPattern.OPAQUE or sink is None:
        return
    between = _between(node, sink)
    if sink.root().size + sum(n.size for n in between) > most:
        return
    if phase == 2:
        root = sink.root()
        fused_tuple = sink.group_kind == OpPattern.TUPLE and root.group_kind <= OpPattern.INJECTIVE
        if kind <= OpPattern.INJECTIVE and fused_tuple and _path(node, sink, _injective):
            _merge(between, sink)
        return
    if node.root() is sink.root() or sink.group_kind == OpPattern.TUPLE:
        return
    for applies, condition in _RULES[phase]:
        if applies(kind, node.path):
            if _path(node, sink, condition):
                _merge(between, sink)
            return


Condition = Callable[[int, bool], bool]  # (a group's kind, whether it is where the path ends)


def _broadcast(kind: int, last: bool) -> bool:
    return kind <= OpPattern.BROADCAST


def _injective(kind: int, last: bool) -> bool:
    return kind <= OpPattern.INJECTIVE


def _to_anchor(kind: int, last: bool) -> bool:
    """What ends in an injective operator, a reduction, or a convolution's epilogue."""
    ends = (OpPattern.COMM_REDUCE, OpPattern.OUT_ELEMWISE_FUSABLE)
    return kind <= OpPattern.INJECTIVE or (last and kind in ends)


def _is_anchor(kind: int, path: int) -> bool:
    return kind == OpPattern.OUT_ELEMWISE_FUSABLE and path == OpPattern.ELEMWISE


def _is_broadcast(kind: int, path: int) -> bool:
    return kind <= OpPattern.BROADCAST and path <= OpPattern.COMM_REDUCE


def _is_injective(kind: int, path: int) -> bool:
    return kind in (OpPattern.INJECTIVE, OpPattern.TUPLE)


# phase -> (which nodes, by their kind and that of the way to the sink, what all on the way must be)
_RULES: Sequence[Sequence[tuple[Callable[[int, int], bool], Condition]]] = (
    ((_is_anchor, _broadcast), (_is_broadcast, _to_anchor)),
    ((_is_broadcast, _to_anchor), (_is_injective, _injective)),
)


def _between(node: Node, sink: Node) -> list[Node]:
    """The node and all that lies on its ways to the sink, without that."""
    found = list(order(node, lambda n: [u for u, _ in n.users if u is not sink]))
    return found[::-1]


def _path(node: Node, sink: Node, condition: Condition) -> bool:
    on_the_way = [n for n in _between(node, sink) if n is not node]
    return condition(sink.root().group_kind, True) and all(
        condition(n.root().group_kind, False) for n in on_the_way
    )


def _merge(nodes: Sequence[Node], sink: Node) -> None:
    for node in nodes:
        child, parent = node.root(), sink.root()
        if child is parent:
            continue
        parent.size += child.size
        child.into = parent
        if child.anchor:
            assert not parent.anchor, "one kernel would have two convolutions"
            parent.anchor = True
            parent.group_kind = max(parent.group_kind, child.group_kind)
