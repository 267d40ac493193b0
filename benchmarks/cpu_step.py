"""A training step of a network on the CPU against PyTorch's, by kind of operator.

224x224 (or the model's size), batch statistics in batch normalization.  Both sides compute the loss
and the gradients of all parameters; both update the running statistics.  PyTorch's is in float64
beside ours in it, in autocast beside ours in a half type, else in float32.  They are processes that
take turns, and the shortest time of some rounds counts, of one thread by processor time; PyTorch's
is the better of contiguous and channels_last tensors, and with --inductor the better of eager mode
and `torch.compile`, which has a process of its own.  Ours has the kernels that `Trainer` has, with
Winograd's.  The loss and the gradients are compared with PyTorch's without autocast:
with batch statistics rounding grows from layer to layer, so PyTorch's own distance from that, in
the other memory format and in autocast where ours is in a half type, is beside ours, and ten times
as much is wrong.  The breakdown sums the times of our kernels by kind.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import relay_wgrad
from benchmarks.cpu_timing import best, configure, ready, workers
from benchmarks.errors import distance
from benchmarks.gpu_models import TORCHVISION, build
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize.cpu import host_target
from relay_wgrad.dtypes import HALVES
from relay_wgrad.frontend import BUNDLED, TrainingGraph, from_onnx, from_torch
from relay_wgrad.problem import DTYPES
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.training.trainer import Trainer

LONGEST = 40  # kernels that a row names
# Gradients that are farther away than so many times PyTorch's own are wrong, but for so much.
_WORST, _ALWAYS = 10, {"f32": 1e-3, "f64": 1e-10}
NETWORKS = (*BUNDLED, *(name for name in TORCHVISION if name not in BUNDLED))
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
    if model in BUNDLED:
        return from_onnx(model, batch=batch, image_size=image or None, dtype=wide)
    module, image, *_ = build(model, batch, image or None)
    return from_torch(module.to(getattr(torch, wide)), (_images(batch, image, wide),))


def _images(batch: int, image: int, dtype: str) -> torch.Tensor:
    return torch.zeros(batch, 3, image, image, dtype=getattr(torch, dtype))


def ours(model: str, batch: int, image: int, dtype: str, layout: str, threads: int) -> Row:
    """Makes our step, compares it with PyTorch's, and says what takes its time."""
    relay_wgrad.register()
    graph = graph_of(model, batch, image, dtype)
    start = time.perf_counter()
    half = DTYPES[dtype] if DTYPES[dtype] in HALVES else None
    target = host_target(threads, allow_winograd=True)
    trainer = Trainer(graph, target, layout=layout, dtype=half)
    compiled = time.perf_counter() - start
    values = graph.random_batch(0)
    arguments = trainer.arguments(values)
    run = trainer.compiled.vm[ADJOINT]
    outputs, gradients = run(*arguments)
    ready(lambda: run(*arguments))
    losses, theirs = [], []
    wide = "f64" if dtype == "f64" else "f32"
    for channels_last, other in ((False, wide), (True, dtype)):
        loss, found = _step(model, graph, values, channels_last, other)()
        losses.append(float(loss))
        theirs.append([g.contiguous().numpy() for g in found])
    far = distance([g.numpy() for g in gradients], theirs[0])
    near = distance(theirs[1], theirs[0])
    most = max(_WORST * near, _ALWAYS[wide])
    wrong = (
        {} if far <= most else {"reason": f"wrong: gradients {far:.1e} away, at most {most:.1e}"}
    )
    kernels = {name: 1e3 * t for name, t in trainer.profile(values).items()}
    kinds = dict[str, float]()
    for name, spent in kernels.items():
        kind = next(kind for pattern, kind in KINDS if re.search(pattern, name))
        kinds[kind] = kinds.get(kind, 0.0) + spent
    longest = sorted(kernels.items(), key=lambda x: -x[1])[:LONGEST]
    return {
        "threads": threads, "compile_s": compiled,
        "loss": float(outputs[0].numpy()), "torch_loss": losses[0],
        "distance": far, "torch_distance": near, **wrong,
        "planned_bytes": trainer.compiled.planned_bytes, "longest_ms": dict(longest),
        "kinds_ms": dict(sorted(kinds.items(), key=lambda x: -x[1])),
    }  # fmt: skip


