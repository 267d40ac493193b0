"""What several processes computed of their parts of a batch, as of the whole: means over them.

With process r's loss L_r the mean over its weight n_r, such as its samples, the whole batch's is

    L = sum(n_r L_r) / sum(n_r)      dL/dp = sum(n_r dL_r/dp) / sum(n_r)

So loss, gradients and new running statistics are multiplied by n_r, added up by all-reduces, and
divided by the sum of the weights, which is one number more of each.  A value that is not finite
anywhere is so everywhere: what is decided by it is decided together.

Where gradients of several batches are accumulated, only the sum is exchanged: each process adds up
its n_r P / sum(n_r) dL_r/dp, of P processes, whose plain mean is what the whole batches' would be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..frontend import TrainingGraph
from ..frontend.loss import CrossEntropy
from ..ops.process_mean import RUNS
from ..transform.sync_norm import sync_batch_norm
from .processes import Processes, heard

BUCKET = 25 << 20
"""Bytes of an all-reduce, about: `DistributedDataParallel`'s."""
_ALIGNED = 256  # bytes, at which tensors begin: what vector instructions and kernels want


def check_loss(graph: TrainingGraph) -> None:
    """Raises ValueError for a loss that is not that of a whole batch by a mean over parts of it."""
    if getattr(graph.loss, "reduction", "mean") != "mean":
        raise ValueError(
            f"distributed=True: {graph.name}: the loss is {graph.loss}, and gradients are means"
            " over the processes; take reduction='mean'"
        )


def synchronized(graph: TrainingGraph, processes: int) -> TrainingGraph:
    """The graph with batches that are normalized by those of so many processes.

    Raises ValueError for an open batch, and where there is no training batch normalization.
    """
    if graph.is_open:
        raise ValueError(
            f"sync_batch_norm=True: {graph.name}: its batch is open; import it for a fixed one"
        )
    module, count = sync_batch_norm(graph.module, "main", processes)
    if not count:
        raise ValueError(
            f"sync_batch_norm=True: {graph.name} has no batch normalization in training"
        )
    return replace(graph, module=module)


def weight_of(graph: TrainingGraph, batch: Mapping[str, Any]) -> float:
    """What a batch counts: its samples, or of labels that count differently the sum of that."""
    loss = graph.loss
    spec = next((spec for spec in graph.inputs if spec.kind == "labels"), None)
    if spec is not None and isinstance(loss, CrossEntropy) and not loss.has_defaults:
        labels = np.asarray(batch[spec.name])
        counts = np.ones(labels.shape) if loss.ignore_index is None else labels != loss.ignore_index
        if loss.weight is None:
            return float(counts.sum())
        weights = np.asarray(loss.weight, "float64")
        return float((weights[np.where(counts, labels, 0)] * counts).sum())
    return float(graph.images(batch) or 1)


