"""Relay's expressions: a light, immutable syntax tree that shares nodes.

A node is itself: two nodes are equal only when they are one object, and a node that has several
parents is computed once (the text's graph variables, `%0`).  `structural_equal` compares what two
nodes mean.  Nothing here recurses, so a chain of any length can be built, walked and dropped.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from ..argument_types import check_type
from .adt import Constructor, Match, TypeData, TypeTable, pattern_vars
from .attributes import Attrs as Attrs
from .attributes import MetaAttrs as MetaAttrs
from .attributes import read_only
from .boxed_values import without_nodes
from .expr_methods import ExprMethods, FunctionMethods, ModuleMethods, OpMethods
from .immutable import Id, as_nodes, immutable
from .immutable import as_node as as_node
from .iterative_walks import order
from .references import RefCreate as RefCreate
from .references import RefRead as RefRead
from .references import RefWrite as RefWrite
from .spans import Span
from .types import GlobalTypeVar, IncompleteType, Type, TypeVar

_EMPTY = Attrs({})


def _no_attrs() -> Attrs:
    return _EMPTY


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Var(ExprMethods):
    """`%name`: a parameter, or what a `let` binds.  Each binding has a Var of its own."""

    name: str
    type_annotation: Type | None = None
    span: Span | None = None
    checked_type: Type | None = None
    vid: Id | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"Var: the name must be a string, got {self.name!r}")
        if self.vid is None:
            object.__setattr__(self, "vid", Id(self.name))
        if isinstance(self.type_annotation, IncompleteType):
            object.__setattr__(self, "type_annotation", None)

    @property
    def name_hint(self) -> str:
        """The name, as Relay calls it."""
        return self.name

    def __repr__(self) -> str:
        return f"Var(%{self.name})"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class GlobalVar(ExprMethods):
    """`@name`: a function of the module."""

    name: str
    span: Span | None = None
    checked_type: Type | None = None

    @property
    def name_hint(self) -> str:
        """The name, as Relay calls it."""
        return self.name

    def __repr__(self) -> str:
        return f"GlobalVar(@{self.name})"


class ConstantArray(np.ndarray[Any, Any]):
    """A constant's array: NumPy's, with the method by which scripts ask TVM's arrays for it."""

    def numpy(self) -> np.ndarray[Any, Any]:
        """The array as a plain one; still read-only."""
        return self.view(np.ndarray)

    asnumpy = numpy

    def __eq__(self, other: object) -> Any:
        return self.view(np.ndarray) == (other.numpy() if hasattr(other, "numpy") else other)

    __hash__ = None  # as NumPy's


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Constant(ExprMethods):
    """An array that is part of the program; the node holds it read-only, as a ConstantArray."""

    data: np.ndarray[Any, Any]
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        given = self.data
        data = np.asarray(given.numpy() if hasattr(given, "numpy") else given)
        if data.flags.writeable:
            # A copy: the caller may go on to write to its own.
            data = data.copy()
            data.flags.writeable = False
        object.__setattr__(self, "data", data.view(ConstantArray))

    def __repr__(self) -> str:
        return f"Constant({self.data.dtype}{list(self.data.shape)})"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Op(OpMethods):
    """An operator by its name, `nn.conv2d`; stands only where it is called.

    Operators of one name are equal.
    """

    name: str
    span: Span | None = None
    checked_type: Type | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Op) and other.name == self.name

    def __hash__(self) -> int:
        return hash((Op, self.name))

    def __repr__(self) -> str:
        return f"Op({self.name})"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Call(ExprMethods):
    """A call of an operator, of a global function, or of a function that is a value.

    `attrs` holds what the text writes; an attribute that it leaves out has the operator's default.
    Values are bool, int, float (printed with `f`), str, None, numpy scalars (`3i64`, `0.5f64`),
    `types.ANY`, `MetaAttrs`, and tuples of these.
    """

    op: Expr
    args: tuple[Expr, ...]
    attrs: Any = field(default_factory=_no_attrs)  # Attrs, whatever mapping is given
    type_args: tuple[Type, ...] = ()
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        op = as_node(self.op, "Call: op")
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "args", as_nodes(self.args, f"{op!r}: an argument"))
        name = op.name if isinstance(op, Op) else None
        object.__setattr__(self, "attrs", read_only(self.attrs, name))
        object.__setattr__(self, "type_args", tuple(self.type_args or ()))

    def __repr__(self) -> str:
        return f"Call({self.op!r}, {len(self.args)} arguments)"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Tuple(ExprMethods):
    """`(a, b)`; with one field `(a,)`."""

    fields: tuple[Expr, ...]
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", as_nodes(self.fields, "Tuple: a field"))

    def __getitem__(self, index: int) -> Expr:
        return self.fields[index]

    def __len__(self) -> int:
        return len(self.fields)

    def __repr__(self) -> str:
        return f"Tuple({len(self.fields)} fields)"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class TupleGetItem(ExprMethods):
    """`tuple_value.index`."""

    tuple_value: Expr
    index: int
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "tuple_value", as_node(self.tuple_value, "TupleGetItem: the tuple")
        )
        try:
            object.__setattr__(self, "index", operator.index(self.index))
        except TypeError:
            problem = f"TupleGetItem: the index must be an integer, got {self.index!r}"
            raise TypeError(problem) from None

    def __repr__(self) -> str:
        return f"TupleGetItem(.{self.index})"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Let(ExprMethods):
    """`let var = value; body`."""

    var: Var
    value: Expr
    body: Expr
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.var, Var):
            raise TypeError(f"Let: the variable must be a Var, got {self.var!r}")
        object.__setattr__(self, "value", as_node(self.value, "Let: the value"))
        object.__setattr__(self, "body", as_node(self.body, "Let: the body"))

    def __repr__(self) -> str:
        return f"Let(%{self.var.name})"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class If(ExprMethods):
    """`if (cond) { true_branch } else { false_branch }`."""

    cond: Expr
    true_branch: Expr
    false_branch: Expr
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        for name in ("cond", "true_branch", "false_branch"):
            object.__setattr__(self, name, as_node(getattr(self, name), f"If: {name}"))

    def __repr__(self) -> str:
        return "If()"


