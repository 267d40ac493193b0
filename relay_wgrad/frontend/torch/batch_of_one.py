"""Whether an open batch may be one image: what a module computes of it, and of several.

`torch.export` takes an open size for 2 or more while it traces, and writes no guard: a branch of
Python on a batch of 1, and what `squeeze` makes of an axis of 1, are lost without a trace.  So the
module is exported for one image too, and both programs must be the same ops of the same operands.
"""

from __future__ import annotations

from typing import Any

from .batch import is_symbolic
from .names import op_of

EXPORTED = (
    "torch.export takes 2 or more for granted, and does not say what the module does with 1:"
    " pass the module itself"
)
"""Why an exported program of an open batch has 2 images at least."""
# Where these give the shape that they are given, they give the same values.
_SAME_SHAPE = frozenset(
    ("_reshape_alias", "_unsafe_view", "alias", "broadcast_to", "clone", "contiguous",
     "expand", "expand_as", "flatten", "narrow", "repeat", "reshape", "slice", "tile",
     "view", "view_as")
)  # fmt: skip
_SLICE = "slice.Tensor"
_CHECKS = ("_assert", "sym_constrain_range")
_NUMBERS = {"SymInt": int, "SymFloat": float, "SymBool": bool}


def difference(torch: Any, many: Any, one: Any) -> str:
    """What the program of one image has that the program of several has not; "" for nothing."""
    same: dict[Any, Any] = {}  # a node of either -> what it is in the second
    ours, theirs = (_steps(program, same) for program in (many, one))
    for a, b in zip(ours, theirs, strict=False):
        if not _equal(a, b, same):
            other = f"{_text(a)}{' of other operands' if a.target == b.target else ''}"
            return f"of one image the module computes {_text(b)}, of more {other}"
        same[a] = b
    if len(ours) != len(theirs):
        longer = max(ours, theirs, key=len)
        more = "several images" if longer is ours else "one image"
        return f"of {more} alone the module computes {_text(longer[min(len(ours), len(theirs))])}"
    for name, value in many.constants.items():
        other = one.constants.get(name)
        if isinstance(value, torch.Tensor) and not (
            isinstance(other, torch.Tensor) and torch.equal(value, other)
        ):
            return f"of one image the module's constant {name} is another"
    return ""


def _steps(program: Any, same: dict[Any, Any]) -> list[Any]:
    """The nodes of a graph that compute a tensor; others become the node that they give back."""
    kept = []
    for node in program.graph.nodes:
        if is_symbolic(node.meta.get("val")) or op_of(node).startswith(_CHECKS):
            continue
        if _gives_back(node):
            same[node] = same.get(node.args[0], node.args[0])
        else:
            kept.append(node)
    return kept


def _gives_back(node: Any) -> bool:
    is_view = op_of(node).partition(".")[0] in _SAME_SHAPE
    return is_view and _is_node(node.args[0]) and _types(node.args[0]) == _types(node)


def _equal(a: Any, b: Any, same: dict[Any, Any]) -> bool:
    if a.op != b.op or a.op == "get_attr" or _types(a) != _types(b):
        return False
    named = a.name == b.name if a.op == "placeholder" else a.target == b.target
    return named and _operands(_arguments(a), _arguments(b), same)


def _arguments(node: Any) -> Any:
    """A node's operands; of a slice with the bounds that it has, however they are given."""
    if op_of(node) != _SLICE:
        return (*node.args, node.kwargs)
    given: Any = (*node.args, *(0, None, None, 1)[len(node.args) - 1 :])
    x, axis, start, stop, step = given
    sizes, _ = _types(x)[0]
    start, stop = (_of_one(v.meta["val"]) if _is_node(v) else v for v in (start, stop))
    return (x, axis % len(sizes), slice(start, stop, step).indices(sizes[axis]))


def _operands(a: Any, b: Any, same: dict[Any, Any]) -> bool:
    if isinstance(a, (list, tuple)):
        is_list = isinstance(b, (list, tuple)) and len(a) == len(b)
        return is_list and all(_operands(x, y, same) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return [*a] == [*b] and all(_operands(a[key], b[key], same) for key in a)
    value = a.meta.get("val") if _is_node(a) else a
    if is_symbolic(value):
        return type(b) is _NUMBERS[type(value).__name__] and _of_one(value) == b
    if not _is_node(a):
        return type(a) is type(b) and bool(a == b)
    return _is_node(b) and _counterpart(a, same) is _counterpart(b, same)


def _counterpart(node: Any, same: dict[Any, Any]) -> Any:
    """What a node of either graph is in the second."""
    while node in same:
        node = same[node]
    return node


def _is_node(value: Any) -> bool:
    return hasattr(value, "op") and hasattr(value, "users")


def _text(node: Any) -> str:
    return f"{node.target} ({node.name})"


def _of_one(value: Any) -> Any:
    """A symbolic number for a batch of one, None where it is none."""
    expr = value.node.expr
    number = expr.subs(dict.fromkeys(expr.free_symbols, 1))
    known = number.is_number or number.is_Boolean
    return _NUMBERS[type(value).__name__](number) if known else None


def _types(node: Any) -> list[Any]:
    """Shape and dtype of each tensor that a node gives, for a batch of one."""
    value = node.meta.get("val")
    parts = value if isinstance(value, (list, tuple)) else [value]
    return [
        ([_of_one(s) if is_symbolic(s) else s for s in part.shape], part.dtype)
        for part in parts if hasattr(part, "shape")
    ]  # fmt: skip
