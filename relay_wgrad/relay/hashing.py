"""A number that equal programs share: `structural_hash`, beside `structural_equal`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from .ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    IRModule,
    Let,
    MetaAttrs,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    children,
)
from .boxes import plain
from .types import FuncType, TensorType, TupleType, Type, type_text


def structural_hash(value: IRModule | Expr | Type, map_free_vars: bool = False) -> int:
    """What `structural_equal` calls equal has the same number, of 64 bits, in every process.

    With one exception: a variable that nothing binds is itself, and its number is the process's,
    unless `map_free_vars` lets it stand for others of its annotation.

    Raises TypeError for what is no program and no type.
    """
    digest = hashlib.blake2b(digest_size=8)
    if isinstance(value, IRModule):
        words = _module_words(value, map_free_vars)
    elif isinstance(value, (TensorType, TupleType, FuncType)):
        words = iter([_type_word(value)])
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
    for name in sorted(mod.functions):
        yield f"@{name}"
        yield from _words(mod.functions[name], map_free)


def _words(root: Expr, map_free: bool) -> Iterator[str]:
    """The program as words, nodes by their number where they come again; as equality walks it."""
    numbers: dict[Expr, int] = {}
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
                yield f"free {_type_word(node.type_annotation)}"
            else:
                yield f"free {id(node)}"
        elif isinstance(node, (Constant, GlobalVar, Op)) or (
            isinstance(node, Tuple) and not node.fields
        ):
            yield _own(node)
        else:
            numbers[node] = len(numbers)
            yield _own(node)
            for var in _bound(node):
                numbers[var] = len(numbers)
                yield f"bound {_type_word(var.type_annotation)}"
            stack += reversed(children(node))


def _bound(node: Expr) -> tuple[Var, ...]:
    if isinstance(node, Let):
        return (node.var,)
    return node.params if isinstance(node, Function) else ()


def _own(node: Expr) -> str:
    """All of a node but what is below it."""
    kind = type(node).__name__
    if isinstance(node, Constant):
        content = hashlib.blake2b(node.data.tobytes()).hexdigest()
        return f"{kind} {node.data.dtype} {node.data.shape} {content}"
    if isinstance(node, (GlobalVar, Op)):
        return f"{kind} {node.name}"
    if isinstance(node, Call):
        given = "" if isinstance(node.op, Op) else " ".join(map(_type_word, node.type_args))
        return f"{kind} {len(node.args)} {given} {_attrs_word(node.attrs)}"
    if isinstance(node, Function):
        result = _type_word(node.ret_type)
        return f"{kind} {len(node.params)} {result} {_attrs_word(node.attrs)}"
    return f"{kind} {len(children(node))}"


def _type_word(type_: Type | None) -> str:
    return "_" if type_ is None else type_text(type_)


def _attrs_word(value: Any) -> str:
    value = plain(value)
    if isinstance(value, Mapping):
        key = value.type_key if isinstance(value, MetaAttrs) else ""
        return f"{key}{{{','.join(f'{k}={_attrs_word(value[k])}' for k in sorted(value))}}}"
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(_attrs_word, value))}]"
    if isinstance(value, (float, np.floating)):
        value = value + type(value)(0)  # 0.0 is -0.0
    return f"{type(value).__name__} {value!r}"
