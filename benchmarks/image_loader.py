"""Images per second that a folder of JPEG files gives, alone and while steps run.

    python -m benchmarks.image_loader [--threads 1,2,4] [--side 224] [--batch 16] [--steps 12]
                                      [--model squeezenet]

Files are of 500 by 375 pixels, as photographs are, of seeded smooth noise.  "alone" is reading
batches one after another, "step" a step on one batch again and again, "both" steps on batches that
are read meanwhile.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.cpu_timing import cpu_model
from relay_wgrad import register
from relay_wgrad.cores import configure_threads, usable_cores
from relay_wgrad.frontend import from_onnx
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


def rate(args: argparse.Namespace, work: Callable[[int], Any]) -> float:
    """Images per second of work on a batch, after two that are not counted."""
    for step in range(2):
        work(step)
    start = time.perf_counter()
    for step in range(2, 2 + args.steps):
        work(step)
    return float(args.steps * args.batch / (time.perf_counter() - start))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2,4", help="that read")
    parser.add_argument("--side", type=int, default=224, help="of the network's images")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--model", default="squeezenet")
    args = parser.parse_args()
    register()
    configure_threads()
    graph = from_onnx(args.model, batch=args.batch, image_size=args.side)
    trainer = Trainer(graph, lr=1e-4)
    batch = graph.random_batch(0)
    steps = rate(args, lambda _: trainer.step(batch))
    table = Table("threads", "alone", "step", "both", title=f"images/s, {args.model}")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), 2 * args.batch)
        for threads in map(int, args.threads.split(",")):
            alone, beside = (ImageFolder(graph, folder, threads=threads) for _ in range(2))
            both = rate(args, lambda step, data=beside: trainer.step(data.batch(step)))
            read = rate(args, alone.batch)
            table.add_row(str(threads), *(f"{n:.0f}" for n in (read, steps, both)))
    Console(width=100).print(table, f"{cpu_model()}, {len(usable_cores())} cores")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
