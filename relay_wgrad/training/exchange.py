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
from .processes import Processes, as_torch, heard, on_stream

Kind = tuple[tuple[int, ...], str]  # a tensor's shape and dtype

SEND = "relay_wgrad.send"
"""What a step calls for a bucket (`sends`): (its number, tensors…, where their means go…)."""
LIMITS = (1 << 20, 25 << 20)
"""Bytes from which the first bucket ends, and each later one: `DistributedDataParallel`'s."""
_ALIGNED = 256  # bytes, at which tensors begin: what vector instructions and kernels want


def buckets(kinds: Sequence[Kind]) -> list[list[int]]:
    """The places of tensors that one all-reduce sends, in the order of sending: of one dtype."""
    found, filling = list[list[int]](), dict[str, list[int]]()
    sizes: dict[str, int] = {}
    for place, (shape, dtype) in enumerate(kinds):
        filling.setdefault(dtype, []).append(place)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        sizes[dtype] = sizes.get(dtype, 0) + size
        if sizes[dtype] >= LIMITS[bool(found)]:
            found.append(filling.pop(dtype))
            del sizes[dtype]
    return [*found, *filling.values()]


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
    """Tensors of TVM's to their means over processes: all at once, or a step's as they are made
    (`send`, `finish`).

    updates : whether the step that is run ends with an update, for which gradients are exchanged.
    counts : whether a step's `finish` counts what is not finite.
    own : of the step that ran last what this process had before the exchange: the loss, and of a
        dynamic loss scale how many values of its gradients were not finite.
    """

    def __init__(self, processes: Processes, counts: bool = False) -> None:
        self.processes, self.weight, self.updates = processes, 1.0, True
        self.counts, self.own = counts, list[Any]()
        self._total: Any = None  # of the processes' weights, in the last call
        for name, function in (
            (RUNS[0], _process_mean), (RUNS[1], _transposed_mean), (SEND, _send),
        ):  # fmt: skip
            tvm_ffi.register_global_func(name, function, override=True)
        self._buckets: dict[Any, list[tuple[list[int], _Bucket]]] = {}  # by the tensors' kinds
        self._sends: dict[int, _Bucket] = {}  # a step's, by their numbers
        self._packed: dict[int, list[Any]] = {}  # of those that are: where their means go
        self._works: list[Any] = []  # all-reduces on their way, of the first of these
        self._infinite: list[Any] = []
        self.is_begun = False

    def __call__(self, tensors: Sequence[Any], weight: float | None = None) -> list[Any]:
        """`weight` : what this process counts, by default its batch's.

        Results lie in memory that the next call writes over.  Raises ConnectionError where another
        process has gone.
        """
        import torch.distributed as dist

        kinds = tuple((tuple(map(int, t.shape)), str(t.dtype)) for t in tensors)
        if kinds not in self._buckets:
            self._buckets[kinds] = [
                (places, _Bucket([kinds[place] for place in places], self.processes.device))
                for places in buckets(kinds)
            ]
        made: list[Any] = [None] * len(tensors)
        counts = self.weight if weight is None else weight
        with heard(), on_stream(self.processes.device):
            given = [as_torch(t) for t in tensors]
            # Packing one bucket takes place while the ones before are on their way.
            works = []
            for places, bucket in self._buckets[kinds]:
                bucket.pack([given[place] for place in places], counts)
                works.append(dist.all_reduce(bucket.flat, async_op=True))
            for work, (places, bucket) in zip(works, self._buckets[kinds], strict=True):
                work.wait()
                self._total = bucket.divide()
                for place, result in zip(places, bucket.results, strict=True):
                    made[place] = result
        return made

    def send(self, number: int, tensors: Sequence[Any], means: Sequence[Any]) -> None:
        """Starts the all-reduce of a step's bucket, once those of lower numbers are on their way.

        The tensors, which may be half ones of wider means, may be written over then; the means are
        there after `finish`.
        """
        import torch.distributed as dist

        with heard(), on_stream(self.processes.device):
            given = [as_torch(t) for t in tensors]
            if number not in self._sends:
                kinds = [(tuple(map(int, t.shape)), str(t.dtype)) for t in means]
                self._sends[number] = _Bucket(kinds, self.processes.device)
            if not number:
                self.own.insert(0, tvm.runtime.from_dlpack(given[0].clone()))
            self._sends[number].pack(given, self.weight)
            self._packed[number] = [as_torch(t) for t in means]
            if self.counts:
                self._infinite.append(self._sends[number].infinite())
            while (first := len(self._works)) in self._packed:
                self._works.append(dist.all_reduce(self._sends[first].flat, async_op=True))

    def finish(self) -> None:
        """Waits for what the step has sent, on a GPU on its stream: the means are where they go.

        Raises ConnectionError where another process has gone.
        """
        import torch

        assert len(self._works) == len(self._packed)
        with heard(), on_stream(self.processes.device):
            for number, work in enumerate(self._works):
                work.wait()
                self._sends[number].divide()
                torch._foreach_copy_(self._packed[number], self._sends[number].views)
            if self.counts:
                self.own.append(tvm.runtime.from_dlpack(torch.stack(self._infinite).sum()))
        self._end()

    def _end(self) -> None:
        for of_step in (self._packed, self._works, self._infinite):
            of_step.clear()
        self.is_begun = False

    def parts(self, tensors: Sequence[Any]) -> list[Any]:
        """Tensors times what this process's batch counts beside the mean of all, by the last call:
        the plain mean of these over the processes is the whole batch's."""
        import torch

        with on_stream(self.processes.device):
            factor = self._total.reciprocal() * (self.weight * self.processes.world)
            made = torch._foreach_mul([as_torch(t) for t in tensors], factor)
            return [tvm.runtime.from_dlpack(t) for t in made]

    def give_away(self) -> None:
        """What the last call gave stays as it is: the next one takes other memory."""
        self._buckets.clear()

    def weigh(self, weight: float, updates: bool = True) -> None:
        """What this process's next batch counts; the step that is run next is this trainer's, and
        `updates` or not."""
        if self._works:  # of a step that ended with an error: some may still be on their way
            self._sends.clear()
        self._end()
        self.weight, self.updates, _running.exchange = weight, updates, self
        self.own, self.is_begun = [], True


