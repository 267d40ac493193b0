"""Rows of `benchmarks.gpu_training --against`: sides in processes of their own, built at one time.

Processes compile side by side (`--jobs`), and use the GPU one after another (`gpu_turns`).  The
file is written after each side and keeps the rows of earlier calls; with `--resume` a row of which
it has all sides is not measured again, on the same device with the same PyTorch.  What the time
budget leaves no room for is named, in the file too, and measured by the next call with `--resume`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_models import DEFAULT
from benchmarks.gpu_sides import DTYPES, OURS, PYTORCH, SIDES, Row
from benchmarks.gpu_turns import ENDED, Turnstile, converse, interruptible
from relay_wgrad import output

Told = Callable[[str, dict[str, Any]], None]
# (sides of one process, row, the row's number, seconds left, told of each side) -> its error
Measure = Callable[[Sequence[str], Row, int, float, Told], str | None]


@dataclass
class Processes:
    """Measures sides in processes.

    jobs : how many at a time, of the machine's cores.  longest : seconds that one may keep the GPU.
    """

    device: str = "cuda"
    jobs: int = 1
    longest: float = math.inf
    select: str = "first"
    caches: str | None = None

    def __post_init__(self) -> None:
        self._turnstile = Turnstile()

    def __call__(
        self, sides: Sequence[str], row: Row, number: int, seconds: float, told: Told
    ) -> str | None:
        cores = os.cpu_count() or 1
        environment = {
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(2, 2 * cores // self.jobs)),
            "OMP_NUM_THREADS": str(max(1, cores // self.jobs)),
            **os.environ,
            **({"RELAY_WGRAD_CACHE": self.caches} if self.caches else {}),
        }
        command = [
            sys.executable, "-m", "benchmarks.gpu_sides", ",".join(sides),
            json.dumps(row._asdict()), "--device", self.device, "--select", self.select,
        ]  # fmt: skip
        return converse(
            command, number, self._turnstile, lambda said: told(said["side"], said["figures"]),
            time.monotonic() + seconds, self.longest, environment,
        )  # fmt: skip


@dataclass
class Campaign:
    """Rows to measure, and what is known.

    groups : sides that share a process.
    facts : of the machine; rows of another one, or without them all, are measured again.
    """

    groups: Sequence[Sequence[str]]
    facts: dict[str, Any]
    measure: Measure
    budget: float = math.inf
    path: Path | None = None
    resume: bool = False
    jobs: int = 1

    @property
    def sides(self) -> list[str]:
        return [side for group in self.groups for side in group]

    def run(self, wanted: Sequence[Row], clock: Callable[[], float] = time.monotonic) -> Any:
        """(the rows with all sides, those not measured)."""
        end = clock() + self.budget
        known = {self._key(r): r for r in self._stored()}
        rows = [self._begun(row, known) for row in wanted]
        writing = threading.Lock()

        def one(number: int, group: Sequence[str]) -> None:
            figures = rows[number]["sides"]

            def told(side: str, found: dict[str, Any]) -> None:
                with writing:
                    figures[side] = found
                    rows[number]["when"] = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
                    known[self._key(rows[number])] = rows[number]
                    self._save(list(known.values()), self._left(wanted, rows))

            error: str | None = ENDED
            if (rest := end - clock()) > 0:
                error = self.measure(group, wanted[number], number, rest, told)
            for side in group:
                if side not in figures and error != ENDED:
                    told(side, {"error": error or "it said nothing"})

        with ThreadPoolExecutor(self.jobs) as pool:
            tasks = [
                pool.submit(one, i, group)
                for i, row in enumerate(rows) if not row["sides"] for group in self.groups
            ]  # fmt: skip
            for task in tasks:
                task.result()
        left = self._left(wanted, rows)
        self._save(list(known.values()), left)
        return [row for row in rows if row["sides"]], left

    def _begun(self, row: Row, known: dict[Any, dict[str, Any]]) -> dict[str, Any]:
        """The row's entry: the known one, if it is to be kept, else without sides."""
        asked = {**row._asdict(), **self.facts}
        old = known.get(self._key(asked))
        if self.resume and old is not None and self._is_whole(old):
            return old
        return {**asked, "sides": {}}

    def _left(self, wanted: Sequence[Row], rows: list[dict[str, Any]]) -> list[Row]:
        return [
            row for row, found in zip(wanted, rows, strict=True)
            if any(side not in found["sides"] for side in self.sides)
        ]  # fmt: skip

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
    """Our best time over the best of PyTorch's; NaN where one is missing."""
    found = {name: figures["ms"] for name, figures in row["sides"].items() if "ms" in figures}
    theirs = [found[name] for name in PYTORCH if name in found]
    mine = [found[name] for name in OURS if name in found]
    return float(min(mine) / min(theirs)) if theirs and mine else math.nan