@immutable
@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Function(FunctionMethods):
    """`fn (params, attrs) -> ret_type { body }`, or what `def` gives a name to."""

    params: tuple[Var, ...]
    body: Expr
    ret_type: Type | None = None
    type_params: tuple[TypeVar, ...] = ()
    attrs: Any = field(default_factory=_no_attrs)  # Attrs, whatever mapping is given
    span: Span | None = None
    checked_type: Type | None = None

    def __post_init__(self) -> None:
        params = as_nodes(self.params, "Function: a parameter")
        for param in params:
            if not isinstance(param, Var):
                raise TypeError(f"Function: a parameter must be a Var, got {param!r}")
        if len(set(params)) != len(params):
            names = ", ".join(f"%{param.name}" for param in params)
            raise ValueError(f"Function: one variable is two parameters, of {names}")
        type_params = tuple(self.type_params or ())
        for type_param in type_params:
            if not isinstance(type_param, TypeVar):
                raise TypeError(f"Function: a type parameter must be a TypeVar, got {type_param!r}")
        object.__setattr__(self, "params", params)
        object.__setattr__(self, "type_params", type_params)
        if isinstance(self.ret_type, IncompleteType):
            object.__setattr__(self, "ret_type", None)
        object.__setattr__(self, "body", as_node(self.body, "Function: the body"))
        object.__setattr__(self, "attrs", read_only(without_nodes(self.attrs or {})))

    def __repr__(self) -> str:
        return f"Function({len(self.params)} parameters)"


