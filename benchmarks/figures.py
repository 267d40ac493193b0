"""The README's table of figures, from what was measured: `python -m benchmarks.figures`.

    python -m benchmarks.figures            # print it
    python -m benchmarks.figures --write    # put it into README.md, between its marks

Each row reads files of `benchmarks/results`: figures, machine and date are theirs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks import gpu_against

RESULTS = Path(__file__).parent / "results"
README = RESULTS.parents[1] / "README.md"
BEGIN, END = "<!-- figures: python -m benchmarks.figures --write -->", "<!-- end of figures -->"
KINDS = ("fprop", "dgrad", "wgrad")


def read(name: str) -> Any:
    """A file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def _by_kind(rows: Iterable[dict[str, Any]]) -> str:
    found = defaultdict(list)
    for row in rows:
        found[row["kind"]].append(row["ratio"])
    return ", ".join(f"{kind} {geometric_mean(found[kind]):.2f}" for kind in KINDS)


def _range(ratios: Sequence[float]) -> str:
    return f"({min(ratios):.2f} to {max(ratios):.2f})"


def cpu_layers() -> list[str]:
    """Of three runs the slowest, problem by problem."""
    runs = [read(f"cpu_avx2_{i}") for i in (1, 2, 3)]
    slowest: dict[str, dict[str, Any]] = {}
    for row in (row for run in runs for row in run["rows"]):
        if row["ratio"] >= slowest.get(row["problem"], row)["ratio"]:
            slowest[row["problem"]] = row
    machine = runs[0]["machine"]
    rows = list(slowest.values())
    return [
        f"{len(rows)} convolutions of six networks, float32, NHWC, batch 8, beside oneDNN's",
        f"{machine['cpu']}, {machine['threads']} cores, {machine['date']}",
        f"time ratio {_by_kind(rows)}; slowest {max(row['ratio'] for row in rows):.2f}",
    ]


def cpu_step() -> list[str]:
    rows = read("cpu_step")
    ours = min(rows, key=lambda row: row["ms"])
    theirs = min(row["torch_ms"] for row in rows)
    return [
        f"{ours['model']}, batch {ours['batch']}, loss and gradients",
        f"{ours['cpu']}, {ours['threads']} cores, {ours['date']}",
        f"{ours['ms']:.0f} ms, PyTorch eager {theirs:.0f}",
    ]


def first_gradients() -> list[str]:
    found = read("cpu_compile_small")
    rows = {row["way"]: row for row in found["rows"]}
    ways = (
        ("trainer", "`Trainer`"),
        ("compile", "`torch.compile`, ours"),
        ("inductor", "Inductor"),
    )
    said = (f"{name} {rows[way]['cold first']:.1f} / {rows[way]['warm first']:.1f}"
            for way, name in ways)  # fmt: skip
    return [
        "seconds to the first gradients, 25,000 parameters, first / second process",
        f"{found['cpu']}, {found['cores']} cores, {found['date']}",
        ", ".join(said),
    ]


def gpu_steps() -> list[str]:
    found = read("gpu_against_h200")
    rows = [row for row in found["rows"] if row["batch"] == 128]
    ratios = [gpu_against.ratio(row) for row in rows]
    models = {row["model"] for row in rows}
    sides = "beside the best of eager, torch.compile and torch.compile with CUDA graphs"
    return [
        f"forward and backward of {len(models)} networks, batch 128, three dtypes, {sides}",
        f"{rows[0]['gpu']}, PyTorch {rows[0]['torch'].partition('+')[0]}, {found['dates']}",
        f"time ratio {geometric_mean(ratios):.2f} of {len(ratios)} {_range(ratios)}",
    ]


def cudnn_layers() -> list[str]:
    found = read("cudnn_h200")
    rows = [row for row in found["rows"] if row.get("ratio")]
    about = found["about"]
    return [
        f"{len(rows)} convolutions offloaded to cuDNN, beside PyTorch's with `benchmark`",
        f"{about['gpu']}, PyTorch {about['torch'].partition('+')[0]}, {about['date'][:10]}",
        f"time ratio {_by_kind(rows)}",
    ]


def depthwise() -> list[str]:
    found = read("gpu_depthwise_batches_h200")
    ratios = [row["us"] / row["torch_us"] for row in found["rows"]]
    return [
        f"{len(ratios)} depthwise convolutions by kernels of our own, float16, beside PyTorch's",
        f"{found['device']}, PyTorch 2.11, {found['date']}",
        f"time ratio {geometric_mean(ratios):.2f}; slowest {max(ratios):.2f}",
    ]


FIGURES = (cpu_layers, cpu_step, first_gradients, gpu_steps, cudnn_layers, depthwise)


def table() -> str:
    """All of them as Markdown; ratios are ours over the other's, geometric means."""
    rows = [["what", "where", "figure"], ["---", "---", "---"], *(row() for row in FIGURES)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def with_table(page: str) -> str:
    """A page with the table between its marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN!r} and {END!r}")
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{tail}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.figures", description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="into README.md")
    if parser.parse_args(argv).write:
        README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(table())
    return 0


if __name__ == "__main__":
    sys.exit(main())
