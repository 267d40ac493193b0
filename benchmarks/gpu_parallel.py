"""Training on several GPUs: images a second of one and of all, update and all-reduces in it.

A row is a network and a way: `step`, DistributedDataParallel around a `TrainingStep`, whose
gradients come in pieces; `compile` and `eager`, PyTorch's own, compiled around
DistributedDataParallel; `trainer`, `Trainer(distributed=True)`.  In each process a GPU first trains
for itself, beside the others, which is the speed of "one", then all of them together: "scaling" is
the speed of all over that of as many alone.  With `--batch 128 --alone 256` of two it is that of
one batch in parts.

`nccl_ms` are a step's milliseconds of NCCL's kernels, `exposed_ms` those in which no other kernel
ran, `busy_ms` those in which some did, `more_ms` what kernels take more together than alone, by
their names, and `gaps_ms` when none ran, by the kernels before and after, alone and together
(`benchmarks.parallel_ways`).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import parallel_ways
from benchmarks.child import reason
from benchmarks.parallel_ways import WAYS, Problem
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from tests.support.processes import run_ranks


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for model, way in itertools.product(args.models, args.ways):
        problem = Problem(
            model, way, args.batch, args.image or None, args.dtype, alone=args.alone or None
        )
        yield Case({**problem._asdict(), "gpus": args.gpus}, problem)


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    cores = str(max(1, (os.cpu_count() or 1) // args.gpus))
    environment = {"OMP_NUM_THREADS": cores, "TVM_NUM_THREADS": cores,
                   "TORCHINDUCTOR_COMPILE_THREADS": cores}  # fmt: skip

    def one(case: Case) -> Row:
        script = Path(parallel_ways.__file__)
        ended = run_ranks(
            script, args.gpus, json.dumps(case.what._asdict()), env=environment,
            timeout=args.seconds, forked=False, warnings="ignore",
        )  # fmt: skip
        # Who failed by itself ended with 1; who was waiting for it was ended.
        failed = sorted((d for d in ended if d.returncode), key=lambda d: d.returncode != 1)
        if failed:
            return {"reason": reason(failed[0].returncode, failed[0].stderr)}
        return dict(json.loads(ended[0].stdout.splitlines()[-1]))

    return one


BENCHMARK = Benchmark(
    cases, begin, by=("way",),
    options={
        "models": Option(("resnet50",), "as of `gpu steps`"),
        "ways": Option(("step", "compile", "eager", "trainer"), "", WAYS),
        "gpus": Option(2, "processes, a GPU each"),
        "batch": Option(256, "images a GPU"),
        "alone": Option(0, "images of a GPU that trains for itself; as together, if 0"),
        "image": Option(0, "the image's side; the model's own, if 0"),
        "dtype": Option("bf16", "", ("tf32", "bf16")),
        "seconds": Option(240.0, "of a row, at most"),
    },
    columns=(
        ("model",), ("way",), ("gpus",), ("batch",), ("one, images/s", "one", ".0f"),
        ("all", None, ".0f"), ("scaling", None, ".3f"), ("step, ms", "ms", ".2f"),
        ("busy", "busy_ms", ".2f"), ("busy alone", "busy_alone_ms", ".2f"),
        ("NCCL", "nccl_ms", ".2f"), ("exposed", "exposed_ms", ".2f"),
        ("notes", lambda row: "; ".join(row.get("notes", ()))), ("reason",),
    ),
)  # fmt: skip
