"""What several processes computed of their parts of a batch, as of the whole: means over them.

With process r's loss L_r the mean over its weight n_r, such as its samples, the whole batch's is

    L = sum(n_r L_r) / sum(n_r)      dL/dp = sum(n_r dL_r/dp) / sum(n_r)

So loss, gradients and new running statistics are multiplied by n_r, added up by all-reduces, and
divided by the sum of the weights, which is one number more of each.  A value that is not finite
anywhere is so everywhere: what is decided by it is decided together.

Where gradients of A batches are accumulated, only the sum is exchanged, with the last batch: each
process adds up its n_r P / (A sum(n_r)) dL_r/dp, of P processes, whose plain mean is what the whole
batches' would be.

All that a step computes here may be captured in a CUDA graph, which has tensors' places and not
their values: so the weight is a tensor, nothing takes memory, and all-reduces are `outside`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from ..frontend import TrainingGraph
from ..frontend.loss import CrossEntropy
from ..ops.process_mean import RUNS
from ..transform.sync_norm import sync_batch_norm
from .processes import Processes, as_torch, heard, on_stream, scaled_sum

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


def counts_labels(graph: TrainingGraph) -> bool:
    """Whether labels count differently, and some may count nothing."""
    is_known = isinstance(graph.loss, CrossEntropy) and not graph.loss.has_defaults
    return is_known and any(spec.kind == "labels" for spec in graph.inputs)


def weight_of(graph: TrainingGraph, batch: Mapping[str, Any]) -> float:
    """What a batch counts: its samples, or of labels that count differently the sum of that."""
    if counts_labels(graph):
        loss: Any = graph.loss
        labels = np.asarray(next(batch[s.name] for s in graph.inputs if s.kind == "labels"))
        counts = np.ones(labels.shape) if loss.ignore_index is None else labels != loss.ignore_index
        if loss.weight is None:
            return float(counts.sum())
        weights = np.asarray(loss.weight, "float64")
        return float((weights[np.where(counts, labels, 0)] * counts).sum())
    return float(graph.images(batch) or 1)


class Exchange:
    """Tensors of TVM's to their means over processes: all at once, or a step's as they are made
    (`send`, `finish`).

    counts : whether a step's `finish` counts what is not finite.
    accumulate : how many batches' gradients an update takes.
    may_be_nothing : whether a batch may count nothing beside the others'.
    outside : does what no CUDA graph can hold (`relay_wgrad.training.capture.Lane`).
    own : of the step that ran last what this process sent: its loss times the weight, and of a
        dynamic loss scale how many of all values were not finite.
    """

    def __init__(
        self, processes: Processes, counts: bool = False, accumulate: int = 1,
        may_be_nothing: bool = False,
    ) -> None:  # fmt: skip
        import torch

        self.processes, self.counts, self.accumulate = processes, counts, accumulate
        self.may_be_nothing = may_be_nothing
        self.own, self.is_begun = list[Any](), False
        self.outside: Callable[[Callable[[], None]], None] = _at_once
        # A product makes nothing of 0 / 0.
        self._scales = processes.scales and not may_be_nothing
        for name, function in (
            (RUNS[0], _process_mean), (RUNS[1], _transposed_mean), (SEND, _send),
        ):  # fmt: skip
            tvm_ffi.register_global_func(name, function, override=True)
        # What this process's batch counts, and what its gradients are multiplied by to be added up.
        self.weight, self._share = (
            torch.ones((), dtype=torch.float64, device=processes.device) for _ in range(2)
        )
        self._is_nothing = torch.zeros((), dtype=torch.bool, device=processes.device)
        self._known = 1.0  # the weight, for the host
        self._is_first = self._is_last = True  # of the batches of an update
        self._buckets: dict[Any, list[tuple[list[int], _Bucket]]] = {}  # by the tensors' kinds
        self._alike: dict[Any, Any] = {}  # what `memory_like` gave
        self._sends: dict[int, _Bucket] = {}  # a step's, by their numbers
        # Of the step that runs: what was accumulated by buckets' numbers, where means of those go
        # that are packed, how many of them, the first ones, are given to PyTorch to be sent, and
        # whether the share and the sum of the weights are there.
        self._sums: Sequence[Sequence[Any]] = ()
        self._packed: dict[int, list[Any]] = {}
        self._given, self._has_share, self._has_sum = 0, False, False
        self._works: list[Any] = []  # all-reduces on their way
        self._infinite: list[Any] = []

    def __call__(self, tensors: Sequence[Any]) -> list[Any]:
        """Plain means, in memory that the next call writes over.  Raises ConnectionError where
        another process has gone."""
        kinds = tuple((tuple(map(int, t.shape)), str(t.dtype)) for t in tensors)
        if kinds not in self._buckets:
            self._buckets[kinds] = [
                (places, _Bucket([kinds[place] for place in places], self.processes.device))
                for places in buckets(kinds)
            ]
        made: list[Any] = [None] * len(tensors)
        with on_stream(self.processes.device):
            given = [as_torch(t) for t in tensors]
            # Packing one bucket takes place while the ones before are on their way.
            for places, bucket in self._buckets[kinds]:
                bucket.pack([given[place] for place in places])
                self._start([(bucket, False)])
            self._wait()
            for places, bucket in self._buckets[kinds]:
                bucket.divide()
                for place, result in zip(places, bucket.results, strict=True):
                    made[place] = result
        return made

    def begin(self, sums: Sequence[Sequence[Any]] = ()) -> None:
        """Before a step that sends.

        sums : of gradients that are accumulated what there is, by buckets' numbers, none for those
            that have no gradients; without, all means are of this batch alone.
        """
        self._packed.clear()
        self._given, self._sums, self.is_begun = 0, sums, True
        self._has_share = self._has_sum = False

    def send(self, number: int, tensors: Sequence[Any], means: Sequence[Any]) -> None:
        """Starts the all-reduce of a step's bucket, once those of lower numbers are on their way.

        The tensors, which may be half ones of wider means, may be written over then; the means are
        there after `finish`.
        """
        import torch

        with on_stream(self.processes.device):
            given = [as_torch(t) for t in tensors]
            if number not in self._sends:
                kinds = [(tuple(map(int, t.shape)), str(t.dtype)) for t in means]
                self._sends[number] = _Bucket(kinds, self.processes.device)
            self._sends[number].pack(given)
            self._packed[number] = [as_torch(t) for t in means]
            starts = list[_Start]()
            while self._given in self._packed:
                bucket = self._sends[self._given]
                if self._is_sum(self._given):
                    self._share_of_batch(starts)
                    self._add_up(self._given)
                elif self._is_scaled(self._given):
                    self._sum_of_weights(starts)
                    torch.div(self.weight, self._sends[0].flat[-1], out=bucket.factor)
                else:
                    self._multiply(bucket.flat, self.weight)
                if self._is_sent(self._given):
                    starts.append((bucket, self._is_scaled(self._given)))
                self._given += 1
            if starts:
                self.outside(partial(self._start, starts))

    def finish(self, lent: Collection[int] = ()) -> None:
        """Waits for what the step has sent, on a GPU on its stream: the means are where they go.

        lent : buckets whose means are only in `means`.
        Raises ConnectionError where another process has gone.
        """
        import torch

        assert self._given == len(self._packed)
        with on_stream(self.processes.device):
            self.outside(self._end)
            for number, means in self._packed.items():
                bucket = self._sends[number]
                if self._is_sent(number) and not self._is_scaled(number):
                    bucket.divide()
                if number not in lent:
                    torch._foreach_copy_(means, bucket.views)
        self._packed.clear()
        self.is_begun = False

    def means(self, number: int) -> list[Any]:
        """A bucket's of the step that has finished, in memory that the next one writes over."""
        return self._sends[number].results

    def give_away(self) -> None:
        """What the last call gave stays as it is: the next one takes other memory."""
        self._buckets.clear()

    def weigh(self, weight: float, step: int = 0) -> None:
        """What this process's next batch counts, that of a step, counted from 0; the step that is
        run next is this trainer's."""
        with on_stream(self.processes.device):
            if self._works and self.processes.device == "cpu":  # of a step that ended with an error
                self._sends.clear()  # others may not send theirs, so nobody waits for these
            elif self._works:  # in places that graphs have; the stream waits, not the host
                self._wait()
            self._works.clear()
            self._infinite.clear()
            if weight != self._known:
                self.weight.fill_(weight)
                self._is_nothing.fill_(weight == 0)
        place = step % self.accumulate
        self._is_first, self._is_last = place == 0, place == self.accumulate - 1
        self._known, self.own, _running.exchange = weight, [], self
        self.begin()

    def memory_like(self, tensor: Any) -> Any:
        """A tensor of that kind, always the same one: what is sent must lie where it lay."""
        kind = tuple(tensor.shape), tensor.dtype
        if kind not in self._alike:
            self._alike[kind] = tensor.new_empty(tensor.shape)
        return self._alike[kind]

    def kind(self) -> tuple[bool, bool]:
        """Of the step that is next: whether its batch is the first, and the last, of an update."""
        return self._is_first, self._is_last

    # ---- gradients that are added up -------------------------------------------------------------

    def _is_sum(self, number: int) -> bool:
        return bool(self._sums and self._sums[number])

    def _is_sent(self, number: int) -> bool:
        return self._is_last or not self._is_sum(number)

    def _is_scaled(self, number: int) -> bool:
        """Whether a bucket is multiplied by what makes its sum a mean on its way, without a pass of
        its own; the first two, which are small, bring the sum of the weights."""
        return self._scales and number > 1 and not self._is_sum(number)

    def _sum_of_weights(self, starts: list[_Start]) -> None:
        """Waits for it, once in a step; all buckets have it that were sent before."""
        if self._has_sum:
            return
        if starts:
            self.outside(partial(self._start, [*starts]))
            starts.clear()
        self.outside(self._wait)
        self._has_sum = True

    def _share_of_batch(self, starts: list[_Start]) -> None:
        if self._has_share:
            return
        self._sum_of_weights(starts)
        self._share.copy_(self.weight).mul_(self.processes.world / self.accumulate)
        self._share.div_(self._sends[0].flat[-1])
        self._has_share = True

    def _multiply(self, flat: Any, factor: Any) -> None:
        """By the weight or the share.  Of a batch whose labels all count nothing the loss is 0 / 0,
        and nothing is what others take of it."""
        flat.mul_(factor)
        if self.may_be_nothing:
            flat.masked_fill_(self._is_nothing, 0.0)

    def _add_up(self, number: int) -> None:
        import torch

        bucket = self._sends[number]
        self._multiply(bucket.flat, self._share)
        if not self._is_first:
            torch._foreach_add_(bucket.views, [as_torch(t) for t in self._sums[number]])
        bucket.flat[-1].fill_(1.0)

    # ---- what no graph can hold ------------------------------------------------------------------

    def _start(self, starts: Sequence[_Start]) -> None:
        import torch.distributed as dist

        with heard(), on_stream(self.processes.device):
            for bucket, is_scaled in starts:
                if bucket is self._sends.get(0):
                    self.own.append(tvm.runtime.from_dlpack(bucket.views[0].clone()))
                if self.counts:
                    self._infinite.append(bucket.infinite())
                op = scaled_sum(bucket.factor) if is_scaled else dist.ReduceOp.SUM
                self._works.append(dist.all_reduce(bucket.flat, op, async_op=True))

    def _wait(self) -> None:
        with heard(), on_stream(self.processes.device):
            for work in self._works:
                work.wait()
        self._works.clear()

    def _end(self) -> None:
        import torch

        self._wait()
        if self.counts and self._infinite:
            with on_stream(self.processes.device):
                self.own.append(tvm.runtime.from_dlpack(torch.stack(self._infinite).sum()))
        self._infinite.clear()


