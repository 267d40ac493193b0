"""What is asked of a convolution of JAX's, and what became of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple


class Options(NamedTuple):
    """precision : the name of the `lax.Precision` that was asked for, the higher one of two."""

    precision: str = "DEFAULT"

    @property
    def allow_tf32(self) -> bool:
        """Whether float32's products may be of TF32 on CUDA: HIGH has more digits than those."""
        return self.precision == "DEFAULT"


@dataclass(frozen=True)
class Record:
    """What became of a convolution: its problem as text ("zeros" of one whose sums have no term),
    and why it is `lax`'s, or "".

    ours_ms, lax_ms : a call's time by this package's kernel and by XLA's, where they were compared;
        lax_ms is infinite where XLA was still at its program when it was waited for no longer.
    """

    problem: str
    reason: str = ""
    ours_ms: float | None = None
    lax_ms: float | None = None


class _Records(threading.local):
    kept: list[Record] | None = None
    is_portable = False


_records = _Records()


@contextmanager
def portable() -> Iterator[None]:
    """Within it, what this thread lowers has `lax`'s convolutions: not XLA here will run it."""
    before, _records.is_portable = _records.is_portable, True
    try:
        yield
    finally:
        _records.is_portable = before


def is_portable() -> bool:
    return _records.is_portable


@contextmanager
def recorded() -> Iterator[list[Record]]:
    """Within it, what became of each convolution that this thread traces."""
    before, _records.kept = _records.kept, []
    try:
        yield _records.kept
    finally:
        _records.kept = before


def told(problem: str, reason: str = "") -> None:
    if _records.kept is not None:
        _records.kept.append(Record(problem, reason))


def lowered(
    problem: str, reason: str = "", times: tuple[float | None, float] | None = None
) -> None:
    """What became of all convolutions of a problem; times : milliseconds, ours and `lax`'s."""
    kept = _records.kept
    if kept is None:
        return
    made = Record(problem, reason, *(times or ()))
    places = [i for i, record in enumerate(kept) if record.problem == problem]
    if not places and made != Record(problem):  # of a derivative, which is traced without a record
        kept.append(made)
    for i in places:
        kept[i] = made
