"""What a training writes while it runs: rows of a CSV file, and TensorBoard's events.

A resumed training's log goes on where its state was saved: later rows of the same file are left
out.  TensorBoard needs the extra `tensorboard`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from .. import output
from ..extras import extra_module

FIELDS = ("step", "epoch", "loss", "rate", "seconds", "test_loss", "accuracy")
"""`step`: how many were before; a row with `test_loss` is of an evaluation after so many."""


class Log:
    """Both, where they are asked for; neither needs anything.

    path : a CSV file; rows of a training with fewer than `steps` steps stay.
    events : a folder of TensorBoard's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        events: str | os.PathLike[str] | None = None,
        steps: int = 0,
    ) -> None:
        self._file: TextIO | None = None
        self.gap = False
        """Whether it goes on behind a step after which nothing was evaluated."""
        self._events = _writer(events, steps) if events is not None else None
        if path is not None:
            kept = _rows_before(path, steps) if steps else []
            self.gap = bool(kept) and not kept[-1]["test_loss"]
            with output.replacing(path) as made, made.open("w", encoding="utf-8") as new:
                writer = csv.DictWriter(new, FIELDS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(kept)
            self._file = Path(path).open("a", encoding="utf-8", newline="")  # noqa: SIM115
            self._csv = csv.DictWriter(self._file, FIELDS, lineterminator="\n")

    def row(self, **values: float | None) -> None:
        """Of `FIELDS`, `step` among them; others stay empty."""
        if self._file is not None:
            given = {k: v for k, v in values.items() if v is not None}
            self._csv.writerow({k: _short(v) for k, v in given.items()})
            if "test_loss" in values:
                self._file.flush()
        if self._events is not None:
            step = int(values["step"] or 0)
            for name, value in values.items():
                if name not in ("step", "epoch") and value is not None:
                    self._events.add_scalar(name, value, step)

    def flush(self) -> None:
        """Writes what is not written yet: a state that is saved then has a row for each step."""
        if self._file is not None:
            self._file.flush()
        if self._events is not None:
            self._events.flush()

    def close(self) -> None:
        """Writes what is not written yet."""
        if self._file is not None:
            self._file.close()
        if self._events is not None:
            self._events.close()

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()


def check_tensorboard() -> None:
    """Raises ModuleNotFoundError where the extra is missing."""
    _tensorboard()


def _tensorboard() -> Any:
    need = "TensorBoard's logs need tensorboardX"
    return extra_module("tensorboardX", need, "tensorboard")


def _writer(folder: str | os.PathLike[str], steps: int) -> Any:
    purge = {"purge_step": steps} if steps else {}
    return _tensorboard().SummaryWriter(os.fspath(folder), **purge)


def _rows_before(path: str | os.PathLike[str], steps: int) -> list[Mapping[str, str]]:
    """Raises ValueError for a file that is no log."""
    if not Path(path).exists():
        return []
    with Path(path).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != FIELDS:
            raise ValueError(f"{os.fspath(path)!r} is no log of a training: {reader.fieldnames}")
        rows = list(reader)
    try:  # an evaluation after the last step stays, that step's own row does not
        return [r for r in rows if int(r["step"]) < steps + (r["test_loss"] != "")]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)!r} is no log of a training: {error}") from error


def _short(value: float) -> str:
    return repr(value) if isinstance(value, float) else str(value)
