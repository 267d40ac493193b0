"""Whether a program's variables are bound as Relay wants them."""

from __future__ import annotations

from .adt import Match, pattern_vars
from .ast import Expr, Function, IRModule, Let, Var, children


def well_formed(expr: Expr | IRModule) -> bool:
    """Each variable is bound once at most, and used where it is bound; free ones may be used.

    A node that is shared counts once, where it is met first.
    """
    roots = list(expr.functions.values()) if isinstance(expr, IRModule) else [expr]
    return all(map(_well_formed, roots))


def _well_formed(root: Expr) -> bool:
    bound: set[Var] = set()  # wherever
    open_: set[Var] = set()  # where the walk is
    free: set[Var] = set()
    seen: set[Expr] = set()
    # ("visit", node), ("bind", variable), ("close", variable); the last is next.
    stack: list[tuple[str, Expr]] = [("visit", root)]
    while stack:
        what, node = stack.pop()
        if isinstance(node, Var):
            if what == "close":
                open_.discard(node)
            elif what == "bind":
                if node in bound or node in free:
                    return False
                bound.add(node)
                open_.add(node)
            elif node not in open_:
                if node in bound:
                    return False
                free.add(node)
        elif node not in seen:
            seen.add(node)
            if isinstance(node, Let):
                stack += [
                    ("close", node.var), ("visit", node.body), ("bind", node.var),
                    ("visit", node.value),
                ]  # fmt: skip
            elif isinstance(node, Function):
                stack += [("close", param) for param in node.params]
                stack.append(("visit", node.body))
                stack += [("bind", param) for param in node.params]
            elif isinstance(node, Match):
                for clause in reversed(node.clauses):
                    own = pattern_vars(clause.lhs)
                    stack += [("close", var) for var in own]
                    stack.append(("visit", clause.rhs))
                    stack += [("bind", var) for var in own]
                stack.append(("visit", node.data))
            else:
                stack += [("visit", child) for child in reversed(children(node))]
    return True
