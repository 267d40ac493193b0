"""Steps of `Trainer` on a GPU, update included: as one CUDA graph and called kernel by kernel.

"ms" is a step's time on the device, a median; "gives" what the host needs to give it a step whose
batch is there, "host" all that the host computes for one: draw, check and copy the batch to pinned
memory, read losses.  Memory is what the process takes of the device.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import relay_wgrad
from benchmarks.gpu_models import SUITES, build
from benchmarks.modes import HALF
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training.graph_replay import TRIES, WARM, Repeated
from relay_wgrad.training.options import Options
from relay_wgrad.training.trainer import Trainer
from tests.support.gpu.runner import choose_compiler

STEPS = 40


def measure(
    network: TrainingGraph, row: str, as_graph: bool, *, device: str = "cuda", steps: int = STEPS,
    optimizer: str = "momentum",
) -> dict[str, Any]:  # fmt: skip
    """Figures of one way to train a network in one dtype."""
    options = Options(tf32=row != "f32", benchmark=True, graph=as_graph)
    began = time.perf_counter()
    one = Trainer(network, device, optimizer=optimizer, dtype=HALF[row], on_gpu=options)
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


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for model, dtype, graph in itertools.product(args.models, args.dtypes, (True, False)):
        yield Case({"model": model, "dtype": dtype, "as_graph": graph, "batch": args.batch})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    choose_compiler()
    networks: dict[str, TrainingGraph] = {}

    def one(case: Case) -> Row:
        model, dtype, as_graph, batch = case.key.values()
        if model not in networks:
            built = build(model, batch, args.image or None)
            x = torch.zeros(batch, *built.shape)
            networks[model] = built.graph or from_torch(built.module, (x,))
        return measure(networks[model], dtype, as_graph, optimizer=args.optimizer)

    return one


BENCHMARK = Benchmark(
    cases, begin,
    options={
        "models": Option(("resnet50",), f"as of `gpu steps`: {', '.join(SUITES['known'])}, …"),
        "dtypes": Option(("f16", "bf16", "tf32"), "", HALF),
        "optimizer": Option("momentum", "the update's rule"),
        "batch": Option(64, "images"),
        "image": Option(0, "the image's side; the model's own, if 0"),
    },
    columns=(
        ("model",), ("dtype",), ("graph",), ("ms", None, ".3g"), ("gives ms", "gives_ms", ".3g"),
        ("host ms", "host_ms", ".3g"), ("GiB", "memory_gib", ".3g"),
        ("compiled in s", "compile_s", ".3g"), ("first loss", "first_loss", ".4f"),
        ("last", "last_loss", ".4f"), ("reason",),
    ),
)  # fmt: skip
