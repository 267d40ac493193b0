"""Matrix products of networks on a CPU, beside PyTorch's.

    python -m benchmarks.cpu_products [--networks NAMES] [--threads 1] [--dtype D] [--json FILE]

A row is a layer's forward product, x wᵀ, one of its gradients, or a product of an attention, in a
module compiled by `cpu_pipeline`, transposes and all.  Times are the shortest of calls that take
turns; `ratio` is ours over PyTorch's, `peak` our share of the fused multiply-adds that the cores
can do, which a probe measures.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax
from tvm.target import Target

import relay_wgrad
from benchmarks.cpu_timing import best, cpu_model
from legalize.cpu import host_target
from legalize.cpu.roofline import ceilings
from relay_wgrad import output
from relay_wgrad.cores import configure_threads
from relay_wgrad.pipeline.cpu import cpu_pipeline
from tests.support.products import product

# network -> (rows, inputs, outputs) of its layers, batch 8 of 224x224 where no other is said
LAYERS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "AlexNet, batch 32": ((32, 9216, 4096), (32, 4096, 4096), (32, 4096, 1000)),
    "VGG-16": ((8, 25088, 4096), (8, 4096, 4096)),
    "ResNet-50": ((8, 2048, 1000),),
    "ViT-B/16": ((1576, 768, 2304), (1576, 768, 768), (1576, 768, 3072), (1576, 3072, 768)),
    "ConvNeXt-Tiny": ((25088, 96, 384), (1568, 384, 1536), (392, 3072, 768)),
    "LeNet, batch 64": ((64, 400, 120), (64, 120, 84), (64, 84, 10)),
}
# network -> (matrices, m, n, k)
ATTENTIONS = {
    "ViT-B/16": ((96, 197, 197, 64), (96, 197, 64, 197)),
    "Swin-T": ((1536, 49, 49, 32), (1536, 49, 32, 49)),
}
ROUNDS = 3


def cases(names: Sequence[str]) -> list[tuple[str, str, tuple[Any, ...], str]]:
    """(network, what, operands' shapes, which of them are transposed)."""
    found: list[tuple[str, str, tuple[Any, ...], str]] = []
    for name in names:
        for n, c, k in LAYERS.get(name, ()):
            size = f"{n}×{c} → {k}"
            found += [
                (name, f"forward {size}", ((n, c), (k, c)), "b"),
                (name, f"data gradient {size}", ((n, k), (k, c)), ""),
                (name, f"weight gradient {size}", ((n, k), (n, c)), "a"),
            ]
        for b, m, n, k in ATTENTIONS.get(name, ()):
            found.append((name, f"{b} of {m}×{k} by {k}×{n}", ((b, m, k), (b, k, n)), ""))
    return found


def measured(shapes: tuple[Any, ...], turned: str, dtype: str, target: Target) -> dict[str, float]:
    """Seconds of both sides, ours' relative error, seconds of the compilation."""
    began = time.perf_counter()
    built = tvm.compile(product(shapes, dtype, turned), target, relax_pipeline=cpu_pipeline())
    took = time.perf_counter() - began
    run = relax.VirtualMachine(built, tvm.cpu())["main"]
    random = np.random.default_rng(0)
    given = [random.standard_normal(shape).astype(dtype) for shape in shapes]
    ours = [tvm.runtime.tensor(x) for x in given]
    theirs = [torch.from_numpy(x).mT if n in turned else torch.from_numpy(x)
              for n, x in zip("ab", given, strict=True)]  # fmt: skip
    want = (theirs[0].double() @ theirs[1].double()).numpy()
    error = np.linalg.norm(run(*ours).numpy() - want) / np.linalg.norm(want)
    seconds, torchs = best([lambda: run(*ours), lambda: theirs[0] @ theirs[1]], ROUNDS)
    flop = 2 * math.prod(want.shape) * theirs[0].shape[-1]
    return {"seconds": seconds, "torch_seconds": torchs, "flop": flop, "error": float(error),
            "compile_seconds": took}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what the command line asks for; the number of wrong results."""
    about, _, more = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu_products", description=about, epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    every = list(dict.fromkeys((*LAYERS, *ATTENTIONS)))
    parser.add_argument("--networks", help="joined by semicolons; else all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    names = args.networks.split(";") if args.networks else every
    if unknown := set(names) - set(every):
        parser.error(f"--networks: {', '.join(sorted(unknown))} is none of {'; '.join(every)}")
    relay_wgrad.register()
    threads = configure_threads(args.threads)
    torch.set_num_threads(threads)
    target = host_target(threads)
    peak = ceilings(target, threads).flops / (1 if args.dtype == "float32" else 2)
    rows: dict[str, Any] = {}
    table = Table(title=f"matrix products, {args.dtype}, {threads} threads, {cpu_model()}")
    for title in ("network", "product", "ms", "PyTorch", "ratio", "GFLOP/s", "peak", "error"):
        table.add_column(title)
    for name, what, shapes, turned in cases(names):
        row = measured(shapes, turned, args.dtype, target)
        row["ratio"] = row["seconds"] / row["torch_seconds"]
        row["peak"] = row["flop"] / row["seconds"] / peak
        rows[f"{name}: {what}"] = row
        table.add_row(
            name, what, f"{row['seconds'] * 1e3:.3g}", f"{row['torch_seconds'] * 1e3:.3g}",
            f"{row['ratio']:.2f}", f"{row['flop'] / row['seconds'] / 1e9:.1f}",
            f"{row['peak']:.2f}", f"{row['error']:.0e}",
        )  # fmt: skip
    console = Console(width=140)
    console.print(table)
    found = [row["ratio"] for row in rows.values()]
    console.print(f"ours / PyTorch: geometric mean {statistics.geometric_mean(found):.2f},"
                  f" {min(found):.2f} to {max(found):.2f}, of {len(rows)}")  # fmt: skip
    if args.json:
        facts = {"cpu": cpu_model(), "threads": threads, "dtype": args.dtype,
                 "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}  # fmt: skip
        output.write_json(args.json, {**facts, "rows": rows})
    return sum(not row["error"] < 1e-5 for row in rows.values())


if __name__ == "__main__":
    raise SystemExit(main())
