"""What kinds of nodes a program has."""

from __future__ import annotations

from collections import Counter
from enum import IntEnum

from .adt import Constructor, Match
from .ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    Op,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)


class Feature(IntEnum):
    """A kind of node, or a way in which nodes are put together; the numbers are Relay's."""

    fVar = 0  # noqa: N815
    fGlobalVar = 1  # noqa: N815
    fConstant = 2  # noqa: N815
    fTuple = 3  # noqa: N815
    fTupleGetItem = 4  # noqa: N815
    fFunction = 5  # noqa: N815
    fOp = 6  # noqa: N815
    fCall = 7  # noqa: N815
    fLet = 8  # noqa: N815
    fIf = 9  # noqa: N815
    fRefCreate = 10  # noqa: N815
    fRefRead = 11  # noqa: N815
    fRefWrite = 12  # noqa: N815
    fConstructor = 13  # noqa: N815
    fMatch = 14  # noqa: N815
    fGraph = 15  # noqa: N815  a node that is no leaf has several users
    fLetRec = 16  # noqa: N815  a `let` binds a function that calls it


_KINDS: dict[type, Feature] = {
    Var: Feature.fVar, GlobalVar: Feature.fGlobalVar, Constant: Feature.fConstant,
    Tuple: Feature.fTuple, TupleGetItem: Feature.fTupleGetItem, Function: Feature.fFunction,
    Op: Feature.fOp, Call: Feature.fCall, Let: Feature.fLet, If: Feature.fIf,
    RefCreate: Feature.fRefCreate, RefRead: Feature.fRefRead, RefWrite: Feature.fRefWrite,
    Constructor: Feature.fConstructor, Match: Feature.fMatch,
}  # fmt: skip
_LEAVES = (Var, GlobalVar, Constant, Op, Constructor)


def detect_feature(a: Expr | IRModule, b: IRModule | None = None) -> set[Feature]:
    """The features of an expression, of a module's functions, or of both."""
    found: set[Feature] = set()
    for part in (a, b):
        if isinstance(part, IRModule):
            for function in part.functions.values():
                found |= _features(function)
        elif part is not None:
            found |= _features(part)
    return found


def _features(expr: Expr) -> set[Feature]:
    nodes = list(post_order(expr))
    found = {_KINDS[type(node)] for node in nodes}
    uses = Counter(child for node in nodes for child in children(node))
    if any(count > 1 for node, count in uses.items() if not isinstance(node, _LEAVES)):
        found.add(Feature.fGraph)
    lets = (node for node in nodes if isinstance(node, Let))
    if any(let.var in set(post_order(let.value)) for let in lets):
        found.add(Feature.fLetRec)
    return found
