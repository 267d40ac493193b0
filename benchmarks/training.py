"""Training steps of the nine bundled networks on a CPU: time, memory and loss, by precision.

Each row is a process of its own, so that one's memory is not another's.  The weights are seeded,
the batch is one fixed random batch.  "plan" is what the static memory plan sets aside for
intermediate results; "peak" is the growth of the process's resident memory during the steps, which
also holds gradients, the optimizer's state and new parameters, and the kernels' own scratch.  A row
says how busy the machine was: the load average at its start and end, where this row's own threads
are part of the second.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import child
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.frontend import BUNDLED

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
CHECKPOINTS = {"none": None, "auto": "auto"}


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def measure(
    model: str, dtype: str, checkpoint: str, batch: int, image: int, steps: int, optimizer: str,
    layout: str,
) -> Row:  # fmt: skip
    """One row, in this process."""
    import relay_wgrad
    from legalize.cpu import host_target
    from relay_wgrad.cli.training_report import peak_bytes, reset_peak
    from relay_wgrad.cores import configure_threads
    from relay_wgrad.frontend import from_onnx
    from relay_wgrad.training.trainer import Trainer

    relay_wgrad.register()
    configure_threads()
    graph = from_onnx(model, batch=batch, image_size=image or None)
    start = time.perf_counter()
    trainer = Trainer(
        graph, host_target(), dtype=DTYPES[dtype], optimizer=optimizer,
        checkpoint=CHECKPOINTS[checkpoint], layout=layout,
    )  # fmt: skip
    compiled = time.perf_counter() - start
    values = graph.random_batch(0)
    gc.collect()
    before = resident()
    reset_peak()
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(trainer.step(values))
        seconds.append(time.perf_counter() - start)
    losses.append(trainer.loss(values))
    convolutions = trainer.compiled.convolutions
    row: Row = {
        "size": list(graph.inputs[0].shape[2:]), "lr": trainer.lr,
        "compile_seconds": compiled, "step_seconds": min(seconds), "losses": losses,
        "planned_bytes": trainer.compiled.planned_bytes, "peak_bytes": peak_bytes() - before,
        "convolutions": len(convolutions),
        "direct": sum(c.source != "generic" for c in convolutions),
        "layout_changes": trainer.layout_changes[1],
    }  # fmt: skip
    if not (math.isfinite(losses[-1]) and losses[-1] < losses[0]):
        row["reason"] = f"the loss did not come down: {losses[0]:.3f} to {losses[-1]:.3f}"
    return row


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """All networks in one precision first: a run that is cut short has compared something."""
    for dtype, checkpoint, model in itertools.product(args.dtypes, args.checkpoint, args.suite):
        yield Case({
            "model": model, "dtype": dtype, "checkpoint": checkpoint, "batch": args.batch,
            "image_size": args.image, "steps": args.steps, "optimizer": args.optimizer,
            "layout": args.layout,
        })  # fmt: skip


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    def one(case: Case) -> Row:
        load = os.getloadavg()[0]
        row = child.row(measure, *case.key.values())
        return {**row, "load": [round(load, 1), round(os.getloadavg()[0], 1)]}

    return one


BENCHMARK = Benchmark(
    cases, begin, suites=BUNDLED,
    options={
        "dtypes": Option(("f32", "f16", "bf16"), "", DTYPES),
        "checkpoint": Option(("none", "auto"), "", CHECKPOINTS),
        "batch": Option(2, "images"),
        "image": Option(0, "the image's side; the network's own, if 0"),
        "steps": Option(10, "of the optimizer"),
        "optimizer": Option("momentum", "the update's rule"),
        "layout": Option("NCHW", "", ("NCHW", "NHWC")),
    },
    columns=(
        ("model",), ("dtype",), ("checkpoint",),
        ("image", lambda row: "×".join(map(str, row["size"]))),
        ("step s", "step_seconds", ".2f"), ("peak MiB", "peak_bytes", ".0f", 2**-20),
        ("plan MiB", "planned_bytes", ".0f", 2**-20), ("loss", lambda row: row["losses"][0], ".3f"),
        ("last", lambda row: row["losses"][-1], ".3f"), ("compile s", "compile_seconds", ".0f"),
        ("reason",),
    ),
)  # fmt: skip
