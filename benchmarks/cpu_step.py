"""A training step of a bundled network on the CPU against PyTorch's eager one, by kind of operator.

    python -m benchmarks.cpu_step [--model resnet50] [--batch 4] [--layouts NHWC] [--threads N]
                                  [--rounds 5] [--no-winograd] [--json FILE]

Float32, 224x224 (or the model's size), batch statistics in batch normalization.  Both sides compute
the loss and the gradients of all parameters; both update the running statistics.  They take turns
in one process, and the shortest time of some rounds counts; PyTorch's is the better of contiguous
and channels_last tensors.  Memory is what a first step adds at most to the process, which holds
parameters and data already: PyTorch's in a process of its own, in the format that needs less.  The
loss and the gradients are compared in the same run: with batch
statistics rounding grows from layer to layer, so PyTorch's own distance between its two memory
formats is printed beside ours.  The breakdown sums the times of our kernels by kind.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import relay_wgrad
from benchmarks.cpu_timing import best, cpu_model
from legalize.cpu import host_target
from relay_wgrad import output
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import from_onnx
from relay_wgrad.training.trainer import Trainer
from tests.support.torch.model import prepared

# (pattern of a kernel's name, kind), the first that is found.
KINDS = (
    ("conv2d_backward_weight", "convolution: wgrad"),
    ("conv2d_backward_data", "convolution: dgrad"),
    ("conv2d", "convolution: fprop"),
    ("pool", "pooling"),
    ("matmul", "matrix product"),
    ("collapse_sum|mean|variance|sum", "sums"),
    ("transpose", "transposition"),
    ("vm.builtin", "memory and calls"),
    ("", "element-wise"),
)


def distance(got: Sequence[np.ndarray[Any, Any]], want: Sequence[np.ndarray[Any, Any]]) -> float:
    """Over all parameters together: the difference's norm over that of `want`."""
    squares = [(np.sum((a - b) ** 2.0), np.sum(b**2.0)) for a, b in zip(got, want, strict=True)]
    return float(np.sqrt(sum(s for s, _ in squares) / sum(s for _, s in squares)))


def added_bytes(call: Callable[[], Any]) -> int:
    """How much a call adds to this process's memory at most; Linux only."""
    ctypes.CDLL(None).malloc_trim(0)  # what compilers have freed would be used again
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    call()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    """A size in bytes that the system tells of this process."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise RuntimeError(f"/proc/self/status has no {key}")
    return int(found[1]) << 10


def torch_bytes(model: str, batch: int, threads: int, channels_last: bool) -> int:
    """The memory of PyTorch's step, to be called in a fresh process."""
    torch.set_num_threads(threads)
    graph = from_onnx(model, batch=batch)
    step = prepared(
        model, graph, graph.random_batch(0), "train", channels_last=channels_last,
        follow_statistics=False,
    )  # fmt: skip
    return added_bytes(step)


def measure(args: argparse.Namespace, layout: str) -> dict[str, Any]:
    """One row: our step in a layout, and PyTorch's; to be called in a fresh process."""
    configure_threads()
    torch.set_num_threads(args.threads)
    relay_wgrad.register()
    graph = from_onnx(args.model, batch=args.batch)
    start = time.perf_counter()
    target = host_target(args.threads, allow_winograd=not args.no_winograd)
    trainer = Trainer(graph, target, layout=layout)
    compiled = time.perf_counter() - start
    batch = graph.random_batch(0)
    arguments = trainer.arguments(batch)
    run = trainer.compiled.vm["main_adjoint"]
    added = added_bytes(lambda: run(*arguments))
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as fresh:
        theirs_added = [
            fresh.apply(torch_bytes, (args.model, args.batch, args.threads, x))
            for x in (False, True)
        ]
    steps = [
        prepared(args.model, graph, batch, "train", channels_last=x, follow_statistics=False)
        for x in (False, True)
    ]
    losses, gradients = [], []
    for step in steps:
        loss, _, found, _ = step()
        losses.append(float(loss.detach()))
        gradients.append([g.contiguous().numpy() for g in found])
    outputs, ours = run(*arguments)
    mine = [g.numpy() for g in ours]
    seconds, *theirs = best([lambda: run(*arguments), *steps], args.rounds)
    kinds = dict[str, float]()
    for name, spent in trainer.profile(batch).items():
        kind = next(kind for pattern, kind in KINDS if re.search(pattern, name))
        kinds[kind] = kinds.get(kind, 0.0) + spent
    return {
        "model": args.model, "batch": args.batch, "layout": layout, "cpu": cpu_model(),
        "threads": args.threads, "winograd": not args.no_winograd, "compile_s": compiled,
        "ms": seconds * 1e3, "torch_ms": min(theirs) * 1e3, "ratio": seconds / min(theirs),
        "loss": float(outputs[0].numpy()), "torch_loss": losses[0],
        "distance": distance(mine, gradients[0]),
        "torch_distance": distance(gradients[1], gradients[0]),
        "planned_bytes": trainer.compiled.planned_bytes,
        "added_bytes": added, "torch_added_bytes": min(theirs_added),
        "kinds_ms": dict(sorted(((k, 1e3 * t) for k, t in kinds.items()), key=lambda x: -x[1])),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_step")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layouts", default="NHWC")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-winograd", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if args.threads:
        os.environ["TVM_NUM_THREADS"] = str(args.threads)
    args.threads = configure_threads()
    rows = []
    for layout in args.layouts.split(","):
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as fresh:  # unlike a pool's, it may have more
            rows.append(fresh.submit(measure, args, layout).result())
    console = Console()
    for row in rows:
        table = Table(title=f"{row['model']}, batch {row['batch']}, {row['layout']}")
        table.add_column("kind")
        table.add_column("ms", justify="right")
        for kind, spent in row["kinds_ms"].items():
            table.add_row(kind, f"{spent:.1f}")
        console.print(table)
        console.print(
            f"{row['cpu']}, {row['threads']} threads: step {row['ms']:.0f} ms, PyTorch"
            f" {row['torch_ms']:.0f} ms, ratio {row['ratio']:.2f}; loss {row['loss']:.4f} and"
            f" {row['torch_loss']:.4f}; gradients {row['distance']:.1e} away from PyTorch's, its"
            f" two memory formats {row['torch_distance']:.1e} from each other; memory"
            f" {row['added_bytes'] / 2**20:.0f} MiB, PyTorch's"
            f" {row['torch_added_bytes'] / 2**20:.0f} MiB"
        )
    if args.json:
        output.write_json(args.json, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
