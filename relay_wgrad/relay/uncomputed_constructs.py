"""What is read, typed and printed, and has no computation here: data types and references."""

from __future__ import annotations

from collections.abc import Iterable

from .adt import Constructor, Match
from .ast import Expr, post_order
from .errors import UnsupportedConstructError
from .references import RefCreate, RefRead, RefWrite

_CONSTRUCTS = {
    Match: "algebraic data types (`match`)",
    Constructor: "algebraic data types (constructors)",
    RefCreate: "references (`ref`)",
    RefRead: "references (`ref_read`)",
    RefWrite: "references (`ref_write`)",
}


def unsupported_construct(where: str, node: Expr) -> UnsupportedConstructError | None:
    """The error of a node that nothing computes; None for any other."""
    construct = _CONSTRUCTS.get(type(node))
    if construct is None:
        return None
    place = f" ({node.span})" if node.span is not None else ""
    return UnsupportedConstructError(construct, f"{where}: not supported: {construct}{place}")


def check_computable(where: str, roots: Iterable[Expr]) -> None:
    """Raises UnsupportedConstructError for a program that has data types or references."""
    for root in roots:
        for node in post_order(root):
            error = unsupported_construct(where, node)
            if error is not None:
                raise error
