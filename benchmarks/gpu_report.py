"""The results of `benchmarks.gpu`: tables, means and the file.  Nothing here needs a GPU.

A row is a dictionary: what was measured, or `reason` where that failed.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from relay_wgrad import output
from relay_wgrad.problem import ConvProblem

Row = dict[str, Any]
KINDS = ("wgrad", "dgrad", "fprop")
WORST_SHOWN = 15


def good(rows: Iterable[Row]) -> list[Row]:
    """The rows that count: measured, and right."""
    return [row for row in rows if not row.get("reason")]


def geomean(rows: Iterable[Row]) -> float:
    """The geometric mean of the time ratios; NaN of none."""
    ratios = [row["ratio"] for row in rows]
    return statistics.geometric_mean(ratios) if ratios else math.nan


def geomean_line(rows: Sequence[Row]) -> str:
    """One number per kind and the worst ratio; above 1 we are slower."""
    counted = good(rows)
    means = [f"{kind}={geomean(r for r in counted if r['kind'] == kind):.3f}" for kind in KINDS]
    worst = max((row["ratio"] for row in counted), default=math.nan)
    return f"geomean_ratio {' '.join(means)} worst={worst:.3f}"


BEST = "best"


def backends(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["backend"] for row in rows))


def best(rows: Iterable[Row]) -> list[Row]:
    """For each problem that several backends were measured on: the row of the fastest."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in good(rows):
        found.setdefault((row["problem"], row["mode"], row["transposed"]), []).append(row)
    fastest = [min(same, key=lambda r: r["ratio"]) for same in found.values() if len(same) > 1]
    return [{**row, "backend": BEST, "winner": row["backend"]} for row in fastest]


LARGE = 20e6  # bytes: of a problem whose time is the memory's, not the launch's


def classes_of(row: Row) -> tuple[str, ...]:
    """What a row counts for beside its networks: all, and its convolution's class."""
    p = ConvProblem.parse(row["problem"])
    if p.groups > 1:
        return "all", "depthwise" if p.groups == p.c else "grouped"
    if min(p.c, p.k) <= 8:
        return "all", "few channels" if p.c <= 4 else "few filters"
    return "all", "dense"


def chosen_lines(suites: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Of the fastest backend for each problem, by network and class, dtype, size and kind: how many
    problems, the geometric means of the time ratio and of the floor's share, the worst ratio."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in sorted(good(rows), key=lambda r: r["seconds"]):
        found.setdefault((row["problem"], row["mode"], row["transposed"]), row)
    groups: dict[tuple[str, str, bool], list[Row]] = {}
    for row in found.values():
        for name in (*(n for n in suites if n in row["uses"]), *classes_of(row)):
            groups.setdefault((name, row["mode"], False), []).append(row)
            if row["bytes"] >= LARGE:
                groups.setdefault((name, row["mode"], True), []).append(row)
    lines = []
    for (name, mode, large), mine in sorted(groups.items()):
        cells = []
        for kind in (*KINDS[::-1], "together"):
            some = [r for r in mine if kind in (r["kind"], "together")]
            if some:
                share = statistics.geometric_mean(r["share"] for r in some)
                worst = max(r["ratio"] for r in some)
                cells.append(
                    f"{kind} {len(some)}: {geomean(some):.2f} floor {share:.2f} worst {worst:.2f}"
                )
        size = f"{LARGE / 1e6:.0f} MB and more" if large else "all sizes"
        lines.append(f"chosen {name} {mode}, {size}: {'; '.join(cells)}")
    return lines


def modes(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["mode"] for row in rows))


def totals(name: str, mode: str, kind: str, rows: Iterable[Row]) -> tuple[float, float, int]:
    """Seconds in one pass over a network, ours and PyTorch's, and the layers that are missing.

    Each layer as often as the network has it, and at the network's largest batch that was used
    (time is taken to grow with the batch).
    """
    mine = [r for r in rows if name in r["uses"] and r["mode"] == mode and r["kind"] == kind]
    batch = max((row["batch"] for row in mine), default=0)
    ours = theirs = 0.0
    for row in good(mine):
        times = row["uses"][name] * batch / row["batch"]
        ours, theirs = ours + times * row["seconds"], theirs + times * row["torch_seconds"]
    return ours, theirs, len(mine) - len(good(mine))


