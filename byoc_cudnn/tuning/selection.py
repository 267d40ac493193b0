"""`Selection`: which backend was the fastest for a convolution when it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tvm

from relay_wgrad.problem import ConvProblem

from ..fused import EPILOGUES
from ..table import STOCK
from .record import Measurement, Record
from .versions import machine_name, versions


@dataclass(frozen=True)
class Picked:
    """index : of the row that gets the call; None where it stays.

    times : (backend, milliseconds) of what was measured, the fastest first.
    options : for each backend its options, with those that a measurement chose.
    """

    index: int | None
    times: tuple[tuple[str, float], ...]
    options: Mapping[str, Any]


class Selection:
    """A record, read for the machine that is here."""

    def __init__(self, record: Record | str | Path | None) -> None:
        if not isinstance(record, Record):
            record = Record.load(Record.default_path() if record is None else record)
        self.record = record
        self.versions = versions()
        device = tvm.cuda(0)
        if record.machine is None and device.exist:
            record.machine = machine_name(device)

    def choose(
        self,
        problem: ConvProblem,
        rows: Sequence[tuple[str, str]],
        options: Mapping[str, Any],
    ) -> Picked:
        """Among rows (backend, epilogue), in order of preference.

        Rows that fuse as much as any that was measured are compared; without measurements it is the
        first.  TVM's own kernel is compared with rows that fuse nothing.
        """
        found = [self._find(name, problem, e, asdict(options[name])) for name, e in rows]
        measured = [i for i, m in enumerate(found) if m is not None]
        if not measured:
            return Picked(0, (), options)
        most = max(len(EPILOGUES[rows[i][1]]) for i in measured)
        compared = [i for i in measured if len(EPILOGUES[rows[i][1]]) == most]
        times = {rows[i][0]: m.ms for i in compared if (m := found[i]) is not None}
        stock = self._find(STOCK, problem, "", {}) if most == 0 else None
        if stock is not None:
            times[STOCK] = stock.ms
        ordered = tuple(sorted(times.items(), key=lambda item: item[1]))
        if ordered[0][0] == STOCK:
            return Picked(None, ordered, options)
        index = next(i for i in compared if rows[i][0] == ordered[0][0])
        chosen = found[index]
        assert chosen is not None
        backend = rows[index][0]
        pinned = replace(options[backend], **chosen.pins)
        return Picked(index, ordered, {**options, backend: pinned})

    def _find(
        self, backend: str, problem: ConvProblem, epilogue: str, options: Mapping[str, Any]
    ) -> Measurement | None:
        return self.record.find(backend, problem, epilogue, options, self.versions.get(backend))
