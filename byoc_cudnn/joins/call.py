"""`JoinsCall`: what a join computes, but for the number of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from relay_wgrad.dtypes import FLOATS

from ..codegen.kernel_names import Words, known
from ..codegen.templates import constants
from ..decision import YES, Decision, no

DTYPES = FLOATS
WORDS: Words = {"dtype": DTYPES}
_MOST = constants("joins", "joins_call.h")
PIECES, TERMS = _MOST["kRelayWgradPieces"], _MOST["kRelayWgradTerms"]
"""Of a call, at most."""
CHANNELS = 1 << 24
"""Of a tensor, at most."""


class Term(NamedTuple):
    """Channels of an operand, from the `first` on."""

    operand: int
    first: int


class Piece(NamedTuple):
    """Neighbouring channels of a result: the sum of its terms, zeros where it has none."""

    width: int
    terms: tuple[Term, ...]


@dataclass(frozen=True)
class JoinsCall:
    """One call that joins, cuts and adds tensors along their last axis.

    Each operand and result has the same axes but the last, whose length is `channels`' for an
    operand and the sum of its pieces' widths for a result.  The terms of a piece are added in
    order, in the dtype of sums, and each sum is rounded as if it were stored: in half as PyTorch's
    additions of two tensors, one after another.  A result may lie over an operand of which it has
    channels at their own places and no others (`overwrites`): those are not copied then.

    symbol : of the function that computes it.
    """

    symbol: str
    dtype: str
    channels: tuple[int, ...]
    results: tuple[tuple[Piece, ...], ...]

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Of all results."""
        return tuple(piece for result in self.results for piece in result)

    @property
    def overwrites(self) -> tuple[tuple[int, int], ...]:
        """Results and operands, by their numbers, in whose places they may be written."""
        found = []
        for operand, channels in enumerate(self.channels):
            reads = [
                (result, begin == term.first and len(piece.terms) == 1)
                for result, pieces in enumerate(self.results)
                for begin, piece in _with_begins(pieces)
                for term in piece.terms
                if term.operand == operand
            ]
            results = {result for result, stays in reads}
            if len(results) == 1 and all(stays for _, stays in reads):
                (result,) = results
                if sum(piece.width for piece in self.results[result]) == channels:
                    found.append((result, operand))
        return tuple(found)


def _with_begins(pieces: tuple[Piece, ...]) -> Iterator[tuple[int, Piece]]:
    """Pieces of a result, and the channel that each begins at."""
    begin = 0
    for piece in pieces:
        yield begin, piece
        begin += piece.width


def check(call: JoinsCall) -> Decision:
    """Whether there is a kernel for a call, or why there is none."""
    if not (decision := known(call, WORDS)):
        return decision
    pieces = call.pieces
    if not pieces or not all(call.results):
        return no("a result without channels")
    terms = sum(len(piece.terms) for piece in pieces)
    if len(pieces) > PIECES or terms > TERMS:
        return no(f"{len(pieces)} pieces of {terms} terms, at most {PIECES} of {TERMS}")
    for piece in pieces:
        if piece.width < 1:
            return no(f"a piece of {piece.width} channels")
        for operand, first in piece.terms:
            if not 0 <= operand < len(call.channels):
                return no(f"operand {operand} of {len(call.channels)}")
            if first < 0 or first + piece.width > call.channels[operand]:
                last = first + piece.width
                return no(f"channels {first} to {last} of {call.channels[operand]}")
    if max(*call.channels, *(sum(p.width for p in r) for r in call.results), 0) > CHANNELS:
        return no(f"more than {CHANNELS} channels")
    return YES
