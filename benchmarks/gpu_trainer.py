"""Steps of `Trainer` on a GPU, update included: as one CUDA graph and called kernel by kernel.

    python -m benchmarks.gpu_trainer [--model resnet50] [--batch 64] [--image-size N]
                                     [--dtypes f16,bf16,tf32] [--optimizer momentum] [--json FILE]

A model is one of `benchmarks.gpu_training --against`.  "ms" is a step's time on the device, a
median; "gives" what the host needs to give it a step whose batch is there, "host" all that the
host computes for one: draw, check and copy the batch to pinned memory, read losses.  Memory is what
the process takes of the device.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import relay_wgrad
from relay_wgrad import output
from relay_wgrad.frontend import TrainingGraph
from relay_wgrad.training.graph_replay import TRIES, WARM, Repeated
from relay_wgrad.training.options import Options
from relay_wgrad.training.trainer import Trainer

DTYPES = {"f32": None, "tf32": None, "f16": "float16", "bf16": "bfloat16"}
STEPS = 40


def measure(
    network: TrainingGraph, row: str, as_graph: bool, *, device: str = "cuda", steps: int = STEPS,
    optimizer: str = "momentum",
) -> dict[str, Any]:  # fmt: skip
    """Figures of one way to train a network in one dtype."""
    options = Options(tf32=row != "f32", benchmark=True, graph=as_graph)
    began = time.perf_counter()
    one = Trainer(network, device, optimizer=optimizer, dtype=DTYPES[row], on_gpu=options)
    compiled = time.perf_counter() - began
    batch = network.random_batch(0)
    losses = list(one.train([batch] * (WARM + TRIES)))
    step, given = one._sized.last.step, []

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        made = step(*args)
        given.append(time.perf_counter() - start)
        return made

    one._sized.last.step = timed
    seconds, host = [], time.thread_time()
    for loss in one.train(itertools.repeat(batch, steps)):
        losses.append(loss)
        seconds.append(one.step_seconds)
    host = time.thread_time() - host
    memory = None
    if one.place.memory is not None:
        free, total = one.place.memory()
        memory = (total - free) / 2**30
    return {
        "dtype": row, "graph": isinstance(step, Repeated) and step.is_graph,
        "ms": 1e3 * statistics.median(seconds[1:]), "gives_ms": 1e3 * statistics.median(given),
        "host_ms": 1e3 * host / steps, "memory_gib": memory, "compile_s": compiled,
        "planned_gib": one.compiled.planned_bytes / 2**30, "notes": list(one.place.notes),
        "first_loss": losses[0], "last_loss": losses[-1],
    }  # fmt: skip


def main() -> int:
    """Prints a row for each dtype and way, and writes them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_trainer")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--dtypes", default="f16,bf16,tf32")
    parser.add_argument("--optimizer", default="momentum")
    parser.add_argument("--json")
    args = parser.parse_args()
    import torch

    from benchmarks.gpu_models import build
    from relay_wgrad.frontend import from_torch
    from tests.support.gpu.runner import choose_compiler

    relay_wgrad.register()
    choose_compiler()
    built = build(args.model, args.batch, args.image_size)
    x = torch.tensor(np.zeros((args.batch, 3, built.image, built.image), "float32"))
    network = built.graph or from_torch(built.module, (x,))
    table = Table("dtype", "graph", "ms", "gives ms", "host ms", "GiB", "compiled in s", "losses")
    rows = []
    for row, as_graph in itertools.product(args.dtypes.split(","), (True, False)):
        found = measure(network, row, as_graph, optimizer=args.optimizer)
        rows.append(found)
        numbers = (found[key] for key in ("ms", "gives_ms", "host_ms", "memory_gib", "compile_s"))
        table.add_row(
            row, "yes" if found["graph"] else "no", *(f"{n:.3g}" for n in numbers),
            f"{found['first_loss']:.4f} → {found['last_loss']:.4f}",
        )  # fmt: skip
        print(found, flush=True)
    Console().print(table)
    if args.json:
        output.write_json(args.json, {"arguments": vars(args), "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
