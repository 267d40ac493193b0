"""`Place`: all that a trainer knows of its device."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import tvm

from ..transform.depth_forms import Wanted
from .compiled import Compiled
from .graph_replay import Work
from .origins import Nowhere, Recall

_OUT_OF_MEMORY = re.compile(r"out of memory|MEMORY_ALLOCATION|ALLOC_FAILED", re.IGNORECASE)


def _nothing() -> None:
    """On a CPU a step is over when it returns."""


@dataclass
class Place:
    """A device to train on.

    name : "cpu" or "cuda:0".
    device : TVM's.
    layout : of activations, if none is asked for.
    compile : a step's module to a program: (module, progress), and as a third what makes other
        functions of the module's (`forward_backward.Parting`), done where that takes least from
        what kernels know of each other.
    transfers : how batches get there.
    memory : (free, all) bytes of the device, None where the process's own is what counts.
    norms : whether batch normalization is one operator with one gradient, for which there are
        kernels, or whose parts read x less often than the gradient of the forward pass's parts.
    work : makes where steps are captured (`relay_wgrad.training.graph_replay`); None: nowhere.
    blocks : whether convolutions of few channels are wanted on blocks of pixels, or in which form,
        or what kernels need that may take them as they are.
    wide : whether sums of half operands that are float32 stay so (`Options`).
    sizes : for how many numbers of images, of a graph whose batch is open, a compiled step is kept;
        None: one step takes any number.
    wait : until what the device was given is over; libraries then keep no memory for calls.
    notes : what a user should know of it, one line each.
    recall : what a program is made of, by which it may be kept (`relay_wgrad.training.origins`).
    """

    name: str
    device: Any
    layout: str | None
    compile: Callable[..., Compiled]
    transfers: Callable[[], Any]
    memory: Callable[[], tuple[int, int]] | None = None
    norms: bool = False
    work: Callable[[], Work] | None = None
    blocks: Wanted = False
    wide: bool = True
    sizes: int | None = None
    wait: Callable[[], None] = _nothing
    notes: list[str] = field(default_factory=list)
    recall: Recall = Nowhere

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    def give_back(self) -> None:
        """Gives the device memory back that this process has and nothing uses."""
        tvm.get_global_func("vm.builtin.memory_manager.clear")()

    @contextlib.contextmanager
    def memory_errors(self) -> Iterator[None]:
        """Within it, a GPU without enough memory is a MemoryError that says how much it has."""
        try:
            yield
        except Exception as error:
            if self.memory is None or not _OUT_OF_MEMORY.search(str(error)):
                raise
            free, total = (f"{n / 2**30:.1f}" for n in self.memory())
            raise MemoryError(
                f"{self.name} is out of memory: {free} of {total} GiB are free.  A smaller batch,"
                " dtype float16 or bfloat16, or checkpoints need less."
            ) from error
