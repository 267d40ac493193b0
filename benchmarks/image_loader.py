"""Images per second that a folder of JPEG files gives, alone and while steps run.

Files are of 500 by 375 pixels, as photographs are, of seeded smooth noise.  "alone" is reading
batches one after another, "step" a step on one batch again and again, "both" steps on batches that
are read meanwhile.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad import register
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import BUNDLED, from_onnx
from relay_wgrad.training.images import ImageFolder
from relay_wgrad.training.trainer import Trainer

PIXELS = (500, 375)


def write(folder: Path, count: int) -> None:
    """A class of images, each of random colours that change slowly, with a little noise."""
    rng = np.random.default_rng(0)
    (folder / "only").mkdir()
    for i in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), "uint8"))
        fine = np.asarray(coarse.resize(PIXELS, Image.Resampling.BICUBIC), "int16")
        noisy = np.clip(fine + rng.integers(-8, 9, fine.shape, "int16"), 0, 255).astype("uint8")
        Image.fromarray(noisy).save(folder / "only" / f"{i}.jpg", quality=90)


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for threads in map(int, args.threads):
        yield Case({"model": args.model, "side": args.side, "batch": args.batch,
                    "threads": threads})  # fmt: skip


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    register()
    configure_threads()
    graph = from_onnx(args.model, batch=args.batch, image_size=args.side)
    trainer = Trainer(graph, lr=1e-4)
    batch = graph.random_batch(0)
    folder = args.folder / "images"
    folder.mkdir()
    write(folder, 2 * args.batch)

    def rate(work: Callable[[int], Any]) -> float:
        """Images per second of work on a batch, after two that are not counted."""
        for step in range(2):
            work(step)
        start = time.perf_counter()
        for step in range(2, 2 + args.steps):
            work(step)
        return float(args.steps * args.batch / (time.perf_counter() - start))

    alone = rate(lambda _: trainer.step(batch))

    def one(case: Case) -> Row:
        read, beside = (ImageFolder(graph, folder, threads=case.key["threads"]) for _ in range(2))
        both = rate(lambda step: trainer.step(beside.batch(step)))
        return {"alone": rate(read.batch), "step": alone, "both": both}

    return one


BENCHMARK = Benchmark(
    cases, begin,
    options={
        "threads": Option(("1", "2", "4"), "that read"),
        "side": Option(224, "of the network's images"),
        "batch": Option(16, "images"),
        "steps": Option(12, "that are timed"),
        "model": Option("squeezenet", "a bundled network", tuple(BUNDLED)),
    },
    columns=(("model",), ("side",), ("batch",), ("threads",),
             *((what, what, ".0f") for what in ("alone", "step", "both")), ("reason",)),
)  # fmt: skip