def theirs(model: str, batch: int, image: int, dtype: str, inductor: bool) -> float:
    """Makes PyTorch's steps, in either order of memory; returns the seconds of the first ones."""
    graph = graph_of(model, batch, image, dtype)
    steps = [_step(model, graph, graph.random_batch(0), x, dtype, inductor) for x in (False, True)]
    start = time.perf_counter()
    for step in steps:
        step()
    ready(*steps)
    return time.perf_counter() - start


def _step(
    model: str, graph: TrainingGraph, values: Any, channels_last: bool, dtype: str,
    inductor: bool = False,
) -> Callable[[], tuple[torch.Tensor, tuple[torch.Tensor, ...]]]:  # fmt: skip
    """PyTorch's loss and gradients, in the order of the graph's trainable parameters."""
    name = f"onnx:{model}" if model in BUNDLED else model
    order = torch.channels_last if channels_last else torch.contiguous_format
    data, labels = (torch.from_numpy(x) for x in values.values())
    module = build(name, *data.shape[::3]).module.to(dtype=data.dtype, memory_format=order)
    parameters = list(module.parameters())
    for own, parameter in zip(graph.trainable, parameters, strict=True):
        parameter.data.copy_(torch.from_numpy(graph.params[own]))
    data = data.contiguous(memory_format=order)
    run = torch.compile(module) if inductor else module
    half = getattr(torch, DTYPES[dtype]) if DTYPES[dtype] in HALVES else None

    def step() -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        with torch.autocast("cpu", half) if half else contextlib.nullcontext():
            loss = cross_entropy(run(data), labels)
        return loss.detach(), torch.autograd.grad(loss, parameters)

    return step


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for dtype, model, layout in itertools.product(args.dtypes, args.suite, args.layouts):
        yield Case({"model": model, "batch": args.batch, "image": args.image, "dtype": dtype,
                    "layout": layout})  # fmt: skip


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    def one(case: Case) -> Row:
        model, batch, image, dtype, layout = case.key.values()
        with workers(3 if args.inductor else 2) as sides:
            threads, *_ = [side(configure, args.threads or None) for side in sides]
            row = sides[0](ours, model, batch, image, dtype, layout, threads)
            if "reason" in row:
                return row
            sides[1](theirs, model, batch, image, dtype, False)
            if args.inductor:
                row["inductor_s"] = sides[2](theirs, model, batch, image, dtype, True)
            times = best(sides, args.rounds, threads=threads)
        mine, *others = times.seconds
        if args.inductor:
            row["inductor_ms"] = min(others[2:]) * 1e3
        return row | times.row | {"ms": mine * 1e3, "torch_ms": min(others[:2]) * 1e3,
                      "ratio": mine / min(others)}  # fmt: skip

    return one


BENCHMARK = Benchmark(
    cases, begin, suites=NETWORKS, by=("layout",),
    options={
        "batch": Option(4, "images"),
        "image": Option(0, "the image's side; the network's own, if 0"),
        "dtypes": Option(("f32",), "", DTYPES),
        "layouts": Option(("NHWC",), "", ("NHWC", "NCHW")),
        "threads": Option(0, "at most; as many as cores, if 0"),
        "inductor": Option(False, "torch.compile's step too; it wants a C++ compiler"),
        "rounds": Option(5, "in which all take turns"),
    },
    summary=lambda rows: (
        f"{row['model']} {row['dtype']} {row['layout']}, ms: {kind} {ms:.1f}"
        for row in rows for kind, ms in row["kinds_ms"].items()
    ),
    columns=(
        ("model",), ("dtype",), ("layout",), ("threads",), ("ms", None, ".0f"),
        ("PyTorch", "torch_ms", ".0f"), ("Inductor", "inductor_ms", ".0f"),
        ("ratio", None, ".2f"), ("loss", None, ".4f"), ("PyTorch's", "torch_loss", ".4f"),
        ("gradients away", "distance", ".1e"), ("PyTorch's", "torch_distance", ".1e"),
        ("reason",),
    ),
)  # fmt: skip
