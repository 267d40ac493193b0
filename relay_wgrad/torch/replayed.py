"""Calls of a compiled function on CUDA as one CUDA graph, where nobody can tell the difference.

A virtual machine needs longer to start a thousand kernels than a small batch takes; a graph starts
them at once, at the addresses that they had when it was captured.  So what it is given must lie
where it lay then, or be copied there, and its results are the same memory each time.  Whether
someone still has those of the call before is looked at each time: then the function is called
kernel by kernel, into memory of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef

MODES = (None, "default", "reduce-overhead")
"""Of `torch.compile`; by the last, calls on CUDA are repeated as graphs."""

WARM, LATER = 2, 5
"""Calls before the one that is captured: libraries choose, memory is taken.  A backward pass is
given what its forward pass has made, which lies where it stays when that one is a graph."""
MISSES = 2
"""Calls in a row with operands elsewhere than when it was captured: then it is captured anew, and
those are copied."""
TRIES = 6
"""Captures of one function, those that failed among them."""
MOST = 64 << 20
"""Bytes that a backward pass may have copied to where its graph reads them."""


class Lane(Protocol):
    """Where work is captured: `relay_wgrad.training.capture.Lane`."""

    def done(self, function: Callable[[], Any]) -> Any:
        """What a function gives, when its work is over."""

    def captured(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        """(what a function gives, what does its work)."""


class Replayed:
    """A function of dense tensors of one device.

    plain : calls it, on the current stream.
    raw : calls it with TVM's tensors, for TVM's.
    lane : where it can be captured; None: it never is.
    told : is given a few words where it cannot be.
    late : whether its operands are another such function's results, as a backward pass's are.

    One thread at a time may call it.
    """

    def __init__(
        self,
        plain: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        raw: Callable[..., Any],
        lane: Lane | None,
        told: Callable[[str], None],
        late: bool = False,
    ) -> None:
        self._plain, self._raw, self._lane, self._told = plain, raw, lane, told
        self._warm = LATER if late else WARM
        self._most = MOST if late else None
        self._calls = self._tries = self._misses = 0
        self._seen: list[list[int]] = []  # addresses of the calls before
        self._launch: Callable[[], None] | None = None
        self._moving: set[int] = set()  # operands that a graph has missed
        self._places: dict[int, torch.Tensor] = {}  # of a graph: where operands are copied
        self._fixed: dict[int, int] = {}  # and where the others lie
        self._results: list[Any] = []
        self._alone: list[bool] = []  # of each, whether it is one number
        self._out: list[StorageWeakRef] = []  # who has the results

    @property
    def is_graph(self) -> bool:
        """Whether calls are a graph's by now."""
        return self._launch is not None

    def __call__(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The function's results."""
        if self._lane is None or any(not ref.expired() for ref in self._out):
            return self._plain(args)
        self._calls += 1
        if self._launch is None and self._calls > self._warm:
            self._capture(self._lane, args)
        if self._launch is None:
            self._seen = [*self._seen[1 - WARM :], [x.data_ptr() for x in args]]
            return self._plain(args)
        elsewhere = [i for i, at in self._fixed.items() if args[i].data_ptr() != at]
        if not elsewhere:
            self._misses = 0
            return self._replayed(args)
        self._misses += 1
        size = sum(args[i].nbytes for i in elsewhere)
        if self._misses > MISSES and (self._most is None or size <= self._most):
            self._moving |= set(elsewhere)
            self._launch, self._seen, self._out = None, [], []  # captured anew by the next call
        return self._plain(args)

    def _capture(self, lane: Lane, args: Sequence[torch.Tensor]) -> None:
        """Makes the graph, if that can be."""
        calls = [*self._seen, [x.data_ptr() for x in args]]
        moving = {
            i for i, (x, *addresses) in enumerate(zip(args, *calls, strict=True))
            if i in self._moving or x.numel() == 1 or len(set(addresses)) > 1
        }  # fmt: skip
        size = sum(args[i].nbytes for i in moving)
        self._tries += 1
        try:
            if self._most is not None and size > self._most:
                raise ValueError(f"{size} bytes of operands lie elsewhere each time")
            fixed = [x.clone() if i in moving else x for i, x in enumerate(args)]
            given = [_tvm(x) for x in fixed]

            def call() -> Any:
                return list(self._raw(*given))

            lane.done(call)  # its results are given up: then there is memory for the next ones
            self._results, self._launch = lane.captured(call)
        except Exception as error:  # of whatever kind: no work has been done
            why = " ".join(str(error).split())
        else:
            why = "its operands lie elsewhere again and again"
            # The memory of what stays where it is belongs to the caller, who passes it each time.
            self._places = {i: fixed[i] for i in moving}
            self._fixed = {i: x.data_ptr() for i, x in enumerate(args) if i not in moving}
            self._alone = [math.prod(map(int, x.shape)) == 1 for x in self._results]
        if self._tries >= TRIES and self._launch is None:
            self._lane = None
            self._told(f"its calls are not one CUDA graph: {why:.300}")

    def _replayed(self, args: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self._launch is not None
        if self._places:
            torch._foreach_copy_([*self._places.values()], [args[i] for i in self._places])
        self._launch()
        # Losses are kept by many: they get memory of their own.
        made = [
            _torch(x).clone() if alone else _torch(x)
            for x, alone in zip(self._results, self._alone, strict=True)
        ]
        self._out = [
            StorageWeakRef(x.untyped_storage())
            for x, alone in zip(made, self._alone, strict=True)
            if not alone
        ]
        return made


def _tvm(tensor: torch.Tensor) -> Any:
    import tvm

    return tvm.runtime.from_dlpack(tensor.detach())


def _torch(tensor: Any) -> torch.Tensor:
    """Another tensor of the same memory, with a storage of its own."""
    made: torch.Tensor = torch.utils.dlpack.from_dlpack(tensor.__dlpack__())
    return made
