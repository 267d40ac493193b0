"""Builders that only call their operator, made of its record: `relay.exp`, `relay.nn.softmax`, …

Of an operator with a `doc`.  Where a value that the record has as an attribute is known only at the
run, the operator of `dyn` is called, which takes it as an argument.

A module of this folder holds those of one namespace; beside it is its stub for type checkers, which
`pytest --update-golden tests/relay_wgrad/relay/test_builders.py` writes.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter, Signature
from typing import Any

from ...ast import Call
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


def builders(namespace: str) -> dict[str, Callable[..., Call]]:
    """The builders of the operators of a namespace, "" or "nn", by their names in it."""
    found = {}
    for op in REGISTRY.values():
        within, _, name = op.name.rpartition(".")
        if op.doc and within == namespace:
            found[name] = _builder(op, name)
    return found


def _builder(op: RelayOp, name: str) -> Callable[..., Call]:
    signature = signature_of(op)
    at_run = REGISTRY.get(f"dyn.{op.name}")
    moved = _moved(op)
    attrs = {attr.name: attr for attr in op.attrs}
    defaults = {name: attr.default for name, attr in attrs.items() if attr.default is not REQUIRED}
    by_record = {  # whose None stands for the record's default
        name for name, parameter in signature.parameters.items()
        if parameter.default is None and defaults.get(name) is not None
    }  # fmt: skip
    sizes = {name for name in attrs if op.window and attrs[name].kind.startswith("sizes")}

    def build(*args: Any, **kwargs: Any) -> Call:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{op.name}: {error}") from None
        bound.apply_defaults()
        values = {
            name: written_out(op.name, name, value, op.window) if name in sizes else value
            for name, value in bound.arguments.items()
            if value is not None or name not in by_record
        }
        if at_run is None or not of_run(*(values[name] for name in moved)):
            return call(op.name, *(values.pop(name) for name in op.inputs), **values)
        given = [
            as_argument(values.pop(name), moved[name]) if name in moved else values.pop(name)
            for name in at_run.inputs
        ]
        return call(at_run.name, *given, **values)

    build.__name__ = build.__qualname__ = name
    build.__doc__ = op.doc
    build.__signature__ = signature  # type: ignore[attr-defined]
    return build


def written_out(op: str, name: str, value: Any, rank: int) -> Any:
    """An attribute of a window of `rank` axes as Relay's text has it, of one number or of all."""
    if name != "padding":
        return (value,) * rank if type(value) is int else value
    values = (value,) if type(value) is int else value
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{op}: padding must be an integer or a list of integers, got {value!r}")
    counts = sorted({1, rank, 2 * rank})
    if len(values) not in counts:
        listed = f"{', '.join(map(str, counts[:-1]))} or {counts[-1]}"
        raise ValueError(f"{op}: padding must be {listed} integers, got {value!r}")
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
    for name, default in _arguments(op):
        kind = TYPES[kinds[name].rstrip("?")] if name in kinds else "Expr"
        if name in moved and kind != "Sizes":
            kind += " | Expr"
        parameters.append(
            Parameter(
                name,
                Parameter.POSITIONAL_OR_KEYWORD,
                default=Parameter.empty if default is REQUIRED else default,
                annotation=f"{kind} | None" if default is None else kind,
            )
        )
    return Signature(parameters, return_annotation="Call")


def _arguments(op: RelayOp) -> Iterator[tuple[str, Any]]:
    """(name, default or REQUIRED)."""
    if not op.signature:
        yield from ((name, REQUIRED) for name in op.inputs)
        yield from ((attr.name, attr.default) for attr in op.attrs)
        return
    (made,) = ast.parse(f"def build({op.signature}): ...").body
    assert isinstance(made, ast.FunctionDef)
    names = [argument.arg for argument in made.args.args]
    defaults = [ast.literal_eval(default) for default in made.args.defaults]
    yield from zip(names, [REQUIRED] * (len(names) - len(defaults)) + defaults, strict=True)
