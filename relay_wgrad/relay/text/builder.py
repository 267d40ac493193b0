"""The parser's reductions: each makes a node as soon as its text has been read, and no tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from lark import Token

from ..adt import (
    Clause,
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    TypeData,
    pattern_vars,
)
from ..ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    MetaAttrs,
    Op,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ..errors import Complaint
from ..records import REGISTRY
from ..spans import Span
from ..types import GlobalTypeVar, TensorType, Type, TypeVar
from .dialects import Dialect
from .literals import dtype_name, integer, number
from .metadata import Table
from .scopes import Scopes
from .values import Children, Values, sound

_REFERENCES: dict[str, tuple[Any, int]] = {
    "ref": (RefCreate, 1),
    "ref_read": (RefRead, 1),
    "ref_write": (RefWrite, 2),
}


@dataclass(slots=True)
class _Attr:
    """`name=value` among parameters or arguments."""

    name: Token
    value: Any


@dataclass(slots=True)
class _Head:
    """A function's parameters, attributes and type of result."""

    params: tuple[Var, ...]
    attrs: dict[str, Any]
    ret_type: Type | None
    type_params: tuple[TypeVar, ...] | None


@dataclass(slots=True)
class _MetaUse:
    """Attributes of the metadata, as the last argument of a call."""

    token: Token
    attrs: MetaAttrs


# Operators between operands, the tightest first.
_INFIX = (
    {"*": "multiply", "/": "divide"},
    {"+": "add", "-": "subtract"},
    {"<": "less", ">": "greater", "<=": "less_equal", ">=": "greater_equal"},
    {"==": "equal", "!=": "not_equal"},
)


@dataclass(slots=True)
class _Chain:
    """Operands and the operators between them, from the last to the first."""

    parts: list[Any]


