"""Integer expressions as polynomials: what TVM's analyzer, which expands no products, can't tell.

A polynomial maps monomials to coefficients; a monomial is a sorted tuple of atoms, and an atom is a
variable or an operation that is no sum or product, such as `h // 2`, with polynomials below it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tvm import tirx

Polynomial = dict[tuple[Any, ...], int]
_TERMS = 200  # of a product: beyond, it is an atom


def polynomial(expr: Any) -> Polynomial:
    """An expression's normal form: equal for expressions that are equal by rings' laws."""
    if isinstance(expr, int):
        return {(): expr} if expr else {}
    if isinstance(expr, tirx.IntImm):
        return polynomial(int(expr.value))
    if isinstance(expr, tirx.Cast) and _is_int(expr) and _is_int(expr.value):
        return polynomial(expr.value)
    if isinstance(expr, (tirx.Add, tirx.Sub)):
        return _sum(polynomial(expr.a), polynomial(expr.b), 1 if type(expr) is tirx.Add else -1)
    if isinstance(expr, tirx.Mul):
        a, b = polynomial(expr.a), polynomial(expr.b)
        if len(a) * len(b) <= _TERMS:
            return _product(a, b)
    return {(_atom(expr),): 1}


def is_multiple(expr: Any, part: int) -> bool:
    """Whether all coefficients are multiples of a number."""
    return all(count % part == 0 for count in polynomial(expr).values())


def _is_int(expr: Any) -> bool:
    return str(expr.ty.dtype).startswith("int")


def _atom(expr: Any) -> tuple[Any, ...]:
    if isinstance(expr, tirx.Var):
        return (str(expr.name), hash(expr))
    if hasattr(expr, "a") and hasattr(expr, "b"):
        return (type(expr).__name__, *(_frozen(polynomial(part)) for part in (expr.a, expr.b)))
    names = tirx.analysis.undefined_vars(expr)
    return (str(expr), tuple(sorted(hash(name) for name in names)))


def _frozen(terms: Polynomial) -> tuple[Any, ...]:
    return tuple(sorted(terms.items(), key=repr))


def _sum(a: Polynomial, b: Polynomial, sign: int) -> Polynomial:
    out = dict(a)
    for term, count in b.items():
        out[term] = out.get(term, 0) + sign * count
    return {term: count for term, count in out.items() if count}


def _product(a: Polynomial, b: Polynomial) -> Polynomial:
    out: Polynomial = {}
    for (x, m), (y, n) in product(a.items(), b.items()):
        term = tuple(sorted((*x, *y), key=repr))
        out[term] = out.get(term, 0) + m * n
    return {term: count for term, count in out.items() if count}
