"""Minibatches of data of one's own: arrays, or a NumPy file of them, for a training graph.

data = Data.load("mine.npz", graph, seed=0)
for step in range(100):
    trainer.step(data.batch(step))
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..argument_types import check_type, checked_bool
from ..frontend import InputSpec, TrainingGraph
from ..frontend.graph import TRAINING_GRAPH, check_labels
from ..frontend.weights import Array, as_array
from .arrays_file import ArraysFile
from .schedules import is_count

SAMPLED = ("data", "labels", "target")
"""Kinds of inputs that have a value for each sample; masks are drawn anew for each batch."""
Shard = tuple[int, int]
WHOLE: Shard = (0, 1)
_NAMED = 8  # of a file's arrays, in an error


class Data:
    """Samples for a graph: `batch(step)` is a shuffled minibatch, the same whenever it is asked.

    Parameters
    ----------
    graph : whose inputs the samples are for.
    arrays : by the names of the graph's inputs, each with the samples along its first axis: the
        data, and `labels` or `target`.  Numbers are converted to the input's dtype: images may be
        uint8 (they are not scaled), labels of any integer type.  Others are not looked at.
    seed : of the order, which is another one in each epoch, and of dropout's masks.
    least : samples that there must be; by default a batch.
    size : samples in a batch, of a graph whose batch is open.
    drop_last : whether what is left over of an epoch after whole batches is not a batch; where the
        graph's batch is open it may be one.
    shard : (rank, processes): of several processes each has its part of what would be one's batch
        of `processes` times the size; of what is left over parts of nearly the same size.

    Raises
    ------
    ValueError : for a missing array, one of another shape or kind, arrays of different lengths,
        fewer samples than a batch, a label that is no class, a value that is not finite or that the
        input's dtype does not hold.
    """

    def __init__(
        self,
        graph: TrainingGraph,
        arrays: Mapping[str, Any],
        seed: int = 0,
        *,
        least: int | None = None,
        size: int | None = None,
        drop_last: bool = True,
        shard: Shard = WHOLE,
    ) -> None:
        self.graph, self.seed = graph, seed
        self.size, self.drop_last = size_of(graph, size, drop_last), drop_last
        self.shard = shard_of(shard)
        check_type("samples: least", least, (int, np.integer, type(None)), "a number of samples")
        check_type("samples: arrays", arrays, (Mapping, ArraysFile), "a dict of arrays by name")
        origin = repr(arrays.path) if isinstance(arrays, ArraysFile) else graph.name
        specs = [spec for spec in graph.inputs if spec.kind in SAMPLED]
        missing = [spec.name for spec in specs if spec.name not in arrays]
        if missing:
            raise ValueError(
                f"{origin}: no samples for {', '.join(missing)}; wanted are"
                f" {', '.join(map(_expected_text, specs))}, got {_arrays_text(arrays)}"
            )
        self.arrays = {
            spec.name: _samples(origin, spec, arrays[spec.name], graph.classes) for spec in specs
        }
        lengths = {name: len(array) for name, array in self.arrays.items()}
        self.samples = min(lengths.values())
        if len({*lengths.values()}) > 1:
            raise ValueError(f"{origin}: not the same number of samples in each: {lengths}")
        check_count(self, origin, least)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        graph: TrainingGraph,
        seed: int = 0,
        *,
        least: int | None = None,
        size: int | None = None,
        drop_last: bool = True,
        shard: Shard = WHOLE,
    ) -> Data:
        """Of a file that `numpy.savez` wrote; arrays that the graph does not take are not read.

        Raises FileNotFoundError or another OSError; ValueError for another kind of file, and as the
        class does.
        """
        with ArraysFile(path) as arrays:
            return cls(
                graph, arrays, seed, least=least, size=size, drop_last=drop_last, shard=shard
            )  # fmt: skip

    @property
    def batches(self) -> int:
        """Batches in an epoch; what is left over of them is in another epoch's."""
        return batches_of(self)

    def batch(self, step: int) -> dict[str, Array]:
        """The minibatch of a step, counted from 0."""
        return self._of(order_of(self, step), step)

    @property
    def parts(self) -> int:
        """Batches that have each sample once, in order, the last filled up, or short where the
        graph's batch is open."""
        return -(-self.samples // self.size)

    def part(self, index: int) -> tuple[dict[str, Array], int]:
        """(a batch of these, how many of its samples count)."""
        chosen, count = part_of(self, index)
        return self._of(np.array(chosen), index), count

    def _of(self, chosen: Any, step: int) -> dict[str, Array]:
        out: dict[str, Array] = {}
        drawn = self.graph.draws(self.seed, step, len(chosen), self.shard[0])
        for spec in self.graph.inputs:
            if spec.kind in SAMPLED:
                out[spec.name] = self.arrays[spec.name][chosen].astype(spec.dtype)
            else:
                out[spec.name] = drawn[spec.name]
        return out


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, samples: int) -> Any:
    return np.random.default_rng([seed, epoch]).permutation(samples)


