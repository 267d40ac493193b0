"""Rows of `benchmarks.gpu_training --against`: all sides of a row in one call, a process each.

The file is written after each row and keeps the rows of earlier calls; with `--resume` a row that
it has is not measured again, on the same device with the same PyTorch.  What the time budget leaves
no room for is named, in the file too: a row is begun only if as much time is left as the longest
took, and a side that the budget ends is an error of its row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_models import DEFAULT
from benchmarks.gpu_sides import DTYPES, PYTORCH, SIDES, Row
from relay_wgrad import output

Measure = Callable[[str, Row, float], dict[str, Any]]


def side(name: str, row: Row, seconds: float, device: str = "cuda") -> dict[str, Any]:
    """A side's figures, or its error, from a process of its own."""
    command = [
        sys.executable, "-m", "benchmarks.gpu_sides", name, json.dumps(row._asdict()),
        "--device", device,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False,
            timeout=None if math.isinf(seconds) else max(seconds, 1.0),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"error": "the time budget ended it"}
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"error": lines[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


@dataclass
class Campaign:
    """Rows to measure, and what is known.

    facts : of the machine; rows of another one, or without them all, are measured again.
    """

    sides: Sequence[str]
    facts: dict[str, Any]
    measure: Measure
    budget: float = math.inf
    path: Path | None = None
    resume: bool = False

    def run(self, wanted: Sequence[Row], clock: Callable[[], float] = time.monotonic) -> Any:
        """(the rows, those not measured)."""
        start, longest = clock(), 0.0
        known = {self._key(r): r for r in self._stored()}
        rows, left = [], []
        for row in wanted:
            asked = {**row._asdict(), **self.facts}
            old = known.get(self._key(asked))
            if self.resume and old is not None and self._is_whole(old):
                rows.append(old)
                continue
            rest = self.budget - (clock() - start)
            if rest <= 0 or rest < longest:
                left.append(row)
                continue
            began = clock()
            figures = {
                name: self.measure(name, row, self.budget - (clock() - start))
                for name in self.sides
            }
            longest = max(longest, clock() - began)
            when = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
            found = {**asked, "when": when, "sides": figures}
            rows.append(found)
            known[self._key(found)] = found
            self._save(list(known.values()), left)
        self._save(list(known.values()), left)
        return rows, left

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in (*Row._fields, *self.facts))

    def _is_whole(self, row: dict[str, Any]) -> bool:
        return all(name in row["sides"] and "error" not in row["sides"][name]
                   for name in self.sides)  # fmt: skip

    def _stored(self) -> list[dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return []
        return list(json.loads(self.path.read_text(encoding="utf-8"))["rows"])

    def _save(self, rows: list[dict[str, Any]], left: list[Row]) -> None:
        if self.path is not None:
            missing = [row._asdict() for row in left]
            output.write_json(self.path, {"rows": rows, "not_measured": missing})


def ratio(row: dict[str, Any]) -> float:
    """Our time over the best of PyTorch's; NaN where one is missing."""
    found = {name: figures["ms"] for name, figures in row["sides"].items() if "ms" in figures}
    theirs = [found[name] for name in PYTORCH if name in found]
    return float(found["ours"] / min(theirs)) if theirs and "ours" in found else math.nan


def table(rows: list[dict[str, Any]], sides: Sequence[str]) -> Table:
    """The rows for people: milliseconds and MiB of each side."""
    out = Table(title="forward and backward: ms (MiB), and ours over the best of PyTorch's")
    for name in ("model", "dtype", "batch", *sides, "ratio"):
        out.add_column(name, justify="left" if name in ("model", "dtype") else "right")
    for row in rows:
        cells = []
        for name in sides:
            found = row["sides"].get(name, {"error": "not measured"})
            if "error" in found:
                cells.append(found["error"][:60])
                continue
            memory = f" ({found['memory'] / 2**20:.0f})" if "memory" in found else ""
            cells.append(f"{found['ms']:.2f}{memory}")
        out.add_row(row["model"], row["dtype"], str(row["batch"]), *cells, f"{ratio(row):.2f}")
    return out


def disagreements(rows: list[dict[str, Any]], most: float = 0.05) -> list[str]:
    """Rows whose sides are further apart in the loss or in the gradients' norm: one line each."""
    lines = []
    for row in rows:
        good = {n: f for n, f in row["sides"].items() if "error" not in f}
        for what in ("loss", "norm"):
            values = [f[what] for f in good.values()]
            if values and not max(values) - min(values) <= most * max(map(abs, values)):
                said = ", ".join(f"{n} {f[what]:.4g}" for n, f in good.items())
                lines.append(f"{row['model']} {row['dtype']}: the sides differ in {what}: {said}")
    return lines


def run(args: argparse.Namespace) -> int:
    """The rows that `benchmarks.gpu_training`'s arguments ask for; 1 where a side fails."""
    sides = ["ours", *(name for name in args.against.split(",") if name)]
    unknown = sorted(set(sides) - set(SIDES))
    if unknown:
        raise ValueError(f"--against takes {', '.join(SIDES[1:])}, got {', '.join(unknown)}")
    dtypes = args.dtypes.split(",")
    if wrong := sorted(set(dtypes) - set(DTYPES)):
        raise ValueError(f"--dtypes takes {', '.join(DTYPES)}, got {', '.join(wrong)}")
    models = list(DEFAULT) if args.model == "all" else args.model.split(",")
    wanted = [
        Row(model, args.batch, args.image_size, dtype)
        for dtype, model in itertools.product(dtypes, models)
    ]
    facts = {
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "torch": torch.__version__,
    }
    campaign = Campaign(
        sides, facts, lambda name, row, rest: side(name, row, rest, args.device),
        args.time_budget or math.inf, Path(args.json) if args.json else None, args.resume,
    )  # fmt: skip
    rows, left = campaign.run(wanted)
    console = Console(width=160)
    console.print(table(rows, sides))
    for line in disagreements(rows):
        console.print(line)
    for row in left:
        console.print(f"not measured, for time: {row.model} {row.dtype}, batch {row.batch}")
    good = [r for r in map(ratio, rows) if not math.isnan(r)]
    if good:
        mean = math.exp(sum(map(math.log, good)) / len(good))
        console.print(f"{len(good)} rows: geometric mean {mean:.3f}, worst {max(good):.2f}")
    return int(any("error" in f for row in rows for f in row["sides"].values()))
