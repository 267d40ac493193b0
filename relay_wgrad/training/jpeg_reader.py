"""JPEGs read into batches by threads that hold no lock of Python's: `templates/jpeg_reader.cc`.

A library of our own, built once for a machine, which decodes by the libjpeg-turbo that Pillow has
loaded: the part that is wanted of a file alone, resized as Pillow resizes.  A level of a colour may
be another by 1, since Pillow rounds between columns and rows.  What it does not read is Pillow's:
what is no JPEG or has four colours, is damaged or of so many pixels that Pillow warns.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ..extras import extra_module
from ..frontend.weights import Array

ENDINGS = (".jpg", ".jpeg")
TRIES = 10
DRAWS = 2 * TRIES + 3
"""Random numbers for an image: two for each try at a part, two for its place, one for a mirror."""
_AUGMENT = {"none": 0, "flip": 1, "crop": 2}
_WAIT = 100  # milliseconds, between which Ctrl-C is heard
_PREFIX = "relay_wgrad_jpeg"


@cache
def _standing() -> Any:
    # Here: who trains on a CPU needs nothing else of `byoc_cudnn`, which takes 0.4 s to import.
    from byoc_cudnn.building.fixed_source import Standing

    def source() -> str:
        place = files("relay_wgrad.training") / "templates" / "jpeg_reader.cc"
        return place.read_text(encoding="utf-8")

    def lacking(found: Any) -> str:
        return "\n".join(found.lacking())

    return Standing("image-library", "the reader of JPEGs", source, lacking, is_host=True)


def decoder() -> str:
    """The libjpeg that Pillow decodes with.  Raises ModuleNotFoundError without Pillow, OSError
    where there is none in the process."""
    extra_module("PIL._imaging", "folders of images need Pillow", "images")
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape")
    paths = [line.split(maxsplit=5)[5] for line in lines.splitlines() if "libjpeg" in line]
    if not paths:
        raise OSError("Pillow has loaded no libjpeg")
    # Another package may have one of its own, in a folder of its own.
    return min(paths, key=lambda path: "pillow" not in path.lower())


def function(name: str) -> Any:
    """One of the library's, which is built where it has not been.

    Raises `byoc_cudnn`'s ToolchainError where it cannot be built.
    """
    return _standing().module()[f"{_PREFIX}_{name}"]


@cache
def reason() -> str:
    """Why JPEGs are Pillow's here; empty where this reads them."""
    from byoc_cudnn.building.toolchain import ToolchainError

    try:
        function("check")(decoder())
    except (ToolchainError, OSError, RuntimeError) as error:
        return " ".join(str(error).split())[:300]
    return ""


def described() -> str:
    """Who reads JPEGs, for people; nothing is built for it."""
    from byoc_cudnn.building.toolchain import find

    try:
        path = decoder()
    except ModuleNotFoundError as error:
        return str(error)
    except OSError as error:
        return f"Pillow alone: {error}"
    lacking = " ".join("; ".join(find().without_cuda().lacking()).split())
    return f"Pillow alone: {lacking}" if lacking else f"own threads, by {path}"


def part(
    augment: str, draws: Array, width: int, height: int, rows: int, columns: int
) -> tuple[float, ...]:
    """What the library takes of an image, as `part` of `images` says."""
    made, draws = np.empty(4), np.ascontiguousarray(draws, "float64")
    function("part")(
        _AUGMENT[augment], draws.ctypes.data, width, height, rows, columns, made.ctypes.data
    )  # fmt: skip
    return tuple(made.tolist())


class Job:
    """Images that are being read, and all that the threads read and write meanwhile."""

    def __init__(
        self, paths: Sequence[str | os.PathLike[str]], draws: Array, images: Sequence[Array]
    ) -> None:
        names = [os.fsencode(path) + b"\0" for path in paths]
        self.names = b"".join(names)
        self.starts = np.cumsum([0, *map(len, names)])[: len(names)].astype("int64")
        self.draws, self.images = np.ascontiguousarray(draws, "float64"), images
        self.places = np.array([image.ctypes.data for image in images], "uint64")
        self.is_read = np.zeros(len(names), "uint8")
        self.number = -1  # the pool's for it


class Reader:
    """Threads that read JPEGs, first those that were asked for first.

    size : rows and columns of an image as it is wanted, of three planes in float32.
    table : float32[3, 256], what becomes of each level of a colour.
    """

    def __init__(self, size: tuple[int, int], table: Array, threads: int) -> None:
        table = np.ascontiguousarray(table, "float32")
        self._pool = function("open")(decoder(), threads, *size, table.ctypes.data)
        self._begin, self._wait = function("begin"), function("wait")
        self._jobs: dict[int, Job] = {}  # whose memory the threads may use
        self._process = os.getpid()
        # The jobs are an argument so that they live until the threads have ended.
        weakref.finalize(self, _close, function("close"), self._pool, self._process, self._jobs)

    @property
    def is_here(self) -> bool:
        """Whether this process has its threads: a child of `fork` has not."""
        return self._process == os.getpid()

    def begin(self, job: Job, augment: str) -> Job:
        """Has a job's images read; `end` is to be called of it, or `drop`."""
        assert self.is_here
        job.number = self._begin(
            self._pool, len(job.images), _AUGMENT[augment],
            np.frombuffer(job.names, "uint8").ctypes.data, job.starts.ctypes.data,
            job.draws.ctypes.data, job.places.ctypes.data, job.is_read.ctypes.data,
        )  # fmt: skip
        self._jobs[job.number] = job
        return job

    def end(self, job: Job) -> list[int]:
        """Waits for a job: which of its images were not read."""
        while not self._wait(self._pool, job.number, _WAIT):
            pass
        del self._jobs[job.number]
        return np.flatnonzero(job.is_read == 0).tolist()

    def drop(self, job: Job) -> None:
        """Nobody wants a job's images any more; waits for those that are being read."""
        if job.number in self._jobs and self.is_here:
            function("drop")(self._pool, job.number)
            del self._jobs[job.number]


def _close(close: Any, pool: int, process: int, jobs: dict[int, Job]) -> None:
    if process == os.getpid():
        close(pool)
    jobs.clear()
