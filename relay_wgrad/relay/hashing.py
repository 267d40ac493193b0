"""A number that equal programs share: `structural_hash`, beside `structural_equal`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .adt import Clause, Constructor, Match, Pattern, PatternConstructor, TypeData, subpatterns
from .ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    MetaAttrs,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    bound_here,
    children,
)
from .boxed_values import unboxed
from .equal import written
from .types import (
    TYPES,
    FuncType,
    GlobalTypeVar,
    Type,
    TypeCall,
    TypeVar,
    below,
    type_text,
    with_parts,
)


def structural_hash(
    value: IRModule | Expr | Type | TypeData | Pattern | Clause, map_free_vars: bool = False
) -> int:
    """What `structural_equal` calls equal has the same number, of 64 bits, in every process.

    With one exception: a variable that nothing binds is itself, and its number is the process's,
    unless `map_free_vars` lets it stand for others of its annotation.

    Raises TypeError for what is no program and no type.
    """
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(value, IRModule):
        words = _module_words(value, map_free_vars)
    elif isinstance(value, TYPES):
        words = iter([_Types(map_free_vars).word(value)])
    elif isinstance(value, TypeData):
        words = _data_words(value)
    elif isinstance(value, (Pattern, Clause)):
        clause = value if isinstance(value, Clause) else Clause(value, Tuple(()))
        words = _words(Match(Tuple(()), (clause,)), map_free_vars)
    elif isinstance(value, Expr):
        words = _words(value, map_free_vars)
    else:
        raise TypeError(f"structural_hash: expected a Relay program, got {value!r}")
    for word in words:
        digest.update(word.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    return int.from_bytes(digest.digest(), "little", signed=True)


def _module_words(mod: IRModule, map_free: bool) -> Iterator[str]:
    yield _attrs_word(mod.attrs)
    for header in sorted(mod.type_definitions, key=str):
        yield from _data_words(mod.type_definitions[header])
    for name in sorted(mod.functions):
        yield f"@{name}"
        yield from _words(mod.functions[name], map_free)


def _data_words(data: TypeData) -> Iterator[str]:
    types = _Types(False)
    types.bind(data.type_vars)
    yield f"type {data.header} {[var.kind for var in data.type_vars]}"
    for constructor in data.constructors:
        yield " ".join([constructor.name_hint, *map(types.word, constructor.inputs)])


class _Types:
    """Types as words, bound variables by their number."""

    def __init__(self, map_free: bool) -> None:
        self._map_free = map_free
        self._numbers: dict[TypeVar, int] = {}
        self._count = 0

    def bind(self, params: Sequence[TypeVar]) -> None:
        """These variables are bound from here on."""
        for param in params:
            self._numbers[param] = self._count
            self._count += 1

    def word(self, type_: Type | None) -> str:
        """A type's."""
        return "_" if type_ is None else type_text(_closed(type_)[0], var_text=self._variable)

    def _variable(self, var: TypeVar) -> str:
        if self._map_free and var not in self._numbers and not var.name_hint.startswith(_OWN):
            self.bind([var])
        # What nothing binds is itself.
        number = var.name_hint if var.name_hint.startswith(_OWN) else id(var)
        return f"<{self._numbers.get(var, number)} {int(var.kind)}>"


_OWN = "own "  # names of type parameters of functions' types


def _closed(type_: Type) -> tuple[Type, int]:
    """The type with names for such parameters that depend on how deep they nest alone."""
    parts = list(map(_closed, below(type_)))
    new = iter([part for part, _ in parts])
    out, depth = with_parts(type_, lambda part: next(new)), max((d for _, d in parts), default=0)
    if not isinstance(out, FuncType) or not out.type_params:
        return out, depth
    own = [TypeVar(f"{_OWN}{depth}.{i}", var.kind) for i, var in enumerate(out.type_params)]
    kinds = [int(var.kind) for var in out.type_params]
    return TypeCall(GlobalTypeVar(f"for all {kinds}"), (out.with_params(own),)), depth + 1


def _words(root: Expr, map_free: bool) -> Iterator[str]:
    """The program as words, nodes by their number where they come again; as equality walks it."""
    numbers: dict[Expr, int] = {}
    types = _Types(map_free)
    stack = [root]
    while stack:
        node = stack.pop()
        if node in numbers:
            yield f"node {numbers[node]}"
        elif isinstance(node, TupleGetItem):
            # Two of one tuple are alike, so neither gets a number.
            yield f".{node.index}"
            stack.append(node.tuple_value)
        elif isinstance(node, Var):
            if map_free:
                numbers[node] = len(numbers)
                yield f"free {types.word(node.type_annotation)}"
            else:
                yield f"free {id(node)}"
        elif isinstance(node, (Constant, GlobalVar, Op, Constructor)) or (
            isinstance(node, Tuple) and not node.fields
        ):
            yield _own(node, types)
        else:
            numbers[node] = len(numbers)
            if isinstance(node, Function):
                types.bind(node.type_params)
            yield _own(node, types)
            for var in bound_here(node):
                numbers[var] = len(numbers)
                yield f"bound {types.word(var.type_annotation)}"
            stack += reversed(children(node))


def _own(node: Expr, types: _Types) -> str:
    """All of a node but what is below it."""
    kind = type(node).__name__
    if isinstance(node, Constant):
        content = hashlib.blake2b(node.data.tobytes()).hexdigest()
        return f"{kind} {node.data.dtype} {node.data.shape} {content}"
    if isinstance(node, (GlobalVar, Op)):
        return f"{kind} {node.name}"
    if isinstance(node, Call):
        named = isinstance(node.op, (Op, GlobalVar, Constructor))
        given = "" if named else " ".join(map(types.word, node.type_args))
        return f"{kind} {len(node.args)} {given} {_attrs_word(written(node))}"
    if isinstance(node, Function):
        result = types.word(node.ret_type)
        kinds = [int(param.kind) for param in node.type_params]
        return f"{kind} {len(node.params)} {kinds} {result} {_attrs_word(node.attrs)}"
    if isinstance(node, Constructor):
        return f"{kind} {node.name_hint} {node.belong_to}"
    if isinstance(node, Match):
        forms = (_form(part) for c in node.clauses for part in subpatterns(c.lhs))
        return f"{kind} {node.complete} {' '.join(forms)}"
    return f"{kind} {len(children(node))}"


def _form(pattern: Pattern) -> str:
    kind = type(pattern).__name__
    if isinstance(pattern, PatternConstructor):
        return f"{kind} {pattern.constructor.name_hint} {len(pattern.patterns)}"
    return kind


def _attrs_word(value: Any) -> str:
    value = unboxed(value)
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            # From variables, which have no name of their own.
            return f"{{{','.join(sorted(map(_attrs_word, value.values())))}}}"
        key = value.type_key if isinstance(value, MetaAttrs) else ""
        return f"{key}{{{','.join(f'{k}={_attrs_word(value[k])}' for k in sorted(value))}}}"
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(_attrs_word, value))}]"
    if isinstance(value, (float, np.floating)):
        value = value + type(value)(0)  # 0.0 is -0.0
    return f"{type(value).__name__} {value!r}"
