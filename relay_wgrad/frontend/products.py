"""Sums of products by letters (einsum), of matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import relax

from .context import Context, shape_of
from .sizes import same

op = relax.op


def einsum(ctx: Context, equation: str, operands: Sequence[Any]) -> Any:
    """The operands' products, summed over the letters that the result does not have.

    One operand after another, from the left.  Raises ValueError for a letter twice in an operand,
    or another number of letters than axes.
    """
    terms, result = _terms(equation, [len(shape_of(x)) for x in operands])
    sizes: dict[str, Any] = {}
    for term, x in zip(terms, operands, strict=True):
        for letter, size in zip(term, shape_of(x), strict=True):
            known = sizes.get(letter, 1)
            if not same(known, 1) and not same(known, size) and not same(size, 1):
                raise ValueError(f"{equation!r}: {letter} is {known} and {size}")
            sizes[letter] = size if same(known, 1) else known
    if not all(same(s, sizes[c]) for t, x in zip(terms, operands, strict=True)
               for c, s in zip(t, shape_of(x), strict=True)):  # fmt: skip
        raise ValueError(f"{equation!r}: axes of size 1 that are broadcast are not supported")
    held, left = operands[0], terms[0]
    for i, (term, x) in enumerate(zip(terms[1:], operands[1:], strict=True), start=1):
        later = set(result).union(*terms[i + 1 :])
        held, left = _pair(ctx, held, left, x, term, later, sizes)
    held, left = _summed(ctx, held, left, set(result))
    return _ordered(ctx, held, left, result)


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The operands' and the result's letters; those of `...` are capitals that are not used."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(ranks):
        raise ValueError(f"{equation!r} has {len(terms)} operands, got {len(ranks)}")
    free = [chr(c) for c in range(ord("A"), ord("Z") + 1) if chr(c) not in equation]
    hidden = max(r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True))
    dots = "".join(free[: max(hidden, 0)])
    if not arrow:
        letters = "".join(sorted({c for t in terms for c in t.replace("...", "")}))
        result = "..." * ("..." in inputs) + "".join(c for c in letters if inputs.count(c) == 1)
    full = []
    for term, rank in zip(terms, ranks, strict=True):
        count = rank - len(term.replace("...", ""))
        whole = term.replace("...", dots[len(dots) - count :] if count else "")
        if len(whole) != rank or len(set(whole)) != rank:
            raise ValueError(f"{equation!r}: {term!r} does not name {rank} different axes")
        full.append(whole)
    return full, result.replace("...", dots)


def _pair(
    ctx: Context, a: Any, left: str, b: Any, right: str, later: set[str], sizes: dict[str, Any]
) -> tuple[Any, str]:
    """(a times b, its letters), summed over what neither the result nor a later operand has."""
    a, left = _summed(ctx, a, left, later | set(right))
    b, right = _summed(ctx, b, right, later | set(left))
    batch = [c for c in left if c in right and c in later]
    over = [c for c in left if c in right and c not in later]
    rows = [c for c in left if c not in right]
    columns = [c for c in right if c not in left]
    shared = "".join(batch)
    lhs = _ordered(ctx, a, left, f"{shared}{''.join(rows)}{''.join(over)}")
    rhs = _ordered(ctx, b, right, f"{shared}{''.join(over)}{''.join(columns)}")

    def size(letters: Sequence[str]) -> Any:
        return math.prod(sizes[c] for c in letters)

    lhs = ctx.emit(op.reshape(lhs, (size(batch), size(rows), size(over))))
    rhs = ctx.emit(op.reshape(rhs, (size(batch), size(over), size(columns))))
    out = ctx.emit(op.matmul(lhs, rhs))
    letters = f"{shared}{''.join(rows)}{''.join(columns)}"
    return ctx.emit(op.reshape(out, [sizes[c] for c in letters])), letters


def _summed(ctx: Context, x: Any, letters: str, kept: set[str]) -> tuple[Any, str]:
    axes = [i for i, c in enumerate(letters) if c not in kept]
    if not axes:
        return x, letters
    return ctx.emit(op.sum(x, axes)), "".join(c for c in letters if c in kept)


def _ordered(ctx: Context, x: Any, letters: str, wanted: str) -> Any:
    if sorted(letters) != sorted(wanted):
        raise ValueError(f"the result's {wanted!r} are not the operands' {letters!r}")
    axes = [letters.index(c) for c in wanted]
    return x if axes == sorted(axes) else ctx.emit(op.permute_dims(x, axes))
