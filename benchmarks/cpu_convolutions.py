"""The CPU kernels against PyTorch (oneDNN) on the convolutions of known networks, and of volumes.

Float32.  For each layer and each of fprop, dgrad and wgrad: our time, PyTorch's (the better of
contiguous and channels_last tensors), their ratio (below 1: ours is faster), GFLOP/s, and the
fraction of two ceilings measured in the same run: the rate of multiply-adds in registers, and the
bandwidth of a copy.  All take turns in one process with the same number of threads, the shortest
time of some rounds counts, and every timed result is checked.  The suite `products` has networks'
matrix products: layers' forward ones, x wᵀ, their gradients, and those of attention, in modules
compiled by `cpu_pipeline`, transposes and all.

--quick: the layers of each suite that take a twentieth of its work or more, those that take most
first and the suites in turn, fewer rounds, and no row is begun after four minutes.  Where others
use the machine a time may be a disturbed call's: a row whose times no second turn has confirmed
says so.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import tvm
import tvm_ffi
from tvm import relax

import relay_wgrad
from benchmarks.cpu_timing import LONGEST, best
from benchmarks.gpu_timing import by_torch
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize import cpu
from legalize.cpu.roofline import ceilings
from relay_wgrad.cores import configure_threads
from relay_wgrad.layouts import ACTIVATIONS, KERNELS, permutation
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.layers import LAYOUTS, SUITES, Layer, suite
from tests.support.problems import poisoned, random_operands, relative_error, tolerance
from tests.support.products import product

# Two kernels' sums against each other, and Winograd's transforms, which lose a digit.
_SLACK, _WINOGRAD = 3, 1e-5
KINDS = tuple(kind.value for kind in ConvKind)
VOLUMES, PRODUCTS = "volumes", "products"
# What nnU-Net and video networks are made of, smaller than theirs.
_VOLUMES = (
    "n=1 c=32 d=32 h=48 w=48 k=32 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "n=2 c=64 d=16 h=24 w=24 k=64 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "n=2 c=64 d=16 h=24 w=24 k=128 t=3 r=3 s=3 stride=2,2,2 pad=1,1,1,1,1,1",
    "n=2 c=256 d=8 h=8 w=8 k=256 t=3 r=3 s=3 pad=1,1,1,1,1,1",
    "n=2 c=64 d=16 h=24 w=24 k=128 t=1 r=1 s=1",
    "n=2 c=64 d=16 h=28 w=28 k=64 t=3 r=1 s=1 pad=1,0,0,1,0,0",
    "n=2 c=64 d=16 h=24 w=24 k=128 t=2 r=2 s=2 stride=2,2,2",
    "n=2 c=64 d=16 h=24 w=24 k=64 t=3 r=3 s=3 pad=1,1,1,1,1,1 groups=64",
)

_WRONG = 1e-5  # of a product
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

QUICK = 4.0  # minutes
# (rounds, seconds that they may take, target) -> a row.
Measured = Callable[[int, float, tvm.target.Target], Row]


def layers(name: str, batch: int, layout: str) -> list[Layer]:
    """Of a suite; volumes have a batch of their own."""
    if name != VOLUMES:
        return suite(name, batch, "f32", layout, LAYOUTS)
    last = " layout=NDHWC/ODHWI/NDHWC" if layout == "NHWC" else ""
    return [Layer(line, 1, ConvProblem.parse(f"fprop {line}{last}")) for line in _VOLUMES]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    if args.threads:
        os.environ["TVM_NUM_THREADS"] = str(args.threads)
    threads = configure_threads()
    found = [one for name in args.suite for one in _cases(name, args, threads)]
    if args.quick:
        args.time_budget = min(args.time_budget, QUICK)
        found.sort(key=lambda one: one[0])
    for _, case in found:
        yield case


def _cases(suite: str, args: argparse.Namespace, threads: int) -> Iterator[tuple[int, Case]]:
    """(how many layers of the suite come before it, a case)."""
    found: list[tuple[str, float, Measured]] = []
    total = 0.0
    if suite == PRODUCTS:
        for network in dict.fromkeys((*LAYERS, *ATTENTIONS)):
            for what, shapes, turned in products(network):
                call = partial(measure_product, network, shapes, turned)
                found.append((f"{network}, {what}", _work(shapes, turned), call))
                total += found[-1][1]
    for layout in args.layouts if suite != PRODUCTS else ():
        for layer in layers(suite, args.batch, layout):
            work = layer.count * layer.problem.flop
            total += work
            found += [(problem.repro(), work, partial(measure, layer, problem))
                      for problem in layer.problems(args.kinds)]  # fmt: skip
    works = sorted({work for _, work, _ in found}, reverse=True)
    for text, work, call in found:
        if not args.quick or work >= total / 20:
            key = {"suite": suite, "problem": text, "threads": threads,
                   "winograd": not args.no_winograd}  # fmt: skip
            yield works.index(work), Case(key, call)


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    threads = cases[0].key["threads"]
    torch.set_num_threads(threads)
    target = cpu.host_target(threads, allow_winograd=not args.no_winograd)
    most = ceilings(target, threads)
    args.found |= {"target": str(target), "fma_gflops": most.flops / 1e9,
                   "copy_gbytes": most.bytes / 1e9}  # fmt: skip

    def one(case: Case) -> Row:
        row = case.what(*((3, 2.0) if args.quick else (args.rounds, LONGEST)), target)
        return row | {
            "ratio": row["ms"] / row["torch_ms"],
            "fma_share": row["gflops"] / args.found["fma_gflops"],
            "copy_share": row["gbytes"] / args.found["copy_gbytes"],
        }

    return one


def measure(
    layer: Layer, problem: ConvProblem, rounds: int, longest: float, target: tvm.target.Target
) -> Row:
    """Times of one problem of a layer, ours and PyTorch's; a reason if the results disagree."""
    a, b = random_operands(problem, np.random.default_rng(0))
    result = problem.roles[2]
    start = time.perf_counter()
    function = cpu.prim_func(problem, target)
    kernel = tvm.compile(function, target=target)["main"]
    compiled = time.perf_counter() - start
    operands = tvm.runtime.tensor(a), tvm.runtime.tensor(b)
    out = tvm.runtime.tensor(poisoned(problem))
    kernel(*operands, out)
    arrays = {
        **dict(zip(problem.roles[:2], (a, b), strict=True)),
        result: np.empty_like(out.numpy()),
    }
    theirs = []
    last = torch.channels_last if a.ndim == 4 else torch.channels_last_3d
    for memory_format in (torch.contiguous_format, last):
        tensors = {
            role: torch.from_numpy(_canonical(problem, role, x)).contiguous(
                memory_format=memory_format
            )
            for role, x in arrays.items()
        }
        theirs.append(by_torch(problem, tensors, layer.transposed))
    want = theirs[0]().contiguous().numpy()
    error = relative_error(_canonical(problem, result, out.numpy()), want.astype(np.float64))
    (ours, *others), is_confirmed = best([lambda: kernel(*operands, out), *theirs], rounds, longest)
    most = _SLACK * tolerance(problem) + _WINOGRAD
    return {
        "layer": layer.name, "count": layer.count, "kind": problem.kind.value,
        "layout": problem.data_layout, "batch": problem.n, "compile_s": compiled,
        "extra_bytes": extra_bytes(function), "confirmed": is_confirmed,
        **_figures(error, most, ours, min(others), problem.flop, problem.bytes),
    }  # fmt: skip