class Builder(Values):
    """One text's program; `reset` begins the next."""

    dialect = Dialect()  # of the text: set for each

    def reset(self, source: str, table: Table) -> None:
        super().reset(source, table)
        self.is_module = True
        self.type_data: dict[GlobalTypeVar, TypeData] = {}
        self.constructors: dict[str, Constructor] = {}
        self.scopes = Scopes()
        self.ops: dict[str, Op] = {}
        self.global_vars: dict[str, tuple[GlobalVar, int]] = {}
        self.functions: dict[str, Function] = {}

    def has_types(self, given: Mapping[GlobalTypeVar, TypeData]) -> None:
        """Types that another module defines."""
        for header, data in given.items():
            self.type_data[header] = data
            self.defined[header.name_hint] = header
            self.constructors.update({c.name_hint: c for c in data.constructors})

    # -- helpers

    def as_expr(self, value: Any) -> Expr:
        """A node of what an expression's reduction has given."""
        if isinstance(value, _MetaUse):
            problem = f"{value.token} are attributes: they stand last in a call"
            raise Complaint(value.token.start_pos or 0, problem)
        return self._ordered(value) if isinstance(value, _Chain) else value

    def _ordered(self, chain: _Chain) -> Expr:
        """The calls that a chain stands for: the tighter first, of equals the left one."""
        parts = chain.parts[::-1]
        for level in _INFIX:
            done = [parts[0]]
            for token, operand in zip(parts[1::2], parts[2::2], strict=True):
                if token in level:
                    args = (done.pop(), operand)
                    op = self.ops.setdefault(level[token], Op(level[token]))
                    done.append(Call(op, args, span=self.span(token, token)))
                else:
                    done += [token, operand]
            parts = done
        return parts[0]

    def _attrs(self, items: list[_Attr]) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        for item in items:
            if item.name in attrs:
                problem = f"the attribute {item.name} is given twice"
                raise Complaint(item.name.start_pos or 0, problem)
            attrs[str(item.name)] = item.value
        return attrs

    # -- types of data

    def type_head(self, children: Children) -> tuple[Token, tuple[TypeVar, ...] | None]:
        token, params = children
        if token in self.defined:
            raise Complaint(token.start_pos or 0, f"the type {token[:60]} is defined twice")
        self.defined[str(token)] = GlobalTypeVar(str(token))
        return token, params

    def constructor(self, children: Children) -> tuple[Token, tuple[Type, ...]]:
        token, *inputs = children
        return token, tuple(self.plain(given, token) for given in inputs if given is not None)  # type: ignore[misc]

    def type_definition(self, children: Children) -> None:
        (token, params), *held = children
        header = self.defined[token]
        made = []
        for place, inputs in filter(None, held):
            if place in self.constructors:
                raise Complaint(place.start_pos or 0, f"the constructor {place[:60]} twice")
            made.append(Constructor(str(place), inputs, header, self.span(place, place)))
            self.constructors[str(place)] = made[-1]
        self.type_data[header] = TypeData(header, self.close_types(params), made)  # type: ignore[arg-type]

    # -- patterns

    def any_pattern(self, children: Children) -> Pattern:
        return PatternWildcard()

    def var_pattern(self, children: Children) -> Pattern:
        token, annotation, note = children
        checked, origin = self.note(note)
        span = self.span(token, token, origin)
        return PatternVar(Var(token[1:], self.plain(annotation, token), span, checked))

    def constructor_pattern(self, children: Children) -> Pattern:
        token, *parts = children
        if token not in self.constructors:
            raise Complaint(
                token.start_pos or 0, f"{token[:60]} is no constructor; a variable is %{token[:60]}"
            )
        held = tuple(part for part in parts if isinstance(part, Pattern))
        return PatternConstructor(self.constructors[token], held)

    def tuple_pattern(self, children: Children) -> Pattern:
        return PatternTuple(tuple(part for part in children if part is not None))

    def arm(self, children: Children) -> Pattern:
        pattern: Pattern = children[0]
        for var in pattern_vars(pattern):
            self.scopes.bind(var)
        return pattern

    def clause(self, children: Children) -> Clause:
        pattern, value = children
        self.scopes.close(len(pattern_vars(pattern)))
        return Clause(pattern, self.as_expr(value))

    def match(self, children: Children) -> Match:
        first, data, *clauses, last = children
        span = self.span(first, last)
        complete = not first.endswith("?")
        held = tuple(clause for clause in clauses if clause is not None)
        made = Match(self.as_expr(data), held, complete, span)
        self.scopes.made(made)
        return made

    # -- functions

    def param(self, children: Children) -> Var:
        token, annotation, note = children
        type_ = self.plain(annotation, token)
        checked, origin = self.note(note)
        self.dialect.variable(checked)
        return Var(token[1:], type_, self.span(token, token, origin), checked)

    def attr(self, children: Children) -> _Attr:
        return _Attr(*children)

    def head(self, children: Children) -> _Head:
        type_params, first, *items, ret_type = children
        params: list[Var] = []
        attrs: list[_Attr] = []
        for item in items:
            if isinstance(item, _Attr):
                attrs.append(item)
            elif attrs:
                problem = f"the parameter %{item.name} after attributes"
                raise Complaint(attrs[-1].name.start_pos or 0, problem)
            else:
                params.append(item)
        held = self._attrs(attrs)
        if attrs:
            self.dialect.function(attrs[0].name.start_pos or 0, held)
        return _Head(tuple(params), held, self.plain(ret_type, first), type_params)

    def def_head(self, children: Children) -> tuple[Token, _Head]:
        token, head = children
        self._enter(token, head)
        return token, head

    def fn_head(self, children: Children) -> tuple[Token, _Head]:
        token, head = children
        self._enter(token, head)
        return token, head

    def _enter(self, token: Token, head: _Head) -> None:
        names: set[str] = set()
        for param in head.params:
            if param.name in names:
                raise Complaint(token.start_pos or 0, f"two parameters are called %{param.name}")
            names.add(param.name)
        self.scopes.enter(head.params)

    def definition(self, children: Children) -> None:
        (token, head), body = children
        self.scopes.leave(len(head.params))
        name = token[1:]
        if name in self.functions:
            raise Complaint(token.start_pos or 0, f"{token} is defined twice")
        span = self.span(token, token)
        type_params = self.close_types(head.type_params)
        self.functions[name] = Function(
            head.params, body, head.ret_type, type_params, head.attrs, span
        )

    def function(self, children: Children) -> Function:
        (token, head), body, last, note = children
        captured = self.scopes.leave(len(head.params))
        type_params = self.close_types(head.type_params)
        checked, origin = self.note(note)
        span = self.span(token, last, origin)
        made = Function(head.params, body, head.ret_type, type_params, head.attrs, span, checked)
        self.scopes.needs(made, captured)
        return made

    def expression(self, children: Children) -> Expr:
        return self.as_expr(children[-1])

    # -- scopes

    def let(self, children: Children) -> tuple[Var, Expr, Span]:
        first, token, annotation, note, value, last = children
        value = self.as_expr(value)
        checked, origin = self.note(note)
        type_ = self.plain(annotation, token)
        var = Var(token[1:], type_, self.span(token, token, origin), checked)
        self.scopes.bind(var)
        return var, value, self.span(first, last)

    def graph_binding(self, children: Children) -> None:
        token, value = children
        self.scopes.bind_graph(token, self.as_expr(value))

    def free_var(self, children: Children) -> None:
        first, token, annotation, note = children
        if self.is_module:
            problem = "not supported: free variables (`free_var`) in a module"
            raise Complaint(first.start_pos, problem, "free variables (`free_var`)")
        if token[1:] in self.scopes.free:
            raise Complaint(token.start_pos, f"{token} is free twice")
        checked, origin = self.note(note)
        var = Var(
            token[1:], self.plain(annotation, token), self.span(token, token, origin), checked
        )
        self.scopes.free[var.name] = var

    def statement(self, children: Children) -> tuple[Var, Expr, Span]:
        value, last = children
        value = self.as_expr(value)
        # A value that nobody uses: a `let` of a variable without a name in the text.
        span = self.span(last, last)
        var = Var("_", span=span)
        self.scopes.bind(var)
        return var, value, span

    def body(self, children: Children) -> Expr:
        result = self.as_expr(children[-1])
        if len(children) == 1:
            return result
        lets = [item for item in children[:-1] if item is not None]
        if lets:
            self.scopes.close(len(lets))
            for var, value, span in reversed(lets):
                result = Let(var, value, result, span=span)
            self.scopes.made(result)
        return result

    def if_else(self, children: Children) -> If:
        first, cond, true_branch, false_branch, last = children
        span = self.span(first, last)
        return If(self.as_expr(cond), true_branch, false_branch, span=span)

    # -- constructors, references

    def constructor_alone(self, token: Token, note: Token | None) -> Expr:
        """A constructor as a value; of one without inputs, what it makes."""
        found = self.constructors[token]
        if found.inputs:
            return found
        checked, origin = self.note(note)
        return Call(found, (), span=self.span(token, token, origin), checked_type=checked)

    def reference(
        self, token: Token, args: tuple[Expr, ...], span: Span, checked: Type | None
    ) -> Expr:
        """`ref(…)`, `ref_read(…)`, `ref_write(…)`."""
        node, count = _REFERENCES[token]
        if len(args) != count:
            raise Complaint(token.start_pos or 0, f"{token} takes {count}, got {len(args)}")
        return node(*args, span=span, checked_type=checked)

    # -- expressions

    def local(self, children: Children) -> Var:
        return self.scopes.local(children[0])

    def graph(self, children: Children) -> Expr:
        return self.scopes.graph(children[0])

    def global_var(self, children: Children) -> GlobalVar:
        token = children[0]
        found = self.global_vars.get(token)
        if found is None:
            var = GlobalVar(token[1:], span=self.span(token, token))
            found = self.global_vars[str(token)] = (var, token.start_pos)
        return found[0]

    def number(self, children: Children) -> Constant:
        token, note = children
        value = self.dialect.scalar(token, sound(token, number), self.note(note)[0])
        return self._scalar(token, value, note)

    def true_constant(self, children: Children) -> Constant:
        return self._scalar(children[0], np.bool_(True), children[1])

    def false_constant(self, children: Children) -> Constant:
        return self._scalar(children[0], np.bool_(False), children[1])

    def _scalar(self, token: Token, value: Any, note: Token | None) -> Constant:
        checked, origin = self.note(note)
        constant = Constant(value, self.span(token, token, origin), checked)
        self._same_type(note, checked, constant)
        return constant

    def _same_type(self, note: Token | None, checked: Type | None, constant: Constant) -> None:
        if checked is None or note is None:
            return
        data = constant.data
        if checked != TensorType(data.shape, dtype_name(data.dtype) or ""):
            problem = f"a constant of {data.dtype}{list(data.shape)} with another's type"
            raise Complaint(note.start_pos or 0, problem)

    def meta(self, children: Children) -> Any:
        token, note = children
        value = self.meta_object(token)
        if isinstance(value, MetaAttrs):
            return _MetaUse(token, value)
        if not isinstance(value, Constant):
            problem = f"{token} is an attribute's value, and no expression"
            raise Complaint(token.start_pos or 0, problem)
        checked, _ = self.note(note)
        self._same_type(note, checked, value)
        return value

    def infix(self, children: Children) -> _Chain:
        left, token, right = children
        if isinstance(right, _Chain):
            right.parts += [token, left]
            return right
        return _Chain([self.as_expr(right), token, self.as_expr(left)])

    def operator_alone(self, children: Children) -> Expr:
        token = children[0]
        if token in self.constructors:
            return self.constructor_alone(*children)
        op = self._op(token)
        self.dialect.operator(op.name, token.start_pos or 0)
        if op.name not in REGISTRY:
            raise Complaint(token.start_pos or 0, f"{token[:60]} is no operator, and is not called")
        return op

    def call_op(self, children: Children) -> Expr:
        token = children[0]
        if token not in _REFERENCES:
            return self._call(self._op(token), token, children)
        made = self._call(Op(str(token)), token, children)
        if made.attrs:
            raise Complaint(token.start_pos or 0, f"{token} has no attributes")
        assert made.span is not None
        return self.reference(token, made.args, made.span, made.checked_type)

    def _op(self, token: Token) -> Any:
        op: Any = self.constructors.get(token, self.ops.get(token))
        if op is None:
            if token.rpartition(".")[2][0].isupper():
                problem = f"{token[:60]} is no constructor of the text's types, and no operator"
                raise Complaint(token.start_pos or 0, problem)
            op = self.ops[str(token)] = Op(str(token))
        return op

    def call_value(self, children: Children) -> Call:
        return self._call(self.as_expr(children[0]), children[1], children)

    def _call(self, op: Expr, first: Token, children: Children) -> Call:
        # op, `(`, arguments, `)`, note
        note, last = children[-1], children[-2]
        args: list[Expr] = []
        attrs: list[_Attr] = []
        meta: MetaAttrs | None = None
        for item in children[2:-2]:
            if meta is not None:
                raise Complaint(last.start_pos, "an argument after the call's attributes")
            if isinstance(item, _Attr):
                attrs.append(item)
            elif isinstance(item, _MetaUse):
                meta = item.attrs
            elif attrs:
                problem = "an argument after the call's attributes"
                raise Complaint(attrs[-1].name.start_pos or 0, problem)
            else:
                args.append(self.as_expr(item))
        if meta is not None and attrs:
            raise Complaint(last.start_pos, "attributes both written and from the metadata")
        checked, origin = self.note(note)
        self.dialect.typed_calls |= checked is not None
        span = self.span(first, last, origin)
        held = meta if meta is not None else self._typed(self._attrs(attrs), op)
        op, held = self.dialect.call(first.start_pos or 0, op, held)
        return Call(op, tuple(args), held, (), span, checked)

    def _typed(self, attrs: dict[str, Any], op: Expr) -> Any:
        """Attributes of a type that the call itself names, where no operator does."""
        key = attrs.get("attrs_type_key")
        if isinstance(op, Op) or not isinstance(key, str):
            return attrs
        return MetaAttrs(key, {name: v for name, v in attrs.items() if name != "attrs_type_key"})

    def project(self, children: Children) -> TupleGetItem:
        value, token, note = children
        checked, origin = self.note(note)
        index = sound(token, lambda text: integer(text[1:]))
        span = self.span(token, token, origin)
        return TupleGetItem(self.as_expr(value), index, span, checked)

    def empty_tuple(self, children: Children) -> Tuple:
        return self._tuple(children[0], [], children[1], children[2])

    def tuple(self, children: Children) -> Tuple:
        first, *items, last, note = children
        return self._tuple(first, items, last, note)

    def _tuple(self, first: Token, items: Children, last: Token, note: Token | None) -> Tuple:
        checked, origin = self.note(note)
        fields = tuple(self.as_expr(item) for item in items)
        return Tuple(fields, self.span(first, last, origin), checked)
