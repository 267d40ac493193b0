"""A training step of a bundled network on the CPU against PyTorch's eager one, by kind of operator.

224x224 (or the model's size), batch statistics in batch normalization.  Both sides compute the loss
and the gradients of all parameters; both update the running statistics.  PyTorch's is in float64
beside ours in it, in autocast beside ours in a half type, else in float32.  They are processes that
take turns, and the shortest time of some rounds counts; PyTorch's is the better of contiguous and
channels_last tensors.  The loss and the gradients are compared with PyTorch's without autocast:
with batch statistics rounding grows from layer to layer, so PyTorch's own distance between its two
memory formats is beside ours.  The breakdown sums the times of our kernels by kind.
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import relay_wgrad
from benchmarks.cpu_timing import best, configure, ready, workers
from benchmarks.errors import distance
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize.cpu import host_target
from relay_wgrad.dtypes import HALVES
from relay_wgrad.frontend import BUNDLED, TrainingGraph, from_onnx
from relay_wgrad.problem import DTYPES
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.training.trainer import Trainer
from tests.support.torch.model import Step, prepared

LONGEST = 40  # kernels that a row names
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


def ours(model: str, batch: int, image: int, dtype: str, layout: str, threads: int) -> Row:
    """Makes our step, compares it with PyTorch's, and says what takes its time."""
    relay_wgrad.register()
    graph = graph_of(model, batch, image, dtype)
    start = time.perf_counter()
    half = DTYPES[dtype] if DTYPES[dtype] in HALVES else None
    trainer = Trainer(graph, host_target(threads), layout=layout, dtype=half)
    compiled = time.perf_counter() - start
    values = graph.random_batch(0)
    arguments = trainer.arguments(values)
    run = trainer.compiled.vm[ADJOINT]
    outputs, gradients = run(*arguments)
    ready(lambda: run(*arguments))
    losses, theirs = [], []
    for channels_last in (False, True):
        loss, _, found, _ = _step(model, graph, values, channels_last)()
        losses.append(float(loss.detach()))
        theirs.append([g.contiguous().numpy() for g in found])
    kernels = {name: 1e3 * t for name, t in trainer.profile(values).items()}
    kinds = dict[str, float]()
    for name, spent in kernels.items():
        kind = next(kind for pattern, kind in KINDS if re.search(pattern, name))
        kinds[kind] = kinds.get(kind, 0.0) + spent
    longest = sorted(kernels.items(), key=lambda x: -x[1])[:LONGEST]
    return {
        "threads": threads, "compile_s": compiled,
        "loss": float(outputs[0].numpy()), "torch_loss": losses[0],
        "distance": distance([g.numpy() for g in gradients], theirs[0]),
        "torch_distance": distance(theirs[1], theirs[0]),
        "planned_bytes": trainer.compiled.planned_bytes, "longest_ms": dict(longest),
        "kinds_ms": dict(sorted(kinds.items(), key=lambda x: -x[1])),
    }  # fmt: skip


def theirs(model: str, batch: int, image: int, dtype: str) -> None:
    """Makes PyTorch's steps, in either order of memory."""
    graph = graph_of(model, batch, image, dtype)
    ready(*(_step(model, graph, graph.random_batch(0), x, dtype) for x in (False, True)))


def _step(
    model: str, graph: TrainingGraph, values: Any, channels_last: bool, dtype: str = ""
) -> Step:
    step = prepared(model, graph, values, "train", channels_last=channels_last,
                    follow_statistics=False)  # fmt: skip
    half = getattr(torch, DTYPES[dtype]) if DTYPES[dtype] in HALVES else None
    return torch.autocast("cpu", half)(step) if half else step


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for dtype, model, layout in itertools.product(args.dtypes, args.suite, args.layouts):
        yield Case({"model": model, "batch": args.batch, "image": args.image, "dtype": dtype,
                    "layout": layout})  # fmt: skip


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    def one(case: Case) -> Row:
        model, batch, image, dtype, layout = case.key.values()
        with workers(2) as sides:
            threads, _ = (side(configure, args.threads or None) for side in sides)
            row = sides[0](ours, model, batch, image, dtype, layout, threads)
            sides[1](theirs, model, batch, image, dtype)
            times = best(sides, args.rounds)
        mine, *others = times.seconds
        return row | times.row | {"ms": mine * 1e3, "torch_ms": min(others) * 1e3,
                      "ratio": mine / min(others)}  # fmt: skip

    return one


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
