"""Plots time against work from the rows of `benchmarks.cpu`, for several batch sizes and threads.

    for n in 1 2 4 8 16 32; do for t in 1 2; do
        python -m benchmarks.cpu --suite resnet50 --quick --batch $n --threads $t \
            --json scaling.json --resume
    done; done
    python -m benchmarks.cpu_plot scaling.json docs/cpu_scaling.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

KINDS = ("fprop", "dgrad", "wgrad")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_plot")
    parser.add_argument("json", type=Path)
    parser.add_argument("png", type=Path)
    args = parser.parse_args()
    found = json.loads(args.json.read_text())
    rows: list[dict[str, Any]] = found["rows"]
    threads = sorted({row["threads"] for row in rows})
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    figure, axes = plt.subplots(
        len(threads), len(KINDS), figsize=(13, 4 * len(threads)), sharex=True, sharey=True,
        squeeze=False,
    )  # fmt: skip
    for line, count in zip(axes, threads, strict=True):
        for axis, kind in zip(line, KINDS, strict=True):
            for number, layer in enumerate(layers):
                mine = sorted(
                    (r["batch"], r["ms"], r["torch_ms"])
                    for r in rows
                    if (r["threads"], r["layer"], r["kind"]) == (count, layer, kind)
                )
                images, ours, theirs = zip(*mine, strict=True)
                axis.plot(images, ours, "o-", ms=3, color=f"C{number}", label=layer)
                axis.plot(images, theirs, ":", color=f"C{number}")
                axis.set(xscale="log", yscale="log", title=f"{kind}, threads: {count}")
                axis.set_xticks(images, [str(n) for n in images])
            axis.grid(alpha=0.3)
        line[0].set_ylabel("ms; dotted: PyTorch")
    axes[0][0].legend(fontsize=7)
    for axis in axes[-1]:
        axis.set_xlabel("images")
    figure.suptitle(f"float32, NHWC, {found['machine']['cpu']}, {found['machine']['date']}")
    figure.tight_layout()
    figure.savefig(args.png, dpi=90)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
