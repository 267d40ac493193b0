"""Images that are read of a folder, a second, and how long a trainer waits for them.

JPEGs of 500x375 pixels, some 120 kB each, with a spectrum as photographs have it; a random part is
decoded, resized to 224x224, mirrored or not, and normalized.  `source` is who reads them: `own`,
`ImageFolder` with its own threads, `pillow`, the same by Pillow's decoder in threads, `loader`,
PyTorch's `DataLoader` of torchvision's `ImageFolder` in processes; `readers` is how many there are.

Where `trainer` is true a `Trainer` of ResNet-50 in bfloat16 takes them, on a CPU one of a sixteenth
of its width: `alone` are the images a second that it takes of a batch that is there; what is less
is what reading holds up.  `waits` is the share of the host's time in which it asks for a batch,
which it does ahead of the device.  `core_ms` is a core's time for an image, on this
process's threads, the trainer's among them.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import relay_wgrad
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.cores import usable_processors
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training.images import MEAN, STD, ImageFolder
from relay_wgrad.training.trainer import Trainer
from tests.support.torch import plain_networks

SOURCES = ("own", "pillow", "loader")
READERS = (1, 2, 4, 8, 16, 32)
SIZE, PILLOWS = 224, 8  # threads that Pillow's decoder gets at most: more are slower
WARM = 12  # steps that a trainer has had before it is timed


def cases(args: argparse.Namespace) -> Iterator[Case]:
    counts = [count for count in READERS if count <= usable_processors()]
    if args.readers:
        counts = [int(count) for count in args.readers.split(",")]
    for source, readers in itertools.product(args.sources, counts):
        yield Case({"source": source, "readers": readers, "trainer": False})
    for source in args.sources:
        most = min(counts[-1], PILLOWS) if source == "pillow" else counts[-1]
        yield Case({"source": source, "readers": most, "trainer": True})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    folder = TemporaryDirectory()  # it goes with the last case
    write_images(Path(folder.name), args.files)
    width = 64 if args.on_gpu else 4
    graph = from_torch(
        plain_networks.ResNet50(width=width), (torch.zeros(args.batch, 3, SIZE, SIZE),)
    )
    trainers: list[tuple[Trainer, float]] = []

    def one(case: Case) -> Row:
        source, readers, trains = case.key.values()
        with_batches = loader if source == "loader" else image_folder
        batches = with_batches(graph, folder.name, source, readers, args)
        if not trains:
            next(batches)
            return read(batches, args)
        if not trainers:
            device, dtype = ("cuda", "bfloat16") if args.on_gpu else ("cpu", None)
            trainer = Trainer(graph, device, lr=1e-3, dtype=dtype)
            same = itertools.repeat(graph.random_batch(0))
            taken(trainer, itertools.islice(same, WARM), 0.0)
            alone, _ = taken(trainer, same, args.seconds)
            trainers.append((trainer, args.batch * alone))
        trainer, alone = trainers[0]
        taken(trainer, itertools.islice(batches, WARM), 0.0)
        began = time.process_time()
        speed, waits = taken(trainer, batches, args.seconds)
        core = time.process_time() - began
        return {"images": args.batch * speed, "alone": alone, "waits": waits,
                "core_ms": 1e3 * core / (args.batch * speed * args.seconds)}  # fmt: skip

    return one


def write_images(folder: Path, files: int) -> None:
    """Amplitudes fall as 1 / frequency, of colours faster than of light."""
    from PIL import Image

    rng, rows, columns = np.random.default_rng(0), 375, 500
    frequency = np.hypot(np.fft.fftfreq(rows)[:, None], np.fft.rfftfreq(columns))
    frequency[0, 0] = 1

    def plane(power: float, deviation: float) -> Any:
        noise = np.fft.rfft2(rng.standard_normal((rows, columns))) / frequency**power
        made = np.fft.irfft2(noise, (rows, columns))
        return made * (deviation / made.std())

    for number in range(files):
        light = 118 + plane(1.0, 58)
        pixels = np.stack([light + plane(1.3, 17) for _ in range(3)], -1)
        place = folder / str(number % 2)
        place.mkdir(exist_ok=True)
        image = Image.fromarray(pixels.clip(0, 255).astype("uint8"))
        image.save(place / f"{number}.jpg", quality=90)


def image_folder(
    graph: TrainingGraph, folder: str, source: str, readers: int, args: argparse.Namespace
) -> Iterator[Any]:
    decoder = "auto" if source == "own" else source
    data = ImageFolder(graph, folder, threads=readers, decoder=decoder)
    if data.notes:
        raise ImportError(" ".join(data.notes))
    return map(data.batch, itertools.count())


def loader(
    graph: TrainingGraph, folder: str, source: str, readers: int, args: argparse.Namespace
) -> Iterator[Any]:
    from torchvision import datasets, transforms

    data = datasets.ImageFolder(folder, transforms.Compose([
        transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(),
        transforms.ToTensor(), transforms.Normalize(MEAN, STD),
    ]))  # fmt: skip
    chosen = torch.utils.data.RandomSampler(data, replacement=True, num_samples=1 << 30)
    made = torch.utils.data.DataLoader(
        data, args.batch, sampler=chosen, num_workers=readers, pin_memory=args.on_gpu,
        multiprocessing_context="forkserver",
    )  # fmt: skip
    images, labels = (spec.name for spec in graph.inputs[:2])
    return ({images: x, labels: y} for x, y in made)


def read(batches: Iterator[Any], args: argparse.Namespace) -> Row:
    """What is read, and nothing else."""
    began, core, count = time.perf_counter(), time.process_time(), 0
    while count < 2 or time.perf_counter() - began < args.seconds:
        next(batches)
        count += args.batch
    return {"images": count / (time.perf_counter() - began),
            "core_ms": 1e3 * (time.process_time() - core) / count}  # fmt: skip


def taken(trainer: Trainer, batches: Iterator[Any], seconds: float) -> tuple[float, float]:
    """(steps a second, the share of the time that was waited); of all batches without seconds."""
    waits: list[float] = []
    began = time.perf_counter()

    def timed() -> Iterator[Any]:
        while not seconds or time.perf_counter() - began < seconds:
            asked = time.perf_counter()
            batch = next(batches, None)
            waits.append(time.perf_counter() - asked)
            if batch is None:
                return
            yield batch

    count = sum(1 for _ in trainer.train(timed()))
    took = time.perf_counter() - began
    return count / took, sum(waits) / took


BENCHMARK = Benchmark(
    cases, begin,
    options={
        "sources": Option(SOURCES, "who reads", SOURCES), "batch": Option(64, "images"),
        "files": Option(128, "that there are"), "seconds": Option(5.0, "for each time"),
        "readers": Option("", "joined by commas; else up to as many as there are processors"),
    },
    columns=(
        ("source",), ("readers",), ("trainer",), ("images/s", "images", ".0f"),
        ("of a batch that is there", "alone", ".0f"), ("waits", None, ".0%"),
        ("ms of a core", "core_ms", ".2f"), ("reason",),
    ),
)  # fmt: skip
