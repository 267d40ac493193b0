"""`astext`: a syntax tree to Relay's text, as TVM 0.19's printer would have it.

Variables, constants, operators and global functions stand where they are used.  Any other node is
bound to a graph variable, numbered when the first of its users is printed; only the last value of
a scope, and what a `let` binds, stay in place when nothing else uses them.  A `let` that is an
operand gets brackets.

Everything that nests is a generator, and `iterative_walks.run` drives them: the stack is a list, so
a tree of any depth can be printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from ...argument_types import check_type
from ..adt import (
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    TypeData,
    type_data_text,
)
from ..ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    MetaAttrs,
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
from ..boxed_values import by_reference, unboxed
from ..errors import RelayTextError
from ..iterative_walks import run
from ..types import (
    DTYPES,
    OTHER_NAMES,
    AnyDim,
    Dim,
    FuncType,
    SymDim,
    Type,
    TypeVar,
    all_dims,
    below,
    type_text,
)
from ..variables import free_vars
from .attribute_kinds import FIELDS
from .literals import dtype_name, number_text, string_text
from .metadata_sizes import SIZE_KEYS
from .metadata_writer import MetaTable

_SCALARS = ("bool", "int16", "int32", "int64", "float16", "float32", "float64")
_OMITTED = (
    "\n/* The metadata section has been left out: astext(mod, show_meta_data=True) writes it. */\n"
)
_HEADER = '#[version = "0.0.5"]\n'
_ATTR = re.compile(r"[A-Za-z_][\w.]*", re.ASCII)
_DEEPEST_INDENT = 50  # levels; beyond, the text would grow with the square of the depth

# A step that may ask for others' results, and gives a text at last.
_Step = Generator["_Step", Any, Any]


def astext(
    mod: IRModule, show_meta_data: bool = True, annotate: Callable[[Expr], str] | None = None
) -> str:
    """The module's text, version 0.0.5, which `fromtext` reads back.

    Types and origins that nodes carry are written as comments; with `annotate`, what it says of a
    node instead, as it is.  Without `show_meta_data` the
    constants that are no scalars are left out, and the text can't be read back.

    Raises RelayTextError for a program without a text: a variable that nothing binds, a constant or
    an attribute of a type that Relay hasn't; TypeError for what is no module.
    """
    check_type("astext: mod", mod, IRModule, "a Relay IRModule")
    used = {id(item) for function in mod.functions.values() for item in _used_objects(function)}
    sizes: list[SymDim] = []
    if any(key in SIZE_KEYS for key, _ in mod.metadata):
        sizes = [dim for function in mod.functions.values() for dim in _sizes(function)]
    table = MetaTable(mod.metadata, used, sizes)
    printer = _Printer(table, annotate, [header.name_hint for header in mod.type_definitions])
    parts = [printer.define_type(data) for data in mod.type_definitions.values()]
    parts += [printer.define(name, function) for name, function in mod.functions.items()]
    return _complete("\n".join(parts), table, show_meta_data)


def expr_text(
    expr: Expr, show_meta_data: bool = True, annotate: Callable[[Expr], str] | None = None
) -> str:
    """An expression's text; each variable that nothing binds has a line `free_var %x: …;`.

    Raises RelayTextError as `astext`.
    """
    used = {id(item) for item in _used_objects(expr)}
    table = MetaTable((), used)
    text = _Printer(table, annotate).expression(expr)
    return _complete(text, table, show_meta_data)


def _complete(text: str, table: MetaTable, show_meta_data: bool) -> str:
    if not table:
        return _HEADER + text
    return _HEADER + text + (table.text() if show_meta_data else _OMITTED)


def _used_objects(root: Expr) -> list[Any]:
    return [item for node in post_order(root) for item in _meta_objects(node)]


def _sizes(root: Expr) -> list[SymDim]:
    """The symbolic sizes of all types that are printed."""
    types = {id(ty): ty for node in post_order(root) for ty in _types(node) if ty is not None}
    return [d for ty in types.values() for d in all_dims(ty) if isinstance(d, SymDim)]


def _types(node: Expr) -> tuple[Type | None, ...]:
    if isinstance(node, Var):
        return node.type_annotation, node.checked_type
    return (node.checked_type, node.ret_type if isinstance(node, Function) else None)


def _meta_objects(node: Expr) -> list[Any]:
    if isinstance(node, Constant):
        return [] if _simple(node) else [node]
    if isinstance(node, (Call, Function)):
        if _is_typed(node):
            return []
        if isinstance(node.attrs, MetaAttrs):
            return [node.attrs]
        found: list[Any] = []
        stack = list(node.attrs.values())
        while stack:
            value = stack.pop()
            if isinstance(value, MetaAttrs) or by_reference(value):
                found.append(value)
            elif isinstance(value, tuple):
                stack += value
        return found
    return []


def _is_typed(node: Call | Function) -> bool:
    """Whether attributes stand in the call, with their type: no operator declares it."""
    declared = isinstance(node, Function) or isinstance(node.op, Op)
    held = isinstance(node.attrs, MetaAttrs) and node.attrs.type_key not in FIELDS
    return held and not declared


def _simple(node: Constant) -> bool:
    return node.data.ndim == 0 and dtype_name(node.data.dtype) in _SCALARS


class _Printer:
    def __init__(
        self,
        table: MetaTable,
        annotate: Callable[[Expr], str] | None,
        defined: Sequence[str] = (),
    ) -> None:
        self._annotate = annotate
        self._table = table
        self._count = 0  # of graph variables, over all functions
        self._taken: dict[str, int] = {}  # names of variables, over all functions
        self._free: set[Var] = set()  # what may be used unbound
        self._level = 0  # of indentation
        self._types: dict[Type, str] = {}
        self._scope: dict[TypeVar, str] = {}  # type parameters
        self._defined = tuple(defined)  # names of types

    def define(self, name: str, function: Function) -> str:
        """`def @name(…) { … }`."""
        self._begin(function)
        _global_name(name)
        return f"def @{name}{run(self._signature_and_body(function))}\n"

    def expression(self, root: Expr) -> str:
        """The statements that an expression needs, and the expression."""
        self._begin(root)
        self._free = set(free_vars(root))
        lines: list[str] = []
        self._lines.append((lines, 0))
        text = run(self._lines_of(root))
        return "\n".join([*lines, text])

    def _lines_of(self, root: Expr) -> _Step:
        if isinstance(root, Let):
            lines = yield self._lets(root)
            return "\n".join(lines)
        return (yield self._expr(root))

    def _begin(self, root: Expr) -> None:
        self._free = set()
        self._text: dict[Expr, str] = {}
        self._temp: dict[Expr, str] = {}
        self._vars: dict[Var, str] = {}
        self._lines: list[tuple[list[str], int]] = []  # of the open scopes, with their levels
        self._uses: dict[Expr, int] = {}
        self._uses[root] = 1
        for node in post_order(root):
            for child in children(node):
                self._uses[child] = self._uses.get(child, 0) + 1

    # -- types

    def define_type(self, data: TypeData) -> str:
        """`type Name[A] { … }`."""
        self._open_types(data.type_vars)
        text = type_data_text(data, self._type)
        self._close_types(data.type_vars)
        return text + "\n"

    def _open_types(self, params: Sequence[TypeVar]) -> str:
        """Type parameters are in scope; their text."""
        if not params:
            return ""
        self._types = {}
        self._scope |= _fresh_names(params, {*self._scope.values(), *self._defined})
        return f"[{', '.join(self._scope[param] for param in params)}]"

    def _close_types(self, params: Sequence[TypeVar]) -> None:
        for param in params:
            self._types = {}
            self._scope.pop(param, None)

    def _type(self, type_: Type) -> str:
        text = self._types.get(type_)
        if text is None:
            names = dict(self._scope)
            # Of functions' types within this one; what nothing binds is written as it is called.
            own = [var for var in _type_vars(type_) if var not in names]
            names |= _fresh_names(own, {*names.values(), *self._defined})
            text = self._types[type_] = type_text(type_, self._dim, names.__getitem__)
        return text

    # -- scopes

    def _signature_and_body(self, function: Function) -> _Step:
        params = self._open_types(function.type_params)
        items = [self._bind(param) for param in function.params]
        items += self._attrs(function.attrs)
        result = f" -> {self._type(function.ret_type)}" if function.ret_type is not None else ""
        body = yield self._block(function.body)
        self._close_types(function.type_params)
        return f"{params}({', '.join(items)}){result} {body}"

    def _block(self, body: Expr) -> _Step:
        """`{`, the statements that the value needs, the value, `}`."""
        self._level += 1
        lines: list[str] = []
        self._lines.append((lines, self._level))
        if isinstance(body, Let) and self._uses[body] == 1:
            lines += yield self._lets(body)
        else:
            text = yield self._expr(body)
            lines.append(self._indent(self._level) + text)
        self._lines.pop()
        self._level -= 1
        return "\n".join(["{", *lines, self._indent(self._level) + "}"])

    def _lets(self, node: Expr) -> _Step:
        """The lines of a chain of `let`s.

        What the first one's value needs is written before the chain, in the scope around it.
        """
        lines: list[str] = []
        first = node
        while isinstance(node, Let) and (node is first or self._uses[node] == 1):
            name = self._bind(node.var)
            text = yield self._expr(node.value)
            lines.append(f"{self._indent(self._level)}let {name} = {text};")
            if node is first:
                self._lines.append((lines, self._level))
            node = node.body
        text = yield self._expr(node)
        lines.append(self._indent(self._level) + text)
        self._lines.pop()
        return lines

    def _bracketed(self, node: Let) -> _Step:
        self._level += 1
        lines = yield self._lets(node)
        self._level -= 1
        return "\n".join(["(", *lines, self._indent(self._level) + ")"])

    # -- expressions

    def _expr(self, root: Expr) -> _Step:
        """A value at the end of a scope, or bound by a `let`: in place if this is its only use."""
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in self._text or isinstance(node, Var):
                continue
            if ready:
                self._text[node] = self._operation(node) + self._note(node)
            elif isinstance(node, (Call, Tuple, TupleGetItem, RefCreate, RefRead, RefWrite)):
                stack.append((node, True))
                stack += [(child, False) for child in reversed(children(node))]
            else:
                text = yield self._leaf(node)
                self._text[node] = text + self._note(node)
        if self._uses[root] > 1:
            return self._use(root)
        return self._vars_name(root) if isinstance(root, Var) else self._text[root]

    def _leaf(self, node: Expr) -> _Step:
        if isinstance(node, Constant):
            text = number_text(node.data[()]) if _simple(node) else None
            return text or self._table.reference(node)
        if isinstance(node, GlobalVar):
            return f"@{_global_name(node.name)}"
        if isinstance(node, Op):
            return node.name
        if isinstance(node, Let):
            return (yield self._bracketed(node))
        if isinstance(node, If):
            condition = yield self._operand(node.cond)
            true = yield self._block(node.true_branch)
            false = yield self._block(node.false_branch)
            return f"if ({condition}) {true} else {false}"
        if isinstance(node, Constructor):
            return node.name_hint
        if isinstance(node, Match):
            return (yield self._match(node))
        assert isinstance(node, Function), node
        text = yield self._signature_and_body(node)
        return f"fn {text}"

    def _operand(self, node: Expr) -> _Step:
        """A value within a line: a name, where it is more than one."""
        text = yield self._expr(node)
        return text if _in_place(node) else self._use(node)

    def _operation(self, node: Expr) -> str:
        if isinstance(node, Call):
            # Arguments first: what they need is written before what the callee needs.
            items = [self._use(arg) for arg in node.args]
            if _is_typed(node):
                items += self._attrs({**node.attrs, "attrs_type_key": node.attrs.type_key})
            elif isinstance(node.attrs, MetaAttrs):
                items.append(self._table.reference(node.attrs))
            else:
                items += self._attrs(node.attrs)
            if isinstance(node.op, Constructor) and not node.op.inputs:
                return node.op.name_hint
            return f"{self._use(node.op)}({', '.join(items)})"
        if isinstance(node, Tuple):
            fields = ", ".join([self._use(field) for field in node.fields])
            return f"({fields},)" if len(node.fields) == 1 else f"({fields})"
        reference = self._reference(node)
        if reference is not None:
            return reference
        assert isinstance(node, TupleGetItem)
        return f"{self._use(node.tuple_value)}.{node.index}"

    def _reference(self, node: Expr) -> str | None:
        """A reference's operation; None for another node."""
        if isinstance(node, RefCreate):
            return f"ref({self._use(node.value)})"
        if isinstance(node, RefRead):
            return f"ref_read({self._use(node.ref)})"
        if isinstance(node, RefWrite):
            return f"ref_write({self._use(node.ref)}, {self._use(node.value)})"
        return None

    def _match(self, node: Match) -> _Step:
        data = yield self._operand(node.data)
        lines = [f"match{'' if node.complete else '?'} ({data}) {{"]
        self._level += 1
        for clause in node.clauses:
            pattern = self._pattern(clause.lhs)
            value = yield self._block(clause.rhs)
            lines.append(f"{self._indent(self._level)}{pattern} => {value},")
        self._level -= 1
        return "\n".join([*lines, self._indent(self._level) + "}"])

    def _pattern(self, pattern: Pattern) -> str:
        if isinstance(pattern, PatternVar):
            return self._bind(pattern.var)
        if not isinstance(pattern, (PatternConstructor, PatternTuple)):
            return "_"
        parts = ", ".join(map(self._pattern, pattern.patterns))
        if isinstance(pattern, PatternTuple):
            return f"({parts})"
        return pattern.constructor.name_hint + (f"({parts})" if parts else "")

    def _use(self, node: Expr) -> str:
        """How a user refers to a node that has been visited."""
        if isinstance(node, Var):
            return self._vars_name(node)
        if _in_place(node):
            return self._text[node]
        temp = self._temp.get(node)
        if temp is None:
            temp = self._temp[node] = f"%{self._count}"
            self._count += 1
            lines, level = self._lines[-1]
            lines.append(f"{self._indent(level)}{temp} = {self._text[node]};")
        return temp

    # -- pieces

    def _bind(self, var: Var) -> str:
        if var in self._vars:
            raise RelayTextError(f"%{var.name} is bound twice")
        name = re.sub(r"[^\w/.]", "_", var.name, flags=re.ASCII)
        if not name[:1].isalpha():
            name = "v" + name
        if name.endswith(".") or "/*" in name or "//" in name or re.search(r"\.\d+$|\.\.", name):
            name = re.sub(r"[/.]", "_", name)
        name = self._vars[var] = "%" + self._unique(name)
        if var.type_annotation is not None:
            name += f": {self._type(var.type_annotation)}"
        return name + self._note(var)

    def _unique(self, name: str) -> str:
        if name in self._taken:
            prefix = name
            while name in self._taken:
                self._taken[prefix] += 1
                name = f"{prefix}{self._taken[prefix]}"
        self._taken[name] = 0
        return name

    def _vars_name(self, var: Var) -> str:
        if var not in self._vars and var in self._free:
            lines, level = self._lines[-1]
            lines.append(f"{self._indent(level)}free_var {self._bind(var)};")
        if var not in self._vars:
            raise RelayTextError(f"%{var.name} is not bound where it is used")
        return self._vars[var]

    def _attrs(self, attrs: Mapping[str, Any]) -> list[str]:
        for name in attrs:
            if not isinstance(name, str) or not _ATTR.fullmatch(name):
                raise RelayTextError(f"{name!r} is no name of an attribute")
        return [f"{name}={self._value(value, name)}" for name, value in attrs.items()]

    def _value(self, value: Any, name: str) -> str:
        if isinstance(value, (MetaAttrs, SymDim)) or by_reference(value):
            return self._table.reference(value)
        value = unboxed(value)
        if value is None:
            return "None"
        if isinstance(value, str):
            return string_text(value)
        if isinstance(value, AnyDim):
            return "?"
        if isinstance(value, (tuple, list)):
            return f"[{', '.join([self._value(item, name) for item in value])}]"
        text = number_text(value)
        if text is None:
            raise RelayTextError(f"the attribute {name} is a {type(value).__name__}: no text")
        return text

    def _note(self, node: Expr) -> str:
        if isinstance(node, (Let, If, Match, GlobalVar, Op, Constructor)):
            return ""
        if self._annotate is not None:
            return self._annotate(node)
        parts = []
        if node.checked_type is not None:
            parts.append(f"ty={self._type(node.checked_type)}")
        if node.span is not None and node.span.origin is not None:
            # A source's name may hold what would end the comment, or the name.
            parts.append("span=" + re.sub(r"\s|\*/", "_", str(node.span.origin)))
        return f" /* {' '.join(parts)} */" if parts else ""

    def _dim(self, dim: Dim) -> str:
        return self._table.reference(dim) if isinstance(dim, SymDim) else str(dim)

    def _indent(self, level: int) -> str:
        return "  " * min(level, _DEEPEST_INDENT)


def _in_place(node: Expr) -> bool:
    return isinstance(node, (Var, Constant, GlobalVar, Op, Constructor))


def _global_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name, re.ASCII):
        raise RelayTextError(f"@{name} is no name of a function")
    return name


def _type_vars(type_: Type) -> list[TypeVar]:
    """The variables of a type, each once."""
    found: dict[TypeVar, None] = {}
    stack = [type_]
    while stack:
        part = stack.pop()
        if isinstance(part, FuncType):
            found.update(dict.fromkeys(part.type_params))
        if isinstance(part, TypeVar):
            found[part] = None
        stack += reversed(below(part))
    return list(found)


def _fresh_names(variables: Iterable[TypeVar], taken: set[str]) -> dict[TypeVar, str]:
    """A name for each, that nothing else has and no dtype."""
    out = {}
    for var in variables:
        name = re.sub(r"\W", "_", var.name_hint, flags=re.ASCII)
        name = name if name[:1].isalpha() else "T" + name
        while name in taken or name in DTYPES or name in OTHER_NAMES:
            name += "_"
        taken.add(name)
        out[var] = name
    return out