def suite_table(name: str, rows: Sequence[Row]) -> Table:
    """A line per layer and kind; per dtype the time ratio, TFLOP/s and share of the floor."""
    mine = [row for row in rows if name in row["uses"]]
    columns = modes(mine)
    table = Table(title=f"{name}: time ratio, TFLOP/s, % of floor", box=None, pad_edge=False)
    for column in ("layer", "×", "kind", "n"):
        table.add_column(column, no_wrap=True, justify="right" if column in "×n" else "left")
    for mode in columns:
        table.add_column(mode, justify="right", no_wrap=True)
    lines: dict[tuple[str, str], dict[str, Row]] = {}
    for row in mine:
        lines.setdefault((row["name"], row["kind"]), {})[row["mode"]] = row
    for (layer, kind), cells in lines.items():
        some = next(iter(cells.values()))
        batches = "/".join(str(b) for b in dict.fromkeys(r["batch"] for r in cells.values()))
        table.add_row(
            layer, str(some["uses"][name]), kind, batches,
            *(_cell(cells[mode]) if mode in cells else "" for mode in columns),
        )  # fmt: skip
    return table


def _cell(row: Row) -> str:
    if row.get("reason"):
        return "failed"
    return f"{row['ratio']:.2f} {row['tflops']:5.1f} {100 * row['share']:3.0f}%"


def worst_table(rows: Sequence[Row]) -> Table:
    table = Table(title="highest time ratios", box=None, pad_edge=False)
    for column in ("problem", "ours µs", "PyTorch µs", "ratio", "spread", "floor", "plan"):
        right = column not in ("problem", "plan")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for row in sorted(good(rows), key=lambda r: -r["ratio"])[:WORST_SHOWN]:
        table.add_row(
            f"{row['kind']} {row['name']} {row['mode']} n={row['batch']}",
            f"{row['seconds'] * 1e6:.1f}", f"{row['torch_seconds'] * 1e6:.1f}",
            f"{row['ratio']:.2f}",
            f"{100 * row['spread']:.0f}/{100 * row['torch_spread']:.0f}%",
            f"{100 * row['share']:.0f}%", row.get("plan", "")[:24],
        )  # fmt: skip
    return table


def network_table(suites: Sequence[str], rows: Sequence[Row]) -> Table:
    """All convolutions of a network, each as often as it occurs: milliseconds, ours / PyTorch's."""
    table = Table(
        title="one pass over each network, ms: ours / PyTorch (layers left out)", box=None,
        pad_edge=False,
    )  # fmt: skip
    table.add_column("network", no_wrap=True)
    table.add_column("dtype", no_wrap=True)
    for kind in KINDS:
        table.add_column(kind, justify="right", no_wrap=True)
    for name in suites:
        for mode in modes(row for row in rows if name in row["uses"]):
            cells = []
            for kind in KINDS:
                ours, theirs, missing = totals(name, mode, kind, rows)
                left = f" ({missing})" if missing else ""
                cells.append(f"{ours * 1e3:.2f} / {theirs * 1e3:.2f}{left}")
            table.add_row(name, mode, *cells)
    return table


def show(console: Console, suites: Sequence[str], result: dict[str, Any]) -> None:
    """Everything, the summary last: the end of long output is what is always seen."""
    rows: list[Row] = result["rows"]
    chosen = best(rows)
    for backend in backends([*rows, *chosen]):
        mine = [row for row in [*rows, *chosen] if row["backend"] == backend]
        console.rule(backend)
        for name in suites:
            console.print(suite_table(name, mine))
        console.print(network_table(suites, mine))
        console.print(worst_table(mine))
    for row in rows:
        if row.get("reason"):
            reason = row["reason"].splitlines()[0][:200]  # all of it is in the file
            console.print(f"failed: {row['problem']} {row['mode']}: {reason}", markup=False)
    left = result["left_out"]
    if left:
        console.print(f"left out for want of time: {len(left)}, first {left[0]}", markup=False)
    for text in about_lines(result):
        console.print(text, markup=False, highlight=False)
    for text in chosen_lines(suites, rows):
        print(text)
    wins = Counter((row["winner"], row["kind"]) for row in chosen)
    for (winner, kind), count in sorted(wins.items()):
        print(f"fastest of all: {winner} {kind} {count}")
    for backend in backends([*rows, *chosen]):
        mine = [row for row in [*rows, *chosen] if row["backend"] == backend]
        for mode in modes(mine):
            print(f"{backend} {mode} {geomean_line([r for r in mine if r['mode'] == mode])}")
        print(f"{backend} {geomean_line(mine)}")


def about_lines(result: dict[str, Any]) -> list[str]:
    floors, host = result["floors"], result["host_us"]
    peaks = ", ".join(f"{mode} {peak / 1e12:.0f}" for mode, peak in floors["peak"].items())
    return [
        ", ".join(f"{key} {value}" for key, value in result["about"].items()),
        f"floors: {peaks} TFLOP/s (8192³ product), {floors['bandwidth'] / 1e12:.2f} TB/s (copy)",
        f"host, per call of a tiny convolution: {host['ours']:.1f} µs, PyTorch {host['torch']:.1f}",
    ]


def save(path: Path, result: dict[str, Any]) -> None:
    """A run that is cut short leaves a whole file."""
    output.write_json(path, result)