def _figures(
    error: float, most: float, ours: float, theirs: float, flop: float, moved: float
) -> Row:
    """Of seconds, FLOP and bytes; a reason where the error is above the most."""
    return {
        **({} if error <= most else {"reason": f"wrong: error {error:.1e}, at most {most:.1e}"}),
        "error": error, "ms": ours * 1e3, "torch_ms": theirs * 1e3, "gflops": flop / ours / 1e9,
        "torch_gflops": flop / theirs / 1e9, "gbytes": moved / ours / 1e9,
    }  # fmt: skip


def products(network: str) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    """(what, operands' shapes, which of them are transposed)."""
    for n, c, k in LAYERS.get(network, ()):
        size = f"{n}×{c} → {k}"
        yield f"forward {size}", ((n, c), (k, c)), "b"
        yield f"data gradient {size}", ((n, k), (k, c)), ""
        yield f"weight gradient {size}", ((n, k), (n, c)), "a"
    for b, m, n, k in ATTENTIONS.get(network, ()):
        yield f"{b} of {m}×{k} by {k}×{n}", ((b, m, k), (b, k, n)), ""


def _work(shapes: tuple[Any, ...], turned: str) -> float:
    """FLOP of a product."""
    a, b = shapes
    return 2.0 * math.prod(a) * (b[-2] if "b" in turned else b[-1])