def table(rows: list[dict[str, Any]], sides: Sequence[str]) -> Table:
    """The rows for people: milliseconds and MiB of each side, our host's and convolutions' ms."""
    out = Table(title="forward and backward: ms (MiB), and ours over the best of PyTorch's")
    for name in ("model", "dtype", "batch", *sides, "ratio", "host ms", "convolutions"):
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
        mine = row["sides"].get("ours", {})
        kinds = mine.get("split", {}).get("kinds", {})
        in_all = sum(kinds.get(kind, 0.0) for kind in ("fprop", "dgrad", "wgrad"))
        cells += [f"{ratio(row):.2f}", f"{mine.get('host_ms', math.nan):.2f}", f"{in_all:.2f}"]
        out.add_row(row["model"], row["dtype"], str(row["batch"]), *cells)
    return out


def means(rows: list[dict[str, Any]]) -> list[str]:
    """Of each dtype, and of all: the geometric mean of the ratios and the worst, a line each."""
    lines = []
    for dtype in [*dict.fromkeys(row["dtype"] for row in rows), None]:
        good = [r for row in rows if dtype in (None, row["dtype"])
                if not math.isnan(r := ratio(row))]  # fmt: skip
        if good:
            mean = math.exp(sum(map(math.log, good)) / len(good))
            name = dtype or "all"
            lines.append(
                f"{name}: {len(good)} rows, geometric mean {mean:.3f}, worst {max(good):.2f}"
            )
    return lines


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


def built_twice(row: Row, device: str, select: str, seconds: float) -> dict[str, Any]:
    """Seconds to build our side with empty caches, and again with full ones; nothing beside it."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as caches:
        measure = Processes(device, select=select, caches=caches)
        end = time.monotonic() + seconds
        for which in ("empty", "full"):
            figures: dict[str, Any] = {}
            rest = max(end - time.monotonic(), 0.0)
            error = measure(["ours"], row, 0, rest, lambda _, f, to=figures: to.update(f))
            found[which] = {"error": error} if error else {
                key: figures[key] for key in ("compile_s", "build_s")
            }  # fmt: skip
    return found


def _groups(sides: Sequence[str], together: bool) -> list[list[str]]:
    """The sides of each process: PyTorch's in one of theirs, if `together`."""
    theirs = [side for side in sides if side in PYTORCH]
    if not together or not theirs:
        return [[side] for side in sides]
    return [*([side] for side in sides if side not in PYTORCH), theirs]


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
    began, budget, console = time.monotonic(), args.time_budget or math.inf, Console(width=180)
    if args.twice:
        seconds = built_twice(wanted[0], args.device, args.select, budget)
        console.print(f"{wanted[0].model} {wanted[0].dtype}, building: {seconds}")
        facts_of_building = {**wanted[0]._asdict(), **facts, "build": seconds}
        if args.json:
            output.write_json(f"{Path(args.json).with_suffix('')}_build.json", facts_of_building)
    jobs = args.jobs or (os.cpu_count() or 1)
    campaign = Campaign(
        _groups(sides, args.together), facts,
        Processes(args.device, jobs, args.longest_turn, args.select),
        budget - (time.monotonic() - began), Path(args.json) if args.json else None, args.resume,
        jobs,
    )  # fmt: skip
    with interruptible():
        rows, left = campaign.run(wanted)
    console.print(table(rows, sides))
    for line in (*disagreements(rows), *means(rows)):
        console.print(line)
    for row in left:
        console.print(f"not measured, for time: {row.model} {row.dtype}, batch {row.batch}")
    return int(any("error" in f for row in rows for f in row["sides"].values()))
