"""Samples from a folder with images in a folder for each class, as torchvision's `ImageFolder`.

    data = ImageFolder(graph, "flowers/train", seed=0)
    for step in range(5 * data.batches):
        trainer.step(data.batch(step))

Needs the extra `images`.  Images of the next steps are read by threads while a step runs: JPEGs by
`jpeg_reader`, the others, and all where that cannot be, by Pillow.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..cores import usable_processors
from ..extras import extra_module
from ..frontend import TrainingGraph
from ..frontend.weights import Array
from . import jpeg_reader
from .data import WHOLE, Shard, batches_of, check_count, order_of, part_of, shard_of, size_of
from .jpeg_reader import DRAWS, TRIES
from .options import AUGMENT
from .processes import shared_cores
from .recycled import Recycled
from .schedules import is_count

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""torchvision's, in any case."""
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_RESIZED = 256 / 224  # the shorter side of an image before its middle is cut out
_AHEAD = 2  # batches that are read before they are asked for
_DECODERS = ("auto", "pillow")


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
    threads : that read; by default as many as there are processors, of which processes of one
        machine take their parts.
    decoder : of JPEGs: "auto", by threads of our own where there are a C++ compiler and Pillow's
        libjpeg-turbo (`notes` says why not), or "pillow".  A level of a colour, of 0 to 255, may
        differ by 1 between them.

    A batch's images may be written over when the batch and all views of it are gone.

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
        decoder: str = "auto",
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
        if decoder not in _DECODERS:
            raise ValueError(f"decoder must be {' or '.join(_DECODERS)}, got {decoder!r}")
        if threads is not None and not is_count(threads, 1):
            raise ValueError(f"threads must be a number from 1 on, got {threads!r}")
        self.threads = threads or shared_cores(usable_processors())
        self._ahead = max(_AHEAD, -(-_AHEAD * self.threads // self.size))
        self._empty_again = Recycled()
        self._coming, self._parts_coming = dict[int, _Coming](), dict[int, _Coming]()
        self._last_part: int | None = None
        self.notes: list[str] = []  # what a user should know, one line each
        self._takes_jpegs = decoder == "auto" and self._can_take_jpegs()
        self._begin_threads()

    def _can_take_jpegs(self) -> bool:
        """Whether there are JPEGs that threads of our own read."""
        if self._mode != "RGB" or self._input.dtype != "float32":
            return False
        if not any(path.suffix.lower() in jpeg_reader.ENDINGS for path, _ in self.files):
            return False
        if reason := jpeg_reader.reason():
            self.notes.append(f"{os.fspath(self.folder)}: JPEGs are read by Pillow: {reason}")
        return not reason

    def _begin_threads(self) -> None:
        self._process = os.getpid()
        self._pool = ThreadPoolExecutor(self.threads, "relay_wgrad.images")
        self._reader: jpeg_reader.Reader | None = None
        if self._takes_jpegs:
            levels = np.arange(256, dtype="float32")[:, None, None] * np.ones(3, "float32")
            table = self._numbers(levels.transpose(2, 1, 0))[:, 0]
            size = self._input.shape[2], self._input.shape[3]
            self._reader = jpeg_reader.Reader(size, table, self.threads)

    @property
    def batches(self) -> int:
        """Batches in an epoch; what is left over of them is in another epoch's."""
        return batches_of(self)

    def batch(self, step: int) -> dict[str, Array]:
        """The minibatch of a step, counted from 0."""
        self._stay_here()
        for ahead in range(step, step + 1 + self._ahead):
            if ahead not in self._coming:
                chosen, epoch = order_of(self, ahead), ahead // self.batches
                self._coming[ahead] = self._asked(chosen, epoch)
        coming = self._coming.pop(step)
        for other in [other for other in self._coming if not step < other <= step + self._ahead]:
            self._dropped(self._coming.pop(other))
        return self._made(self._read_of(coming), coming.chosen, step)

    @property
    def parts(self) -> int:
        """Batches that have each sample once, in order, the last filled up, or short where the
        graph's batch is open."""
        return -(-self.samples // self.size)

    def part(self, index: int) -> tuple[dict[str, Array], int]:
        """(a batch of these, how many of its samples count): images as in evaluation."""
        self._stay_here()
        # The next one will be as far from this as this from the last.
        last, self._last_part = self._last_part, index
        further = index - last if last is not None and last < index else self.shard[1]
        for ahead in range(index, min(index + further + 1, self.parts), further):
            if ahead not in self._parts_coming:
                self._parts_coming[ahead] = self._asked(part_of(self, ahead)[0])
        coming = self._parts_coming.pop(index)
        for other in [other for other in self._parts_coming if other != index + further]:
            self._dropped(self._parts_coming.pop(other))
        images = self._read_of(coming)
        return self._made(images, coming.chosen, index), part_of(self, index)[1]

    def _stay_here(self) -> None:
        """In a child of `fork`, which has none of the threads, begins anew."""
        if self._process != os.getpid():
            self._coming.clear()
            self._parts_coming.clear()
            self._begin_threads()

    def _asked(self, chosen: Sequence[int], epoch: int | None = None) -> _Coming:
        """Images that the threads are told to read; without an epoch as in evaluation."""
        augment = "none" if epoch is None else self.reading.augment
        images = self._empty_again.empty((len(chosen), *self._input.shape[1:]), self._input.dtype)
        made = _Coming(images, chosen, augment, draws_of(self.seed, epoch or 0, chosen))
        paths = [self.files[index][0] for index in chosen]
        if self._reader is not None:
            made.ours = [
                k for k, path in enumerate(paths) if path.suffix.lower() in jpeg_reader.ENDINGS
            ]
        if self._reader is not None and made.ours:
            job = jpeg_reader.Job(
                [paths[k] for k in made.ours], made.draws[made.ours], [images[k] for k in made.ours]
            )
            made.job = self._reader.begin(job, augment)
        for k in sorted({*range(len(paths))} - {*made.ours}):
            made.waiting.append(self._pool.submit(self._read_into, made, k))
        return made

    def _read_of(self, coming: _Coming) -> Array:
        """The images, when they are there."""
        try:
            left: list[int] = []
            if self._reader is not None and coming.job is not None:
                left = [coming.ours[i] for i in self._reader.end(coming.job)]
            list(self._pool.map(lambda k: self._read_into(coming, k), left))
            for future in coming.waiting:
                future.result()
        except BaseException:
            self._dropped(coming)
            raise
        return coming.images

    def _dropped(self, coming: _Coming) -> None:
        for future in coming.waiting:
            future.cancel()
        if self._reader is not None and coming.job is not None:
            self._reader.drop(coming.job)

    def _made(self, images: Array, chosen: Sequence[int], step: int) -> dict[str, Array]:
        labels = [self.files[index][1] for index in chosen]
        whole = {
            self._input.name: images,
            self._labels.name: np.array(labels, self._labels.dtype),
        }
        drawn = self.graph.draws(self.seed, step, len(images), self.shard[0])
        return {spec.name: {**drawn, **whole}[spec.name] for spec in self.graph.inputs}

    def _read_into(self, coming: _Coming, place: int) -> None:
        """Reads an image by Pillow, in place."""
        path, draws = self.files[coming.chosen[place]][0], coming.draws[place]
        try:
            with self._image.open(path) as file:
                image = file if file.mode == self._mode else file.convert(self._mode)
                image.load()
        except Exception as error:  # of any kind: the file may be anything
            text = " ".join(str(error).split())
            raise ValueError(f"{os.fspath(path)!r} is no image: {text:.200}") from error
        size = self._input.shape[2:]
        box = part(coming.augment, draws, *image.size, *size)
        bilinear = self._image.Resampling.BILINEAR
        pixels = np.asarray(image.resize(size[::-1], bilinear, box=box)).reshape(*size, -1)
        if coming.augment != "none" and draws[-1] < 0.5:
            pixels = pixels[:, ::-1]
        coming.images[place] = pixels.transpose(2, 0, 1)
        self._numbers(coming.images[place])

    def _numbers(self, levels: Array) -> Array:
        """Levels of colours, from 0 to 255, by planes, as the network takes them; in place."""
        mean, std = (np.array(v, self._input.dtype) for v in (self.reading.mean, self.reading.std))
        if self._mode == "L":
            mean, std = mean.mean(), std.mean()
        levels /= 255
        levels -= mean.reshape(-1, 1, 1)
        levels /= std.reshape(-1, 1, 1)
        return levels


@dataclass
class _Coming:
    """A batch's images, on their way.

    chosen : the samples.  augment, draws : what is taken of each.
    ours : the places of those that `job` reads; the others are `waiting` for Pillow.
    """

    images: Array
    chosen: Sequence[int]
    augment: str
    draws: Array
    ours: Sequence[int] = ()
    job: jpeg_reader.Job | None = None
    waiting: list[Future[None]] = field(default_factory=list)


def draws_of(seed: int, epoch: int, samples: Sequence[int]) -> Array:
    """float64[samples, DRAWS], from 0 to 1, which follow from seed, epoch and a sample's number
    alone: splitmix64 of a counter, since a generator for each image takes longer than all else that
    Python does for it."""
    (key,) = np.random.SeedSequence([seed, epoch]).generate_state(1, "uint64")
    counter = np.asarray(samples, "uint64")[:, None] * np.uint64(DRAWS)
    mixed = (counter + np.arange(1, DRAWS + 1, dtype="uint64")) * np.uint64(0x9E3779B97F4A7C15)
    mixed += key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    made: Array = (mixed >> np.uint64(11)) * 2.0**-53
    return made


Box = tuple[float, float, float, float]


def part(augment: str, draws: Array, width: int, height: int, rows: int, columns: int) -> Box:
    """What is taken of an image.  `templates/jpeg_reader.cc` says the same, number by number."""
    return (
        _crop(draws, width, height) if augment == "crop" else _middle(width, height, rows, columns)
    )


def _crop(draws: Array, width: int, height: int) -> Box:
    """A random part, as torchvision's RandomResizedCrop cuts it."""
    least, most = math.log(3 / 4), math.log(4 / 3)
    for i in range(TRIES):
        area = width * height * (0.08 + (1.0 - 0.08) * float(draws[2 * i]))
        ratio = math.exp(least + (most - least) * float(draws[2 * i + 1]))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left = math.floor((width - w + 1) * float(draws[2 * TRIES]))
            top = math.floor((height - h + 1) * float(draws[2 * TRIES + 1]))
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