_Start = tuple["_Bucket", bool]
"""What leaves, and whether it is scaled on its way."""


def _at_once(action: Callable[[], None]) -> None:
    action()


class _Running:
    """Whose step runs: a compiled one calls functions by name, which are there once."""

    exchange: Exchange | None = None


_running = _Running()


def _process_mean(x: Any, y: Any, weight: Any = None) -> None:
    """`relay_wgrad.ops.process_mean`, into y."""
    import torch

    exchange = _running.exchange
    assert exchange is not None
    with on_stream(exchange.processes.device):
        given = as_torch(x)
        sent = exchange.memory_like(given).copy_(given)
        if weight is not None:
            sent.mul_(weight)
        exchange.outside(partial(_reduced, exchange.processes.device, sent))
        made = torch.div(sent, exchange.processes.world, out=as_torch(y))
        if weight is not None:
            made.div_(weight)


def _reduced(device: str, tensor: Any) -> None:
    import torch.distributed as dist

    with heard(), on_stream(device):
        dist.all_reduce(tensor)


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

    flat : all of it; views : of it each tensor's part; results : these as TVM's; factor : what the
        process multiplies it by on its way, if it does.
    """

    def __init__(self, kinds: Sequence[Kind], device: str) -> None:
        import torch

        dtype = kinds[0][1]
        unit = _ALIGNED // np.dtype(dtype).itemsize
        sizes = [math.prod(shape) for shape, _ in kinds]
        *starts, end = accumulate((-(-size // unit) * unit for size in sizes), initial=0)
        self.flat = torch.zeros(end + 1, dtype=getattr(torch, dtype), device=device)
        self.factor = self.flat.new_zeros(())
        self.views = [
            self.flat[start : start + size].view(shape)
            for start, size, (shape, _) in zip(starts, sizes, kinds, strict=True)
        ]
        self.results = [tvm.runtime.from_dlpack(view) for view in self.views]

    def pack(self, tensors: Sequence[Any]) -> None:
        """These values, which may be narrower, and a weight of 1."""
        import torch

        # Of several dtypes together PyTorch copies each tensor by a kernel of its own.
        lists: dict[Any, tuple[list[Any], list[Any]]] = {}
        for pair in zip(self.views, tensors, strict=True):
            for some, tensor in zip(lists.setdefault(pair[1].dtype, ([], [])), pair, strict=True):
                some.append(tensor)
        for views, some in lists.values():
            torch._foreach_copy_(views, some)
        self.flat[-1].fill_(1.0)

    def infinite(self) -> Any:
        """How many values are not finite."""
        return self.flat.isfinite().logical_not_().sum()

    def divide(self) -> None:
        """Sums become means; the sum of the weights stays."""
        self.flat[:-1].div_(self.flat[-1])