def size_of(graph: TrainingGraph, size: int | None, drop_last: bool) -> int:
    """Samples in a batch: the graph's number, or where that is open the one that is given.

    Raises ValueError for a number that the graph does not take, TypeError for another type.
    """
    check_type("samples: graph", graph, TrainingGraph, TRAINING_GRAPH)
    checked_bool("samples: drop_last", drop_last)
    if not isinstance(size, (int, np.integer, type(None))):
        raise ValueError(f"{graph.name}: size must be a number of samples, got {size!r}")
    if not graph.is_open:
        if size not in (None, graph.batch):
            raise ValueError(f"{graph.name}: size must be its batch, {graph.batch}, got {size}")
        if not drop_last:
            raise ValueError(
                f"{graph.name}: a short last batch needs an open one, as of batch='N'; it has"
                f" {graph.batch}"
            )
        return graph.batch
    if size is None:
        raise ValueError(f"{graph.name}: its batch is open: size must be a number of samples")
    graph.limits.check(graph.name, size)
    return size


def shard_of(given: Any) -> Shard:
    """(rank, processes).  Raises TypeError for what is no pair, ValueError for other numbers."""
    check_type("samples: shard", given, tuple, "(rank, processes)")
    if len(given) != 2 or not is_count(given[1], 1) or not is_count(given[0], 0):
        raise ValueError(f"samples: shard must be (rank, processes), got {given!r}")
    if given[0] >= given[1]:
        raise ValueError(f"samples: shard's rank must be below its processes, got {given!r}")
    return int(given[0]), int(given[1])


def _whole_size(data: Any) -> int:
    """Samples in a batch of all processes."""
    return int(data.size * data.shard[1])


def batches_of(data: Any) -> int:
    """Batches in an epoch, of data with `samples`, `size`, `shard` and `drop_last`."""
    size = _whole_size(data)
    return int(data.samples // size if data.drop_last else -(-data.samples // size))


def check_count(data: Any, origin: str, least: int | None) -> None:
    """Raises ValueError for fewer samples than there must be, by default a batch, and for a short
    last batch that the graph does not take."""
    size, processes = _whole_size(data), data.shard[1]
    if data.samples < (size if least is None else least):
        each = f" for each of {processes} processes" if processes > 1 else ""
        raise ValueError(
            f"{origin}: {data.samples} samples are less than a batch of {data.size}{each}"
        )
    if not data.drop_last and (left := data.samples % size):
        if left < processes:
            raise ValueError(
                f"{origin}: a last batch of {left} samples is less than one for each of"
                f" {processes} processes; drop_last=True leaves it out"
            )
        for part in {left // processes, -(-left // processes)}:
            data.graph.limits.check(data.graph.name, part)


def order_of(data: Any, step: int) -> Any:
    """The samples of a step's batch, of data that also has `seed` and `batches`."""
    epoch, at = divmod(step, data.batches)
    order, size = _order(data.seed, epoch, data.samples), _whole_size(data)
    rank, processes = data.shard
    return np.array_split(order[at * size : (at + 1) * size], processes)[rank]


def part_of(data: Any, index: int) -> tuple[list[int], int]:
    """(the samples of a batch in order, filled up with the first ones if its size is fixed, how
    many count)."""
    first = index * data.size
    count = min(data.size, data.samples - first)
    taken = count if data.graph.is_open else data.size
    return [(first + i) % data.samples for i in range(taken)], count


def _samples(origin: str, spec: InputSpec, given: Any, classes: int | None) -> Array:
    try:
        array = as_array(given)
    except (ValueError, TypeError) as error:  # lists of different lengths, a tensor with a gradient
        raise ValueError(f"{origin}: {spec.name} is no array of numbers: {error}") from error
    if np.ma.is_masked(given):
        raise ValueError(f"{origin}: {spec.name} has masked values; fill them first")
    converts = array.dtype.kind in "biuf" and np.can_cast(array.dtype, spec.dtype, "same_kind")
    if array.ndim != len(spec.shape) or array.shape[1:] != spec.shape[1:] or not converts:
        raise ValueError(f"{origin}: samples are {_expected_text(spec)}, got {_text(array)}")
    if spec.kind == "labels" and classes is not None:
        check_labels(f"{origin}: {spec.name}", array, classes, spec.ignored)
    if array.size:
        _representable(f"{origin}: {spec.name}", array, np.dtype(spec.dtype))
    return np.asarray(array)


def _representable(what: str, array: Array, dtype: np.dtype[Any]) -> None:
    """Raises ValueError for the first value that is not finite in a dtype, or wraps in it.

    Rounding is none: float64 and large integers become the nearest value.
    """
    low, high = array.min(), array.max()  # NaN where one is
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            if np.isfinite([low.astype(dtype), high.astype(dtype)]).all():
                return
            wrong = ~np.isfinite(array.astype(dtype))
    else:
        least, most = (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (0, 1)
        if least <= int(low) and int(high) <= most:
            return
        wrong = (array < least) | (array > most)
    index = tuple(np.argwhere(wrong)[0].tolist())
    held = f", which {dtype} does not hold" if np.isfinite(array[index]) else ""
    raise ValueError(f"{what} is {array[index]} at index {list(index)}{held}")


def _expected_text(spec: InputSpec) -> str:
    return f"{spec.name} {spec.dtype}[{', '.join(['samples', *map(str, spec.shape[1:])])}]"


def _arrays_text(arrays: Mapping[str, Any]) -> str:
    names = list(arrays)
    if isinstance(arrays, ArraysFile):
        texts = [arrays.describe(name) for name in names[:_NAMED]]
    else:
        texts = [f"{name} {_text(arrays[name])}" for name in names[:_NAMED]]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join(texts + more) or "nothing"


def _text(value: Any) -> str:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    return type(value).__name__ if dtype is None or shape is None else f"{dtype}{list(shape)}"
