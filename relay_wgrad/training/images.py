"""Samples from a folder with images in a folder for each class, as torchvision's `ImageFolder`.

    data = ImageFolder(graph, "flowers/train", seed=0)
    for step in range(5 * data.batches):
        trainer.step(data.batch(step))

Needs the extra `images`.  Images of the next steps are read by threads while a step runs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..extras import extra_module
from ..frontend import TrainingGraph
from ..frontend.weights import Array
from .data import WHOLE, Shard, batches_of, check_count, order_of, part_of, shard_of, size_of
from .options import AUGMENT

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's, in any case."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_RESIZED = 256 / 224  # the shorter side of an image before its middle is cut out
_TRIES = 10
_AHEAD = 2  # batches that are read before they are asked for


@dataclass(frozen=True)
class Reading:
    """How an image becomes numbers.

    augment : in training "crop", a random part of it at the network's size (from 8 % of its area
        on, sides from 3:4 to 4:3) that is mirrored or not; "flip", its middle, mirrored or not;
        "none", its middle, as in evaluation: the shorter side becomes 256/224 of the network's.
    mean, std : of each channel, from 0 to 1: what is taken away, and divided by then.  One number
        stands for all channels.
    """

    augment: str = "crop"
    mean: Sequence[float] = MEAN
    std: Sequence[float] = STD

    def __post_init__(self) -> None:
        if self.augment not in AUGMENT:
            raise ValueError(f"augment must be {', '.join(AUGMENT)}, got {self.augment!r}")
        for name in ("mean", "std"):
            given = getattr(self, name)
            if len(given) not in (1, 3) or not all(math.isfinite(v) for v in given):
                raise ValueError(f"{name} must be a number or one for each channel, got {given}")
        if not all(v > 0 for v in self.std):
            raise ValueError(f"std must be positive, got {self.std}")


class ImageFolder:
    """Images and their classes for a graph: as `Data`, from files.

    Parameters
    ----------
    graph : whose inputs are images (N, 3, H, W), or (N, 1, H, W) in grey, of floats, and labels.
    folder : with a folder for each class, of any depth; classes are numbered by their names' order.
    seed : of the order, the parts that are cut out, and dropout's masks: a batch depends on the
        seed and its step alone.
    reading : how images become numbers.
    least, size, drop_last, shard : as of `Data`.
    threads : that read; by default as many as there are cores, 8 at most.

    Raises
    ------
    ValueError : for a graph of other inputs, more classes than the network has, a class without
        images, fewer images than a batch; when it is read, for a file that is no image, naming it.
    FileNotFoundError : for a folder that is not there.
    ModuleNotFoundError : without Pillow.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        folder: str | os.PathLike[str],
        seed: int = 0,
        reading: Reading | None = None,
        *,
        least: int | None = None,
        size: int | None = None,
        drop_last: bool = True,
        shard: Shard = WHOLE,
        threads: int | None = None,
    ) -> None:
        self._image = extra_module("PIL.Image", "folders of images need Pillow", "images")
        self.size, self.drop_last = size_of(graph, size, drop_last), drop_last
        self.shard = shard_of(shard)
        self.graph, self.seed, self.folder = graph, seed, Path(folder)
        self.reading = Reading() if reading is None else reading
        self._input, self._labels, self._mode = _inputs(graph)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"no folder {os.fspath(folder)!r}")
        self.classes = sorted(p.name for p in self.folder.iterdir() if p.is_dir())
        if not self.classes or len(self.classes) > (graph.classes or 0):
            raise ValueError(
                f"{os.fspath(folder)!r} has folders of {len(self.classes)} classes, but"
                f" {graph.name} has {graph.classes}"
            )
        self.files: list[tuple[Path, int]] = []
        for label, name in enumerate(self.classes):
            found = sorted(
                p for p in (self.folder / name).rglob("*") if p.suffix.lower() in ENDINGS
            )
            if not found:
                raise ValueError(
                    f"{os.fspath(self.folder / name)!r} has no images: {', '.join(ENDINGS)}"
                )
            self.files += [(path, label) for path in found]
        self.samples = len(self.files)
        check_count(self, repr(os.fspath(folder)), least)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        self._pool = ThreadPoolExecutor(threads or min(cores, 8), "relay_wgrad.images")
        self._coming: dict[int, tuple[Array, list[Future[None]]]] = {}

    @property
    def batches(self) -> int:
        """Batches in an epoch; what is left over of them is in another epoch's."""
        return batches_of(self)

    def batch(self, step: int) -> dict[str, Array]:
        """The minibatch of a step, counted from 0."""
        for ahead in range(step, step + 1 + _AHEAD):
            if ahead not in self._coming:
                chosen, epoch = order_of(self, ahead), ahead // self.batches
                images = self._empty(len(chosen))
                self._coming[ahead] = (
                    images,
                    [
                        self._pool.submit(self._read_into, image, index, epoch)
                        for image, index in zip(images, chosen, strict=True)
                    ],
                )
        images, waiting = self._coming.pop(step)
        for other in [other for other in self._coming if not step < other <= step + _AHEAD]:
            for future in self._coming.pop(other)[1]:
                future.cancel()
        labels = [self.files[index][1] for index in order_of(self, step)]
        for future in waiting:
            future.result()
        return self._made(images, labels, step)

    @property
    def parts(self) -> int:
        """Batches that have each sample once, in order, the last filled up, or short where the
        graph's batch is open."""
        return -(-self.samples // self.size)

    def part(self, index: int) -> tuple[dict[str, Array], int]:
        """(a batch of these, how many of its samples count): images as in evaluation."""
        chosen, count = part_of(self, index)
        images = self._empty(len(chosen))
        list(self._pool.map(self._read_into, images, chosen))
        return self._made(images, [self.files[i][1] for i in chosen], index), count

    def _empty(self, count: int) -> Array:
        return np.empty((count, *self._input.shape[1:]), self._input.dtype)

    def _made(self, images: Array, labels: list[int], step: int) -> dict[str, Array]:
        whole = {
            self._input.name: images,
            self._labels.name: np.array(labels, self._labels.dtype),
        }
        drawn = self.graph.draws(self.seed, step, len(images), self.shard[0])
        return {spec.name: {**drawn, **whole}[spec.name] for spec in self.graph.inputs}

    def _read(self, index: int, epoch: int | None = None) -> Array:
        """An image as numbers; without an epoch, or without augmentation, its middle."""
        (made,) = self._empty(1)
        self._read_into(made, index, epoch)
        return made

    def _read_into(self, made: Array, index: int, epoch: int | None = None) -> None:
        """`_read`, in place: new arrays would have threads wait for each other in the kernel."""
        path = self.files[index][0]
        try:
            with self._image.open(path) as file:
                image = file if file.mode == self._mode else file.convert(self._mode)
                image.load()
        except Exception as error:  # of any kind: the file may be anything
            text = " ".join(str(error).split())
            raise ValueError(f"{os.fspath(path)!r} is no image: {text:.200}") from error
        size = self._input.shape[2:]
        augment = "none" if epoch is None else self.reading.augment
        rng = np.random.default_rng([self.seed, epoch or 0, index])
        box = _crop(rng, *image.size) if augment == "crop" else _middle(*image.size, *size)
        bilinear = self._image.Resampling.BILINEAR
        pixels = np.asarray(image.resize(size[::-1], bilinear, box=box)).reshape(*size, -1)
        if augment != "none" and rng.random() < 0.5:
            pixels = pixels[:, ::-1]
        mean, std = (np.array(v, self._input.dtype) for v in (self.reading.mean, self.reading.std))
        if self._mode == "L":
            mean, std = mean.mean(), std.mean()
        made[...] = pixels.transpose(2, 0, 1)
        made /= 255
        made -= mean.reshape(-1, 1, 1)
        made /= std.reshape(-1, 1, 1)


Box = tuple[float, float, float, float]


def _crop(rng: np.random.Generator, width: int, height: int) -> Box:
    """A random part, as torchvision's RandomResizedCrop cuts it."""
    for _ in range(_TRIES):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    side_w, side_h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - side_w) // 2, (height - side_h) // 2
    return left, top, left + side_w, top + side_h


def _middle(width: int, height: int, rows: int, columns: int) -> Box:
    """The part that is left of an image of 256/224 of the size when its middle is cut out."""
    scale = min(width / columns, height / rows) / _RESIZED
    w, h = columns * scale, rows * scale
    left, top = (width - w) / 2, (height - h) / 2
    return left, top, left + w, top + h


def _inputs(graph: TrainingGraph) -> tuple[Any, Any, str]:
    """(the images' input, the labels', how Pillow names the colours).  Raises ValueError."""
    data = [spec for spec in graph.inputs if spec.kind == "data"]
    labels = [spec for spec in graph.inputs if spec.kind == "labels"]
    fits = len(data) == len(labels) == 1 and len(data[0].shape) == 4 and len(labels[0].shape) == 1
    if not fits or data[0].shape[1] not in (1, 3) or not data[0].dtype.startswith("float"):
        raise ValueError(
            f"{graph.name}: images are for an input (N, 3 or 1, H, W) of floats and labels (N,); a"
            f" batch is {graph.batch_text()}"
        )
    return data[0], labels[0], "RGB" if data[0].shape[1] == 3 else "L"
