"""Minibatches of data of one's own: arrays, or a NumPy file of them, for a training graph.

data = Data.load("mine.npz", graph, seed=0)
for step in range(100):
    trainer.step(data.batch(step))
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from .frontend import InputSpec, TrainingGraph
from .frontend.graph import check_labels
from .frontend.weights import Array

SAMPLED = ("data", "labels", "target")
"""Kinds of inputs that have a value for each sample; masks are drawn anew for each batch."""


class Data:
    """Samples for a graph: `batch(step)` is a shuffled minibatch, the same whenever it is asked.

    Parameters
    ----------
    graph : whose inputs the samples are for.
    arrays : by the names of the graph's inputs, each with the samples along its first axis: the
        data, and `labels` or `target`.  Numbers are converted to the input's dtype: images may be
        uint8 (they are not scaled), labels of any integer type.  Others are not looked at.
    seed : of the order, which is another one in each epoch, and of dropout's masks.

    Raises
    ------
    ValueError : for a missing array, one of another shape or kind, arrays of different lengths,
        fewer samples than a batch, a label that is no class, a value that is not finite.
    """

    def __init__(self, graph: TrainingGraph, arrays: Mapping[str, Any], seed: int = 0) -> None:
        self.graph, self.seed = graph, seed
        specs = [spec for spec in graph.inputs if spec.kind in SAMPLED]
        missing = [spec.name for spec in specs if spec.name not in arrays]
        if missing:
            given = ", ".join(f"{n} {_text(np.asarray(a))}" for n, a in arrays.items())
            raise ValueError(
                f"{graph.name}: no samples for {', '.join(missing)}; wanted are"
                f" {', '.join(map(_wanted, specs))}, got {given or 'nothing'}"
            )
        self.arrays = {spec.name: _samples(graph, spec, arrays[spec.name]) for spec in specs}
        lengths = {name: len(array) for name, array in self.arrays.items()}
        self.samples = min(lengths.values())
        if len({*lengths.values()}) > 1:
            raise ValueError(f"{graph.name}: not the same number of samples in each: {lengths}")
        if self.samples < graph.batch:
            raise ValueError(
                f"{graph.name}: {self.samples} samples are less than a batch of {graph.batch}"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str], graph: TrainingGraph, seed: int = 0) -> Data:
        """Of a file that `numpy.savez` wrote.

        Raises FileNotFoundError; ValueError for another kind of file, and as the class does.
        """
        text = os.fspath(path)
        arrays: dict[str, Array] = {}
        with contextlib.suppress(ValueError, EOFError, zipfile.BadZipFile):
            file = np.load(text, allow_pickle=False)
            if not isinstance(file, np.ndarray):  # of numpy.save
                with file:
                    arrays = dict(file)
        if not arrays:
            raise ValueError(f"{text!r} is no file of numpy.savez with arrays of numbers")
        return cls(graph, arrays, seed)

    @property
    def batches(self) -> int:
        """Whole batches in an epoch; what is left over then is in another epoch's."""
        return self.samples // self.graph.batch

    def batch(self, step: int) -> dict[str, Array]:
        """The minibatch of a step, counted from 0."""
        epoch, at = divmod(step, self.batches)
        order = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
        chosen = order[at * self.graph.batch : (at + 1) * self.graph.batch]
        out: dict[str, Array] = {}
        for index, spec in enumerate(self.graph.inputs):
            if spec.kind in SAMPLED:
                out[spec.name] = self.arrays[spec.name][chosen].astype(spec.dtype)
            else:
                out[spec.name] = spec.random(np.random.default_rng([self.seed, step, index]))
        return out


def _samples(graph: TrainingGraph, spec: InputSpec, given: Any) -> Array:
    array = np.asarray(given)
    converts = array.dtype.kind in "biuf" and np.can_cast(array.dtype, spec.dtype, "same_kind")
    if array.ndim != len(spec.shape) or array.shape[1:] != spec.shape[1:] or not converts:
        raise ValueError(f"{graph.name}: samples are {_wanted(spec)}, got {_text(array)}")
    if spec.kind == "labels" and graph.classes is not None:
        check_labels(spec.name, array, graph.classes)
    if array.dtype.kind == "f" and not np.isfinite(array.sum()) and not np.isfinite(array).all():
        index = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
        raise ValueError(f"{graph.name}: {spec.name} is {array[index]} at index {list(index)}")
    return array


def _wanted(spec: InputSpec) -> str:
    return f"{spec.name} {spec.dtype}[{', '.join(['samples', *map(str, spec.shape[1:])])}]"


def _text(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
