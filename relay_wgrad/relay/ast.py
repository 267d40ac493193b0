"""Relay's expressions: a light, immutable syntax tree that shares nodes.

A node is itself: two nodes are equal only when they are one object, and a node that has several
parents is computed once (the text's graph variables, `%0`).  `structural_equal` compares what two
nodes mean.  Nothing here recurses, so a chain of any length can be built, walked and dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from .spans import Span
from .types import Type


def _read_only(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(attrs, (MappingProxyType, MetaAttrs)):
        return attrs
    return MappingProxyType(dict(attrs))


class MetaAttrs(Mapping[str, Any]):
    """Attributes that the text keeps in its `#[metadata]`: fields by name, and Relay's type key.

    Relay prints a call's attributes so when they aren't of the type that the operator declares.
    """

    __slots__ = ("_fields", "type_key")

    def __init__(self, type_key: str, fields: Mapping[str, Any]) -> None:
        self.type_key = type_key
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    # A place in the metadata belongs to one object, so objects are told apart by identity.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"MetaAttrs({self.type_key}, {self._fields})"


def _no_attrs() -> Mapping[str, Any]:
    return _EMPTY


_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Var:
    """`%name`: a parameter, or what a `let` binds.  Each binding has a Var of its own."""

    name: str
    type_annotation: Type | None = None
    checked_type: Type | None = None
    span: Span | None = None

    def __repr__(self) -> str:
        return f"Var(%{self.name})"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class GlobalVar:
    """`@name`: a function of the module."""

    name: str
    checked_type: Type | None = None
    span: Span | None = None

    def __repr__(self) -> str:
        return f"GlobalVar(@{self.name})"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Constant:
    """An array that is part of the program; the node holds it read-only."""

    data: np.ndarray[Any, Any]
    checked_type: Type | None = None
    span: Span | None = None

    def __post_init__(self) -> None:
        data = np.asarray(self.data)
        if data.flags.writeable:
            # A copy: the caller may go on to write to its own.
            data = data.copy()
            data.flags.writeable = False
        object.__setattr__(self, "data", data)

    def __repr__(self) -> str:
        return f"Constant({self.data.dtype}{list(self.data.shape)})"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Op:
    """An operator by its name, `nn.conv2d`; stands only where it is called."""

    name: str
    checked_type: Type | None = None
    span: Span | None = None

    def __repr__(self) -> str:
        return f"Op({self.name})"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Call:
    """A call of an operator, of a global function, or of a function that is a value.

    `attrs` holds what the text writes; an attribute that it leaves out has the operator's default.
    Values are bool, int, float (printed with `f`), str, None, numpy scalars (`3i64`, `0.5f64`),
    `types.ANY`, `MetaAttrs`, and tuples of these.
    """

    op: Expr
    args: tuple[Expr, ...]
    attrs: Mapping[str, Any] = field(default_factory=_no_attrs)
    type_args: tuple[Type, ...] = ()
    checked_type: Type | None = None
    span: Span | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", _read_only(self.attrs))

    def __repr__(self) -> str:
        return f"Call({self.op!r}, {len(self.args)} arguments)"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Tuple:
    """`(a, b)`; with one field `(a,)`."""

    fields: tuple[Expr, ...]
    checked_type: Type | None = None
    span: Span | None = None

    def __repr__(self) -> str:
        return f"Tuple({len(self.fields)} fields)"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TupleGetItem:
    """`tuple_value.index`."""

    tuple_value: Expr
    index: int
    checked_type: Type | None = None
    span: Span | None = None

    def __repr__(self) -> str:
        return f"TupleGetItem(.{self.index})"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Let:
    """`let var = value; body`."""

    var: Var
    value: Expr
    body: Expr
    checked_type: Type | None = None
    span: Span | None = None

    def __repr__(self) -> str:
        return f"Let(%{self.var.name})"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class If:
    """`if (cond) { true_branch } else { false_branch }`."""

    cond: Expr
    true_branch: Expr
    false_branch: Expr
    checked_type: Type | None = None
    span: Span | None = None

    def __repr__(self) -> str:
        return "If()"


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Function:
    """`fn (params, attrs) -> ret_type { body }`, or what `def` gives a name to."""

    params: tuple[Var, ...]
    body: Expr
    ret_type: Type | None = None
    attrs: Mapping[str, Any] = field(default_factory=_no_attrs)
    checked_type: Type | None = None
    span: Span | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", _read_only(self.attrs))

    def __repr__(self) -> str:
        return f"Function({len(self.params)} parameters)"


Expr = Var | GlobalVar | Constant | Op | Call | Tuple | TupleGetItem | Let | If | Function


@dataclass(frozen=True, eq=False)
class IRModule:
    """Global functions by name, in the text's order.

    `metadata` is the table of the text's `#[metadata]`, (type key, objects) in its order: an object
    that the program still holds keeps its place there when the module is printed.
    """

    functions: Mapping[str, Function]
    attrs: Mapping[str, Any] = field(default_factory=_no_attrs)
    metadata: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "functions", MappingProxyType(dict(self.functions)))
        object.__setattr__(self, "attrs", _read_only(self.attrs))

    def __getitem__(self, name: str) -> Function:
        return self.functions[name]

    def __repr__(self) -> str:
        return f"IRModule({', '.join('@' + name for name in self.functions)})"


def children(node: Expr) -> tuple[Expr, ...]:
    """What a node is computed from, in the order of its text; a Let's and a Function's Vars too."""
    if isinstance(node, Call):
        return (node.op, *node.args)
    if isinstance(node, Tuple):
        return node.fields
    if isinstance(node, TupleGetItem):
        return (node.tuple_value,)
    if isinstance(node, Let):
        return (node.var, node.value, node.body)
    if isinstance(node, If):
        return (node.cond, node.true_branch, node.false_branch)
    if isinstance(node, Function):
        return (*node.params, node.body)
    return ()


def post_order(root: Expr, enter: Callable[[Expr], bool] | None = None) -> Iterator[Expr]:
    """Each node below `root` once, after its children; `root` is the last.

    A node for which `enter` is false is given without what is below it: say, `lambda n: not
    isinstance(n, Function)` stays within a function's own scope.
    """
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif node not in seen:
            seen.add(node)
            below = children(node) if enter is None or enter(node) else ()
            if below:
                stack.append((node, True))
                stack += [(child, False) for child in reversed(below) if child not in seen]
            else:
                yield node