class _Running:
    """Whose step runs: a compiled one calls functions by name, which are there once."""

    exchange: Exchange | None = None


_running = _Running()


def _process_mean(x: Any, y: Any, weight: float = 1.0) -> None:
    """`relay_wgrad.ops.process_mean`, into y."""
    import torch.distributed as dist

    exchange = _running.exchange
    assert exchange is not None
    with heard(), on_stream(exchange.processes.device):
        made = as_torch(y)
        made.copy_(as_torch(x)).mul_(weight)
        dist.all_reduce(made)
        made.div_(exchange.processes.world * weight)


def _transposed_mean(x: Any, y: Any) -> None:
    assert _running.exchange is not None
    _process_mean(x, y, _running.exchange.weight)


def _send(number: int, *tensors: Any) -> None:
    """`SEND`; of a step that is run for itself, as for its kernels' times, there are no others."""

    half, exchange = len(tensors) // 2, _running.exchange
    if exchange is not None and exchange.is_begun:
        exchange.send(number, tensors[:half], tensors[half:])
        return
    with on_stream("cpu" if exchange is None else exchange.processes.device):
        for value, mean in zip(tensors[:half], tensors[half:], strict=True):
            as_torch(mean).copy_(as_torch(value))


class _Bucket:
    """Memory for some tensors of one dtype, one behind another, and the weight behind them.

    flat : all of it; views : of it each tensor's part; results : these as TVM's.
    """

    def __init__(self, kinds: Sequence[Kind], device: str) -> None:
        import torch

        dtype = kinds[0][1]
        unit = _ALIGNED // np.dtype(dtype).itemsize
        sizes = [math.prod(shape) for shape, _ in kinds]
        *starts, end = accumulate((-(-size // unit) * unit for size in sizes), initial=0)
        self.flat = torch.zeros(end + 1, dtype=getattr(torch, dtype), device=device)
        self.views = [
            self.flat[start : start + size].view(shape)
            for start, size, (shape, _) in zip(starts, sizes, kinds, strict=True)
        ]
        self.results = [tvm.runtime.from_dlpack(view) for view in self.views]

    def pack(self, tensors: Sequence[Any], weight: float) -> None:
        """These values, which may be narrower, and their weight."""
        import torch

        # Of several dtypes together PyTorch copies each tensor by a kernel of its own.
        lists: dict[Any, tuple[list[Any], list[Any]]] = {}
        for pair in zip(self.views, tensors, strict=True):
            for some, tensor in zip(lists.setdefault(pair[1].dtype, ([], [])), pair, strict=True):
                some.append(tensor)
        for views, some in lists.values():
            torch._foreach_copy_(views, some)
        self.flat[-1] = 1.0
        if weight != 1.0:
            self.flat.mul_(weight)

    def infinite(self) -> Any:
        """How many values are not finite."""
        return self.flat.isfinite().logical_not_().sum()

    def divide(self) -> Any:
        """Sums become means; the sum of the weights."""
        total = self.flat[-1].clone()
        self.flat.div_(total)
        return total
