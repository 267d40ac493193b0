"""What the user's record lacks of a module, measured on the GPU that is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tvm

from .record import Record
from .tune import tune

CANDIDATES = 3  # of a library for a problem: those that its model of the GPU ranks highest


def record_with(
    mod: tvm.IRModule,
    backends: Sequence[str],
    options: Mapping[str, Mapping[str, Any]],
    device: Any,
    progress: Callable[[str], None] = lambda what: None,
) -> Record:
    """The user's record with all convolutions and matrix products of a module in it.

    Raises as `tune` does, and OSError where the record cannot be written.
    """
    path = Record.default_path()
    record, given = Record.load(path), dict[str, Any](options)
    Record.check(path)
    before = len(record)
    tune(
        mod, tuple(backends), candidates=CANDIDATES, record=record, device=int(device.index),
        progress=lambda what, done, of: progress(what), **given,
    )  # fmt: skip
    if len(record) > before:
        record.save(path)
    return record