class Exchange:
    """Tensors of TVM's to their means over processes.

    Results lie in memory that the next call writes over.

    updates : whether the step that is run ends with an update, for which gradients are exchanged.
    own : of the step that ran last what this process had before the exchange: the loss, and of a
        dynamic loss scale how many values of its gradients were not finite.
    """

    def __init__(self, processes: Processes, bucket: int = BUCKET) -> None:
        self.processes, self.weight, self.updates = processes, 1.0, True
        self.own: list[Any] = []
        self._total: Any = None  # of the processes' weights, in the last call
        self._bytes = bucket
        for name, function in ((RUNS[0], _process_mean), (RUNS[1], _transposed_mean)):
            tvm_ffi.register_global_func(name, function, override=True)
        self._buckets: dict[Any, list[_Bucket]] = {}  # by the tensors' kinds

    def __call__(self, tensors: Sequence[Any], weight: float | None = None) -> list[Any]:
        """`weight` : what this process counts, by default its batch's.

        Raises ConnectionError where another process has gone.
        """
        import torch
        import torch.distributed as dist

        kinds = tuple((tuple(map(int, t.shape)), str(t.dtype)) for t in tensors)
        if kinds not in self._buckets:
            self._buckets[kinds] = self._cut(kinds)
        buckets = self._buckets[kinds]
        given = [torch.from_dlpack(t) for t in tensors]
        made: list[Any] = [None] * len(given)
        counts = self.weight if weight is None else weight
        with heard():
            # Packing one bucket takes place while the ones before are on their way.
            works = [
                dist.all_reduce(bucket.packed(given, counts), async_op=True) for bucket in buckets
            ]
            for work, bucket in zip(works, buckets, strict=True):
                work.wait()
                self._total = bucket.unpack(made)
        return made

    def parts(self, tensors: Sequence[Any]) -> list[Any]:
        """Tensors times what this process's batch counts beside the mean of all, by the last call:
        the plain mean of these over the processes is the whole batch's."""
        import torch

        factor = self._total.reciprocal() * (self.weight * self.processes.world)
        made = torch._foreach_mul([torch.from_dlpack(t) for t in tensors], factor)
        return [tvm.runtime.from_dlpack(t) for t in made]

    def give_away(self) -> None:
        """What the last call gave stays as it is: the next one takes other memory."""
        self._buckets.clear()

    def weigh(self, weight: float, updates: bool = True) -> None:
        """What this process's next batch counts; the step that is run next is this trainer's, and
        `updates` or not."""
        self.weight, self.updates, _running.exchange = weight, updates, self

    def _cut(self, kinds: Sequence[tuple[tuple[int, ...], str]]) -> list[_Bucket]:
        """Buckets of tensors of one dtype, from the last one on: a backward pass begins there."""
        groups: dict[str, list[list[int]]] = {}
        room: dict[str, int] = {}
        for place in reversed(range(len(kinds))):
            shape, dtype = kinds[place]
            size = math.prod(shape) * np.dtype(dtype).itemsize
            if room.get(dtype, 0) < size:
                groups.setdefault(dtype, []).append([])
                room[dtype] = self._bytes
            groups[dtype][-1].append(place)
            room[dtype] -= size
        device = self.processes.device
        return [
            _Bucket(places, [kinds[place][0] for place in places], dtype, device)
            for dtype, some in groups.items()
            for places in some
        ]


class _Running:
    """Whose step runs: a compiled one calls functions by name, which are there once."""

    exchange: Exchange | None = None


_running = _Running()


def _process_mean(x: Any, y: Any, weight: float = 1.0) -> None:
    """`relay_wgrad.ops.process_mean`, into y."""
    import torch
    import torch.distributed as dist

    exchange = _running.exchange
    assert exchange is not None
    made = torch.from_dlpack(y)
    made.copy_(torch.from_dlpack(x)).mul_(weight)
    with heard():
        dist.all_reduce(made)
    made.div_(exchange.processes.world * weight)


def _transposed_mean(x: Any, y: Any) -> None:
    assert _running.exchange is not None
    _process_mean(x, y, _running.exchange.weight)


class _Bucket:
    """Memory for some tensors of one dtype, one behind another, and the weight behind them."""

    def __init__(
        self, places: Sequence[int], shapes: Sequence[tuple[int, ...]], dtype: str, device: str
    ) -> None:
        import torch

        self._places = places
        unit = _ALIGNED // np.dtype(dtype).itemsize
        sizes = [math.prod(shape) for shape in shapes]
        *starts, end = accumulate((-(-size // unit) * unit for size in sizes), initial=0)
        self._flat = torch.zeros(end + 1, dtype=getattr(torch, dtype), device=device)
        self._views = [
            self._flat[start : start + size].view(shape)
            for start, size, shape in zip(starts, sizes, shapes, strict=True)
        ]
        self._results = [tvm.runtime.from_dlpack(view) for view in self._views]

    def packed(self, tensors: Sequence[Any], weight: float) -> Any:
        """All of it, with these values and their weight."""
        import torch

        torch._foreach_copy_(self._views, [tensors[place] for place in self._places])
        self._flat[-1] = 1.0
        if weight != 1.0:
            self._flat.mul_(weight)
        return self._flat

    def unpack(self, made: list[Any]) -> Any:
        """Puts the means into their places of a list; the sum of the weights."""
        total = self._flat[-1].clone()
        self._flat.div_(total)
        for place, result in zip(self._places, self._results, strict=True):
            made[place] = result
        return total