def measure_product(
    network: str, shapes: tuple[Any, ...], turned: str, rounds: int, longest: float,
    target: tvm.target.Target,
) -> Row:  # fmt: skip
    """Times of a product, ours and PyTorch's."""
    start = time.perf_counter()
    built = tvm.compile(product(shapes, "float32", turned), target, relax_pipeline=cpu_pipeline())
    compiled = time.perf_counter() - start
    run = relax.VirtualMachine(built, tvm.cpu())["main"]
    random = np.random.default_rng(0)
    given = [random.standard_normal(shape).astype("float32") for shape in shapes]
    ours = [tvm.runtime.tensor(x) for x in given]
    theirs = [torch.from_numpy(x).mT if n in turned else torch.from_numpy(x)
              for n, x in zip("ab", given, strict=True)]  # fmt: skip
    want = (theirs[0].double() @ theirs[1].double()).numpy()
    error = relative_error(run(*ours).numpy(), want)
    times, is_confirmed = best([lambda: run(*ours), lambda: theirs[0] @ theirs[1]], rounds, longest)
    moved = 4 * (want.size + sum(x.size for x in given))
    figures = _figures(error, _WRONG, *times, _work(shapes, turned), moved)
    return {"layer": network, "count": 1, "kind": "product", "compile_s": compiled,
            "extra_bytes": 0, "confirmed": is_confirmed, **figures}  # fmt: skip


def extra_bytes(function: tvm.tirx.PrimFunc) -> int:
    """Bytes of memory that a kernel takes beyond operands and result, for one thread."""
    total = 0

    def visit(node: tvm.tirx.AllocBuffer) -> None:
        nonlocal total
        if node.buffer.scope() == "global":
            bytes_ = np.dtype(str(node.buffer.dtype)).itemsize
            total += math.prod(int(x) for x in node.buffer.shape) * bytes_

    tvm_ffi.structural_walk(function.body, [(tvm.tirx.AllocBuffer, visit)], order="post")
    return total


def _canonical(problem: ConvProblem, role: str, array: np.ndarray[Any, Any]) -> Any:
    letters = (KERNELS if role == "weight" else ACTIVATIONS)[array.ndim - 2]
    return array.transpose(permutation(problem.layout(role), letters))


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Of each suite: the most memory beyond operands and result, and all layers as they occur."""
    for name in dict.fromkeys(row["suite"] for row in rows):
        mine = [row for row in rows if row["suite"] == name]
        most = max(mine, key=lambda row: row["extra_bytes"])
        yield (
            f"{name}: at most {most['extra_bytes'] / 2**20:.1f} MiB beyond operands and result, by"
            f" {most['kind']} of {most['layer']}"
        )
        for kind in dict.fromkeys(row["kind"] for row in mine):
            ours, theirs = (
                sum(row[x] * row["count"] for row in mine if row["kind"] == kind)
                for x in ("ms", "torch_ms")
            )
            yield (
                f"{name} {kind}, these layers as often as they occur: {ours:.1f} ms, PyTorch"
                f" {theirs:.1f} ms, ratio {ours / theirs:.2f}"
            )


BENCHMARK = Benchmark(
    cases, begin, suites=(*SUITES, VOLUMES, PRODUCTS), by=("kind",), summary=summary,
    options={
        "quick": Option(False, "what takes most of the work, in four minutes"),
        "kinds": Option(KINDS, "", KINDS),
        "layouts": Option(("NHWC",), "", tuple(LAYOUTS)),
        "batch": Option(8, "images"),
        "threads": Option(0, "as many as cores, if 0"),
        "rounds": Option(5, "in which all take turns"),
        "no_winograd": Option(False, "direct sums alone"),
    },
    columns=(
        ("layer",), ("product", lambda row: row["problem"] if row["suite"] == PRODUCTS else None),
        ("kind",), ("layout",), ("times", "count"), ("ms", None, ".2f"),
        ("PyTorch", "torch_ms", ".2f"), ("ratio", None, ".2f"), ("GFLOP/s", "gflops", ".0f"),
        ("FMA", "fma_share", ".2f"), ("mem", "copy_share", ".2f"), ("error", None, ".0e"),
        ("confirmed", lambda row: None if row.get("confirmed", True) else "no"), ("reason",),
    ),
)  # fmt: skip
