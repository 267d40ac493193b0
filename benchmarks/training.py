"""Training steps of the nine bundled networks: time, memory and loss, by precision.

    python -m benchmarks.training [--models squeezenet,resnet50] [--dtypes f32,f16,bf16]
                                  [--checkpoint none,auto] [--batch 2] [--image-size N] [--steps 10]
                                  [--optimizer momentum] [--layout NCHW] [--json FILE]

Each row is a process of its own, so that one's memory is not another's.  The weights are seeded,
the batch is one fixed random batch.  "plan" is what the static memory plan sets aside for
intermediate results; "peak" is the growth of the process's resident memory during the steps, which
also holds gradients, the optimizer's state and new parameters, and the kernels' own scratch.

FILE is written after every row and keeps the rows that this run does not measure again, so that a
campaign can be done in parts.  Each row says when it was measured and how busy the machine was: the
load average at its start and end, where this row's own threads are part of the second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from relay_wgrad import output
from relay_wgrad.frontend import BUNDLED

# What a row was asked for: two rows with the same are measurements of one thing.
ASKED = ("model", "dtype", "checkpoint", "batch", "image_size", "steps", "optimizer", "layout")
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def measure(args: dict[str, Any]) -> dict[str, Any]:
    """One row, in this process."""
    import gc

    import relay_wgrad
    from legalize.cpu import host_target
    from relay_wgrad.cli.training_report import peak_bytes, reset_peak
    from relay_wgrad.cores import configure_threads
    from relay_wgrad.frontend import from_onnx
    from relay_wgrad.training.trainer import Trainer

    relay_wgrad.register()
    configure_threads()
    graph = from_onnx(args["model"], batch=args["batch"], image_size=args["image_size"])
    start = time.perf_counter()
    trainer = Trainer(
        graph, host_target(), dtype=DTYPES[args["dtype"]], optimizer=args["optimizer"],
        checkpoint=args["checkpoint"], layout=args["layout"],
    )  # fmt: skip
    compiled = time.perf_counter() - start
    batch = graph.random_batch(0)
    gc.collect()
    before = resident()
    reset_peak()
    losses, seconds = [], []
    for _ in range(args["steps"]):
        start = time.perf_counter()
        losses.append(trainer.step(batch))
        seconds.append(time.perf_counter() - start)
    losses.append(trainer.loss(batch))
    convolutions = trainer.compiled.convolutions
    return {
        **args, "size": list(graph.inputs[0].shape[2:]), "lr": trainer.lr,
        "compile_seconds": compiled, "step_seconds": min(seconds), "losses": losses,
        "planned_bytes": trainer.compiled.planned_bytes, "peak_bytes": peak_bytes() - before,
        "convolutions": len(convolutions),
        "direct": sum(c.source != "generic" for c in convolutions),
        "layout_changes": trainer.layout_changes[1],
    }  # fmt: skip


def row(args: dict[str, Any]) -> dict[str, Any]:
    """One row, in a process of its own."""
    when, load = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.training", "--row", json.dumps(args)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return {**args, "error": lines[-1]}
    found = dict(json.loads(done.stdout.splitlines()[-1]))
    return {**found, "when": when, "load": [round(load, 1), round(os.getloadavg()[0], 1)]}


def save(path: Path, rows: list[dict[str, Any]]) -> None:
    """Writes the rows to a file, with those of other measurements that are there already."""
    old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    merged = {tuple(r[name] for name in ASKED): r for r in [*old, *rows]}
    output.write_json(path, list(merged.values()))


def table(rows: list[dict[str, Any]]) -> Table:
    """The rows for people."""
    out = Table()
    for name in ("model", "dtype", "checkpoint", "image", "step s", "peak MiB", "plan MiB",
                 "loss first", "last", "compile s"):  # fmt: skip
        out.add_column(name, justify="left" if name in ("model", "dtype") else "right")
    for r in rows:
        head = (r["model"], r["dtype"], r["checkpoint"] or "–")
        if "error" in r:
            out.add_row(*head, "", r["error"])
            continue
        first, last = r["losses"][0], r["losses"][-1]
        mark = "" if math.isfinite(last) and last < first else " !"
        out.add_row(
            *head, "×".join(map(str, r["size"])), f"{r['step_seconds']:.2f}",
            f"{r['peak_bytes'] / 2**20:.0f}", f"{r['planned_bytes'] / 2**20:.0f}",
            f"{first:.3f}", f"{last:.3f}{mark}", f"{r['compile_seconds']:.0f}",
        )  # fmt: skip
    return out


def main() -> int:
    """Runs the rows that the command line asks for; 1 if a loss did not come down."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training")
    parser.add_argument("--models", default=",".join(BUNDLED))
    parser.add_argument("--dtypes", default="f32,f16,bf16")
    parser.add_argument("--checkpoint", default="none,auto")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--image-size", type=int, default=None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--optimizer", default="momentum")
    parser.add_argument("--layout", default="NCHW")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(json.loads(args.row))))
        return 0
    rows: list[dict[str, Any]] = []
    # All networks in one precision first: a run that is cut short has compared something.
    for dtype, checkpoint, model in itertools.product(
        args.dtypes.split(","), args.checkpoint.split(","), args.models.split(",")
    ):
        rows.append(row({
            "model": model, "dtype": dtype, "checkpoint": None if checkpoint == "none" else "auto",
            "batch": args.batch, "image_size": args.image_size, "steps": args.steps,
            "optimizer": args.optimizer, "layout": args.layout,
        }))  # fmt: skip
        print(f"{model} {dtype} {checkpoint}: {rows[-1].get('error', 'done')}", file=sys.stderr)
        if args.json:
            save(Path(args.json), rows)
    Console().print(table(rows))
    good = ["error" not in r and r["losses"][-1] < r["losses"][0] for r in rows]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
