"""Calls of operators by name, for what writes Relay rather than reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .ast import Call, Constant, Expr, MetaAttrs, Op
from .dims import Dim
from .expr_methods import ExprMethods
from .records import RelayOp, lookup

Sizes = int | Sequence[Dim] | Expr
"""One size or several, or a constant that holds them."""
Pairs = Sequence[Sequence[int]] | Expr


def call(name: str, *args: Any, **attrs: Any) -> Call:
    """A call with those attributes that are not at their default, as the text keeps them.

    An attribute may be a Constant, which stands for its numbers.

    Raises
    ------
    TypeError, ValueError : for an unknown operator or attribute, one of the wrong kind or missing,
        an argument that is no expression, a wrong number of arguments.
    """
    op = lookup(name)
    op.check_count(len(args))
    nodes = [_argument(op, index, arg) for index, arg in enumerate(args)]
    scalars = {a.name for a in op.attrs if a.kind.rstrip("?") in ("int", "float", "number", "bool")}
    values = op.read({k: _plain(name, k, value, k in scalars) for k, value in attrs.items()})
    if op.open_attrs:
        return Call(Op(name), tuple(nodes), values)
    if op.meta is not None:
        fields = {a.name: _spelled(a.kind, values[a.name]) for a in op.attrs}
        return Call(Op(name), tuple(nodes), MetaAttrs(op.meta, fields))
    kept = {
        a.name: values[a.name]
        for a in op.attrs
        if a.printed_always or not _same(values[a.name], a.default)
    }
    return Call(Op(name), tuple(nodes), kept)


def of_run(*values: Any) -> bool:
    """Whether one of the values is an expression that is no constant: then only the run knows it,
    and the operator is one of `dyn`."""
    return any(isinstance(v, ExprMethods) and not isinstance(v, Constant) for v in values)


def as_argument(value: Any, dtype: str) -> Any:
    """A value that stands beside such an expression, as an argument."""
    return value if isinstance(value, ExprMethods) else Constant(np.asarray(value, dtype))


def _argument(op: RelayOp, index: int, value: Any) -> Any:
    if isinstance(value, ExprMethods):
        return value
    if hasattr(value, "astuple"):
        return value.astuple()
    which = op.inputs[index] if index < len(op.inputs) else f"argument {index}"
    raise TypeError(
        f"{op.name}: {which} must be a Relay expression, got {value!r} of {type(value).__name__}"
        " (relay.const makes one of a number or an array)"
    )


def _plain(op: str, name: str, value: Any, is_scalar: bool) -> Any:
    if isinstance(value, Constant):
        return value.data.item() if is_scalar and value.data.size == 1 else value.data.tolist()
    if isinstance(value, ExprMethods):
        raise ValueError(
            f"{op}: {name} must be known when the program is written, got {value!r};"
            " operators of dynamic shape are not supported"
        )
    return value


def _spelled(kind: str, value: Any) -> Any:
    """A value as metadata has it: no dtype is the empty string."""
    return "" if kind == "dtype" and value is None else value


def _same(value: Any, default: Any) -> bool:
    """Relay's rule for leaving an attribute out: numbers may differ by 1e-9."""
    if isinstance(default, float) and isinstance(value, float):
        return abs(value - default) < 1e-9
    return bool(value == default)
