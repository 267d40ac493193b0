"""A training step of a bundled network on the CPU against PyTorch's eager one, by kind of operator.

224x224 (or the model's size), batch statistics in batch normalization.  Both sides compute the loss
and the gradients of all parameters; both update the running statistics.  PyTorch's is in float64
beside ours in it, else in float32.  They take turns in one process, and the shortest time of some
rounds counts; PyTorch's is the better of contiguous and channels_last tensors.  The loss and the
gradients are compared in the same run: with batch statistics rounding grows from layer to layer, so
PyTorch's own distance between its two memory formats is beside ours.  The breakdown sums the times
of our kernels by kind.
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections.abc import Iterator, Sequence

import torch

import relay_wgrad
from benchmarks import child
from benchmarks.cpu_timing import best
from benchmarks.errors import distance
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize.cpu import host_target
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import BUNDLED, TrainingGraph, from_onnx
from relay_wgrad.training.trainer import Trainer
from tests.support.torch.model import prepared

DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
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


def graph_of(model: str, batch: int, image: int, dtype: str) -> TrainingGraph:
    wide = "float64" if dtype == "f64" else "float32"
    return from_onnx(model, batch=batch, image_size=image or None, dtype=wide)


def measure(
    model: str, batch: int, image: int, dtype: str, layout: str, most: int, rounds: int
) -> Row:
    """Our step in a layout, and PyTorch's; in a fresh process."""
    threads = configure_threads(most or None)
    torch.set_num_threads(threads)
    relay_wgrad.register()
    size = (model, batch, image, dtype)
    graph = graph_of(*size)
    start = time.perf_counter()
    half = DTYPES[dtype] if dtype in ("f16", "bf16") else None
    target = host_target(threads)
    trainer = Trainer(graph, target, layout=layout, dtype=half)
    compiled = time.perf_counter() - start
    values = graph.random_batch(0)
    arguments = trainer.arguments(values)
    run = trainer.compiled.vm["main_adjoint"]
    outputs, ours = run(*arguments)
    steps = [
        prepared(model, graph, values, "train", channels_last=x, follow_statistics=False)
        for x in (False, True)
    ]
    losses, gradients = [], []
    for step in steps:
        loss, _, found, _ = step()
        losses.append(float(loss.detach()))
        gradients.append([g.contiguous().numpy() for g in found])
    (seconds, *theirs), is_confirmed = best([lambda: run(*arguments), *steps], rounds)
    kinds = dict[str, float]()
    for name, spent in trainer.profile(values).items():
        kind = next(kind for pattern, kind in KINDS if re.search(pattern, name))
        kinds[kind] = kinds.get(kind, 0.0) + spent
    return {
        "threads": threads, "compile_s": compiled,
        "ms": seconds * 1e3, "torch_ms": min(theirs) * 1e3, "ratio": seconds / min(theirs),
        "confirmed": is_confirmed,
        "loss": float(outputs[0].numpy()), "torch_loss": losses[0],
        "distance": distance([g.numpy() for g in ours], gradients[0]),
        "torch_distance": distance(gradients[1], gradients[0]),
        "planned_bytes": trainer.compiled.planned_bytes,
        "kinds_ms": dict(sorted(((k, 1e3 * t) for k, t in kinds.items()), key=lambda x: -x[1])),
    }  # fmt: skip


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for dtype, model, layout in itertools.product(args.dtypes, args.suite, args.layouts):
        yield Case({"model": model, "batch": args.batch, "image": args.image, "dtype": dtype,
                    "layout": layout})  # fmt: skip


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    return lambda case: child.row(measure, *case.key.values(), args.threads, args.rounds)


BENCHMARK = Benchmark(
    cases, begin, suites=BUNDLED, by=("layout",),
    options={
        "batch": Option(4, "images"),
        "image": Option(0, "the image's side; the network's own, if 0"),
        "dtypes": Option(("f32",), "", DTYPES),
        "layouts": Option(("NHWC",), "", ("NHWC", "NCHW")),
        "threads": Option(0, "at most; as many as cores, if 0"),
        "rounds": Option(5, "in which all take turns"),
    },
    summary=lambda rows: (
        f"{row['model']} {row['dtype']} {row['layout']}, ms: {kind} {ms:.1f}"
        for row in rows for kind, ms in row["kinds_ms"].items()
    ),
    columns=(
        ("model",), ("dtype",), ("layout",), ("threads",), ("ms", None, ".0f"),
        ("PyTorch", "torch_ms", ".0f"),
        ("ratio", None, ".2f"), ("loss", None, ".4f"), ("PyTorch's", "torch_loss", ".4f"),
        ("gradients away", "distance", ".1e"), ("PyTorch's", "torch_distance", ".1e"),
        ("reason",),
    ),
)  # fmt: skip
