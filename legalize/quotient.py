"""Quotients of indices that TVM must not simplify.

TVM 0.27 rewrites the indices of buffers by `iter_map_simplify`, which takes (v % 56 + 1) // 2 of a
loop's variable v for ((v + 1) % 56) // 2: wrong at v = 55, and so for every digit v % m with an
offset wherever the divisor divides m; and (c - v) // s of a variable of negative sign, and its
remainder.  Digits come from fusing loops, which schedules do at will.  Quotients that round towards
zero are left alone, and for what is not negative they are the same.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

Expr = Any


def quotient(a: Expr, b: Expr, least: int = 0) -> Expr:
    """The floor of a / b, for a >= `least` and b > 0.  Plain ints give a plain int."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(b, int) and b == 1:
        return a
    if least >= 0:
        return tirx.truncdiv(a, b)
    # A shift by whole divisors makes the dividend positive.
    shift = -(least // b)
    return tirx.truncdiv(a + shift * b, b) - shift


def share(part: Expr, units: Expr, parts: Expr) -> tuple[Expr, Expr]:
    """(first, last but one) of the units that fall to one of so many parts, as even as can be."""
    return quotient(part * units, parts), quotient((part + 1) * units, parts)
