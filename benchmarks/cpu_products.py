"""Matrix products of networks on a CPU, beside PyTorch's.

A row is a layer's forward product, x wᵀ, one of its gradients, or a product of an attention, in a
module compiled by `cpu_pipeline`, transposes and all.  Times are the shortest of calls that take
turns; `ratio` is ours over PyTorch's, `peak` our share of the fused multiply-adds that the cores
can do, which a probe measures.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax
from tvm.target import Target

import relay_wgrad
from benchmarks.cpu_timing import best
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize.cpu import host_target
from legalize.cpu.roofline import ceilings
from relay_wgrad.cores import configure_threads
from relay_wgrad.pipeline.cpu import cpu_pipeline
from tests.support.products import product

# network -> (rows, inputs, outputs) of its layers, batch 8 of 224x224 where no other is said
LAYERS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "alexnet-32": ((32, 9216, 4096), (32, 4096, 4096), (32, 4096, 1000)),  # of batch 32
    "vgg16": ((8, 25088, 4096), (8, 4096, 4096)),
    "resnet50": ((8, 2048, 1000),),
    "vit_b_16": ((1576, 768, 2304), (1576, 768, 768), (1576, 768, 3072), (1576, 3072, 768)),
    "convnext_tiny": ((25088, 96, 384), (1568, 384, 1536), (392, 3072, 768)),
    "lenet-64": ((64, 400, 120), (64, 120, 84), (64, 84, 10)),  # of batch 64
}
# network -> (matrices, m, n, k)
ATTENTIONS = {
    "vit_b_16": ((96, 197, 197, 64), (96, 197, 64, 197)),
    "swin_t": ((1536, 49, 49, 32), (1536, 49, 32, 49)),
}
ROUNDS, WRONG = 3, 1e-5


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for network in args.suite:
        for what, *operands in products(network):
            yield Case({"network": network, "product": what}, operands)


def products(network: str) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    """(what, operands' shapes, which of them are transposed)."""
    for n, c, k in LAYERS.get(network, ()):
        size = f"{n}×{c} → {k}"
        yield f"forward {size}", ((n, c), (k, c)), "b"
        yield f"data gradient {size}", ((n, k), (k, c)), ""
        yield f"weight gradient {size}", ((n, k), (n, c)), "a"
    for b, m, n, k in ATTENTIONS.get(network, ()):
        yield f"{b} of {m}×{k} by {k}×{n}", ((b, m, k), (b, k, n)), ""


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    threads = configure_threads(args.threads)
    torch.set_num_threads(threads)
    target = host_target(threads)
    peak = ceilings(target, threads).flops / (1 if args.dtype == "float32" else 2)

    def one(case: Case) -> Row:
        row = measured(*case.what, args.dtype, target)
        rate = row["flop"] / row["seconds"]
        row |= {"ratio": row["seconds"] / row["torch_seconds"], "gflops": rate / 1e9,
                "peak": rate / peak}  # fmt: skip
        wrong = {} if row["error"] < WRONG else {"reason": f"wrong: error {row['error']:.1e}"}
        return row | wrong

    return one


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


BENCHMARK = Benchmark(
    cases, begin, suites=dict.fromkeys((*LAYERS, *ATTENTIONS)), by=("network",),
    options={
        "threads": Option(1, "at most"),
        "dtype": Option("float32", "", ("float32", "float64")),
    },
    columns=(("network",), ("product",), ("ms", "seconds", ".3g", 1e3),
             ("PyTorch", "torch_seconds", ".3g", 1e3), ("ratio", None, ".2f"),
             ("GFLOP/s", "gflops", ".1f"), ("peak", None, ".2f"), ("error", None, ".0e"),
             ("reason",)),
)  # fmt: skip
