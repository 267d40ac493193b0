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

from ...ast import Call
from ...expr import TupleWrapper, const
from ...make import as_argument, call, of_run
from ...ops import REGISTRY, REQUIRED, RelayOp
from ...ops.table import attributes_of_run

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
    moved = _moved(op)
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
        for name, dtype in op.numbers.items():
            if isinstance(values[name], Real):
                values[name] = const(values[name], values.get(dtype, dtype))
        if at_run is None or not of_run(*(values[name] for name in moved)):
            count = _results(op, values)
            made = call(op.name, *(values.pop(name) for name in op.inputs), **values)
            return TupleWrapper(made, count) if count else made
        given = [
            as_argument(values.pop(name), moved[name]) if name in moved else values.pop(name)
            for name in at_run.inputs
        ]
        return call(at_run.name, *given, **values)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = op.doc
    build.__signature__ = signature  # type: ignore[attr-defined]
    return build


def _results(op: RelayOp, attrs: Mapping[str, Any]) -> int:
    """Of how many results the builder gives a tuple; 0 for one that is none."""
    if isinstance(op.results, int):
        return op.results
    name, counts = op.results
    return counts.get(attrs[name], max(counts.values()))


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


def _moved(op: RelayOp) -> dict[str, str]:
    """The attributes that the operator of `dyn` takes as arguments, with these arguments' dtype."""
    attrs = attributes_of_run(op).values()
    return {a.name: "float32" if a.kind.startswith("float") else "int64" for a in attrs}


def signature_of(op: RelayOp) -> Signature:
    """A builder's arguments, with the names of their types."""
    kinds = {attr.name: attr.kind for attr in op.attrs}
    moved = _moved(op)
    parameters = []
    for name, own, default in _arguments(op):
        kind = "Expr" if own in op.inputs else TYPES[kinds[own].rstrip("?")]
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
    counts = [op.results] if isinstance(op.results, int) else [*op.results[1].values()]
    gives = [kind for kind, is_given in (("Call", not all(counts)), ("TupleWrapper", any(counts)))
             if is_given]  # fmt: skip
    return Signature(parameters, return_annotation=" | ".join(gives))


def _arguments(op: RelayOp) -> Iterator[tuple[str, str, Any]]:
    """(name, the record's name for it, default or REQUIRED)."""
    if not op.signature:
        yield from ((name, name, REQUIRED) for name in op.inputs)
        yield from ((attr.name, attr.name, attr.default) for attr in op.attrs)
        return
    (made,) = ast.parse(f"def build({op.signature}): ...").body
    assert isinstance(made, ast.FunctionDef)
    names = [argument.arg for argument in made.args.args]
    own = [getattr(argument.annotation, "id", argument.arg) for argument in made.args.args]
    defaults = [ast.literal_eval(default) for default in made.args.defaults]
    yield from zip(names, own, [REQUIRED] * (len(names) - len(defaults)) + defaults, strict=True)