Expr = (
    Var | GlobalVar | Constant | Op | Call | Tuple | TupleGetItem | Let | If | Function
    | RefCreate | RefRead | RefWrite | Constructor | Match
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class IRModule(ModuleMethods):
    """Global functions by name, in the text's order, and the types that they use.

    Functions are immutable; the module is not: `mod["main"] = function` replaces one or adds one.
    `metadata` is the table of the text's `#[metadata]`, (type key, objects) in its order: an object
    that the program still holds keeps its place there when the module is printed.
    """

    functions: Mapping[str, Function] = field(default_factory=dict)
    type_definitions: Mapping[GlobalTypeVar, TypeData] = field(default_factory=dict)
    attrs: Any = field(default_factory=_no_attrs)  # Attrs, whatever mapping is given
    metadata: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __post_init__(self) -> None:
        table: dict[str, Function] = {}
        # A live view: only `__setitem__` writes.
        object.__setattr__(self, "_table", table)
        given = {} if self.functions is None else self.functions
        check_type("IRModule: functions", given, Mapping, "a dict of functions by name")
        object.__setattr__(self, "functions", MappingProxyType(table))
        object.__setattr__(self, "attrs", read_only(self.attrs))
        types = self.type_definitions or {}
        object.__setattr__(self, "type_definitions", TypeTable())
        for header, data in types.items():
            self[header] = data
        for name, function in given.items():
            self[name] = function

    def __getitem__(self, name: Any) -> Any:
        """A function, of a GlobalTypeVar the type's definition; KeyError if there is none."""
        if isinstance(name, GlobalTypeVar):
            return self.type_definitions[name]
        return self.functions[_global_name(name)]

    def __setitem__(self, name: Any, function: Any) -> None:
        if isinstance(name, GlobalTypeVar):
            assert isinstance(self.type_definitions, TypeTable)
            self.type_definitions.define(name, function)
            return
        if not isinstance(function, Function):
            raise TypeError(f"IRModule: @{name} must be a Function, got {function!r}")
        table: dict[str, Function] = self.__dict__["_table"]
        table[FunctionName(_global_name(name))] = function

    def __contains__(self, name: object) -> bool:
        if isinstance(name, GlobalTypeVar):
            return name in self.type_definitions
        return isinstance(name, (str, GlobalVar)) and _global_name(name) in self.functions

    def __repr__(self) -> str:
        return f"IRModule({', '.join('@' + name for name in self.functions)})"


class FunctionName(str):
    """A function's name in its module's table, with its name as Relay's GlobalVar has it there."""

    __slots__ = ()

    @property
    def name_hint(self) -> str:
        """Itself."""
        return str(self)


def _global_name(name: str | GlobalVar) -> str:
    if isinstance(name, GlobalVar):
        return name.name
    if not isinstance(name, str):
        raise TypeError(f"IRModule: a name must be a string or a GlobalVar, got {name!r}")
    return name


def operator_of(node: Any) -> str:
    """The name of the operator that a node calls; "" if it calls none."""
    return node.op.name if isinstance(node, Call) and isinstance(node.op, Op) else ""


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
    if isinstance(node, Match):
        parts = ((*pattern_vars(clause.lhs), clause.rhs) for clause in node.clauses)
        return (node.data, *(part for clause in parts for part in clause))
    if isinstance(node, RefWrite):
        return (node.ref, node.value)
    if isinstance(node, RefRead):
        return (node.ref,)
    return (node.value,) if isinstance(node, RefCreate) else ()


def bound_here(node: Expr) -> tuple[Var, ...]:
    """The variables that a node binds: a `let`'s, a function's parameters, those of patterns."""
    if isinstance(node, Let):
        return (node.var,)
    if isinstance(node, Function):
        return node.params
    if isinstance(node, Match):
        return tuple(var for clause in node.clauses for var in pattern_vars(clause.lhs))
    return ()


def post_order(root: Expr, enter: Callable[[Expr], bool] | None = None) -> Iterator[Expr]:
    """Each node below `root` once, after its children; `root` is the last.

    A node for which `enter` is false is given without what is below it: say, `lambda n: not
    isinstance(n, Function)` stays within a function's own scope.
    """
    if enter is None:
        return order(root, children)
    return order(root, lambda node: children(node) if enter(node) else ())
