"""Calls of operators by name, for what writes Relay rather than reads it."""

from __future__ import annotations

from typing import Any

from .ast import Call, Expr, Op
from .ops import lookup


def call(name: str, *args: Expr, **attrs: Any) -> Call:
    """A call with those attributes that are not at their default, as the text keeps them.

    Raises
    ------
    TypeError, ValueError : for an unknown operator or attribute, one of the wrong kind or missing.
    """
    op = lookup(name)
    values = op.read(attrs)
    kept = {
        a.name: values[a.name] for a in op.attrs if a.printed_always or values[a.name] != a.default
    }
    return Call(Op(name), args, kept)
