"""Sums of products by letters."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from tvm import relax

from ..types import Dim, TensorType, Type
from .facts import INJECTIVE
from .relations import agree
from .select import fields_of
from .table import REQUIRED, Attr, Call, Site, define, show

_DOTS = "..."


def _terms(call: Call) -> tuple[list[str], str]:
    """The letters of each operand, and of the result; where none are said, those that stand once,
    in their order."""
    equation = str(call.attrs["equation"]).replace(" ", "")
    left, arrow, right = equation.partition("->")
    operands = left.split(",")
    letters = left.replace(_DOTS, "").replace(",", "")
    for term in (*operands, right):
        plain = term.replace(_DOTS, "", 1)
        if plain and not (plain.isalpha() and plain.isascii()):
            call.fail(f"equation must be of letters, commas, `...` and `->`, got {equation!r}")
    if not arrow:
        dots = _DOTS if _DOTS in left else ""
        right = dots + "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if len(set(right)) - ("." in right) != len(right.replace(_DOTS, "")):
        call.fail(f"a letter stands twice in the result of {equation!r}")
    if not set(right) <= set(left):
        call.fail(f"the result of {equation!r} has a letter that no operand has")
    return operands, right


def _type(call: Call) -> Type:
    tensors, (terms, result) = call.fields(), _terms(call)
    if len(terms) != len(tensors):
        call.fail(f"equation has {len(terms)} operands, got {len(tensors)} tensors")
    sizes: dict[str, Dim] = {}
    wide: list[Dim] = []
    for term, ty in zip(terms, tensors, strict=True):
        if ty.dtype != tensors[0].dtype:
            call.fail(f"all tensors must have one dtype, got {show(tensors[0])} and {show(ty)}")
        rest = len(ty.shape) - len(term.replace(_DOTS, ""))
        if rest < 0 or (rest and _DOTS not in term):
            call.fail(f"{term!r} does not fit {show(ty)}")
        at = term.index(_DOTS) if _DOTS in term else len(term)
        dims = [*ty.shape[:at], *ty.shape[at + rest :]]
        for letter, size in zip(term.replace(_DOTS, ""), dims, strict=True):
            if not agree(sizes.setdefault(letter, size), size):
                given = ", ".join(map(show, tensors))
                call.fail(f"{letter!r} is {sizes[letter]} and {size}: {given}")
        both = zip_longest(reversed(wide), reversed(ty.shape[at : at + rest]), fillvalue=1)
        pairs = list(both)[::-1]
        if not all(agree(a, b) or 1 in (a, b) for a, b in pairs):
            call.fail(f"`...` does not fit: {', '.join(map(show, tensors))}")
        wide = [b if a == 1 else a for a, b in pairs]
    before, dots, after = result.partition(_DOTS)
    middle = wide if dots else []
    out = (*(sizes[c] for c in before), *middle, *(sizes[c] for c in after))
    return TensorType(out, tensors[0].dtype)


def _build(s: Site) -> Any:
    terms, result = _terms(s)
    return relax.op.einsum(relax.Tuple(fields_of(s)), f"{','.join(terms)}->{result}")


define("einsum", "data", _type, _build, "numpy", Attr("equation", REQUIRED, "str"),
       kind=INJECTIVE, level=11, gathers=True,
       doc="Products of the tensors, summed over the letters that the result of `equation` has "
           "not.")  # fmt: skip
