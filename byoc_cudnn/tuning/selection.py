"""`Selection`: which backend was the fastest for a convolution when it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import tvm

from relay_wgrad.backend_names import STOCK

from ..fused import EPILOGUES
from .record import Measurement, Record
from .versions import machine_name, versions

if TYPE_CHECKING:
    from ..split.composite import Taken


Times = tuple[tuple[str, float], ...]  # (backend, milliseconds), the fastest first


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

    def choose(self, taken: Sequence[Taken]) -> tuple[Taken | None, Times]:
        """The one of a call's rows that gets it, with the options that its measurement chose, or
        None where the call stays; and the times that were compared.

        Rows that fuse as much as any that was measured are compared; without measurements it is the
        first.  TVM's own kernel is compared with rows that fuse nothing.
        """
        found = [(one, self._find(one)) for one in taken]
        measured = [(one, m, len(EPILOGUES[one.row.epilogue])) for one, m in found if m is not None]
        if not measured:
            return taken[0], ()
        most = max(fused for *_, fused in measured)
        compared = {one.backend.name: (one, m) for one, m, fused in measured if fused == most}
        times = {name: m.ms for name, (_, m) in compared.items()}
        stock = self.record.find(STOCK, taken[0].problem, "", {}, self.versions.get(STOCK))
        if stock is not None and most == 0:
            times[STOCK] = stock.ms
        ordered = tuple(sorted(times.items(), key=lambda item: item[1]))
        if ordered[0][0] == STOCK:
            return None, ordered
        best, measurement = compared[ordered[0][0]]
        return replace(best, options=replace(best.options, **measurement.pins)), ordered

    def _find(self, taken: Taken) -> Measurement | None:
        name = taken.backend.name
        return self.record.find(
            name, taken.problem, taken.row.epilogue, asdict(taken.options), self.versions.get(name)
        )
