"""Builders that only call their operator, made of its record: `relay.exp`, `relay.nn.softmax`, …

Of an operator with a `doc`.  Where a value that the record has as an attribute is known only at the
run, the operator of `dyn` is called, which takes it as an argument.

A module of this folder holds those of one namespace; beside it is its stub for type checkers, which
`pytest --update-golden tests/relay_wgrad/relay/test_builders.py` writes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from numbers import Real
from typing import Any

from ...ast import Call, Tuple
from ...expr import TupleWrapper, const
from ...expr_methods import ExprMethods
from ...make import as_argument, call, of_run
from ...records import REGISTRY, REQUIRED, RelayOp
from ...records.table import attributes_of_run

# What an attribute may be, by its kind; the tensors are `Expr`.
TYPES = {
    "int": "int",
    "float": "float",
    "number": "float",
    "bool": "bool",
    "str": "str",
    "dtype": "str",
    "ints": "Sequence[int]",
    "sizes": "Sizes",
    "dims": "Sizes",
    "floats": "Sequence[float]",
    "pairs": "Pairs",
    "sections": "int | Sequence[int]",
}


def builders(namespace: str) -> dict[str, Callable[..., Call | TupleWrapper]]:
    """The builders of the operators of a namespace, "" or "nn", by their names in it."""
    found = {}
    for op in REGISTRY.values():
        within, _, name = op.name.rpartition(".")
        if op.doc and within == namespace:
            found[name] = _builder(op, name)
    return found


def _builder(op: RelayOp, name: str) -> Callable[..., Call | TupleWrapper]:
    signature = signature_of(op)
    at_run = REGISTRY.get(f"dyn.{op.name}")
    moved = _dynamic_attributes(op)
    attrs = {attr.name: attr for attr in op.attrs}
    defaults = {name: attr.default for name, attr in attrs.items() if attr.default is not REQUIRED}
    spoken = {name: own for name, own, _ in _arguments(op)}
    by_record = {  # whose None stands for the record's default
        own for name, own in spoken.items()
        if signature.parameters[name].default is None and defaults.get(own) is not None
    }  # fmt: skip
    sizes = {name for name in attrs if op.window and attrs[name].kind.startswith("sizes")}

    def build(*args: Any, **kwargs: Any) -> Call | TupleWrapper:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{op.name}: {error}") from None
        bound.apply_defaults()
        values = dict(op.absent)
        for name, value in bound.arguments.items():
            own = spoken[name]
            if value is not None or (own not in by_record and own not in op.absent):
                values[own] = _written_out(op, own, value) if own in sizes else value
        if op.gathers:
            values[op.inputs[0]] = _gathered(op, values[op.inputs[0]])
        for name, dtype in op.numbers.items():
            if isinstance(values[name], Real):
                values[name] = const(values[name], values.get(dtype, dtype))
        if at_run is None or not of_run(*(values[name] for name in moved)):
            given, made_by = [values[name] for name in op.inputs], op
        else:
            given, made_by = (
                [
                    as_argument(values[name], moved[name]) if name in moved else values[name]
                    for name in at_run.inputs
                ],
                at_run,
            )
        rest = {name: value for name, value in values.items() if name not in made_by.inputs}
        made = call(made_by.name, *given, **rest)
        count = _results(op, values | dict(made.attrs))
        return TupleWrapper(made, count) if count else made

    build.__name__ = build.__qualname__ = name
    build.__doc__ = op.doc
    build.__signature__ = signature  # type: ignore[attr-defined]
    return build


def _results(op: RelayOp, attrs: Mapping[str, Any]) -> int:
    """Of how many results the builder gives a tuple; 0 for one that is none."""
    if isinstance(op.results, int):
        return op.results
    name, counts = op.results
    if callable(counts):
        return counts(attrs[name])
    return counts.get(attrs[name], max(counts.values()))


def _gathered(op: RelayOp, value: Any) -> Any:
    """A tuple of tensors, of a list of them too."""
    what = f"{op.name}: {op.inputs[0]} must"
    if isinstance(value, ExprMethods):
        return value
    if not isinstance(value, (Sequence, TupleWrapper)):
        raise TypeError(f"{what} be a tuple of Relay expressions, got {value!r}")
    if not value:
        raise ValueError(f"{what} not be empty, got {value!r}")
    return Tuple(tuple(value))


def _written_out(op: RelayOp, name: str, value: Any) -> Any:
    """An attribute of a window as Relay's text has it, of one number or of all."""
    rank = op.window
    if name != "padding":
        return (value,) * rank if type(value) is int else value
    values = (value,) if type(value) is int else value
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(
            f"{op.name}: padding must be an integer or a list of integers, got {value!r}"
        )
    counts = sorted({1, rank, 2 * rank})
    if len(values) not in counts:
        listed = f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}"
        raise ValueError(f"{op.name}: padding must be {listed} integers, got {value!r}")
    return tuple(values) * (2 * rank // len(values))


def _dynamic_attributes(op: RelayOp) -> dict[str, str]:
    """The attributes that the operator of `dyn` takes as arguments, with these arguments' dtype."""
    attrs = attributes_of_run(op).values()
    return {a.name: "float32" if a.kind.startswith("float") else "int64" for a in attrs}


def signature_of(op: RelayOp) -> Signature:
    """A builder's arguments, with the names of their types."""
    kinds = {attr.name: attr.kind for attr in op.attrs}
    moved = _dynamic_attributes(op)
    parameters = []
    for name, own, default in _arguments(op):
        kind = "Expr" if own in op.inputs else TYPES[kinds[own].rstrip("?")]
        if op.gathers and own == op.inputs[0]:
            kind = "Expr | Sequence[Expr] | TupleWrapper"
        if own in moved and kind != "Sizes":
            kind += " | Expr"
        if own in op.numbers:
            kind += " | int" if op.numbers[own].startswith("int") else " | float"
        parameters.append(
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if default is REQUIRED else default,
                annotation=f"{kind} | None" if default is None else kind,
            )
        )
    of = op.results if isinstance(op.results, int) else op.results[1]
    counts = [of] if isinstance(of, int) else [1] if callable(of) else [*of.values()]
    gives = [kind for kind, is_given in (("Call", not all(counts)), ("TupleWrapper", any(counts)))
             if is_given]  # fmt: skip
    return Signature(parameters, return_annotation=" | ".join(gives))


def _arguments(op: RelayOp) -> Iterator[tuple[str, str, Any]]:
    """(name, the record's name for it, default or REQUIRED)."""
    asked = {a.name: a.default if a.asked is ... else a.asked for a in op.attrs}
    asked |= dict.fromkeys(op.inputs, REQUIRED)
    words = op.signature.split(", ") if op.signature else [*op.inputs, *(a.name for a in op.attrs)]
    for word in words:
        spoken, _, default = word.partition("=")
        name, _, own = spoken.partition(": ")
        own = own or name
        yield name, own, ast.literal_eval(default) if default else asked[own]
