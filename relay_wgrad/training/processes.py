"""Several processes that train one network, each on its part of every batch: `torch.distributed`.

All communication is a process group's of PyTorch: Gloo between CPUs, NCCL between GPUs.  What is
here says which process this is, and what they do together besides gradients (`exchange`): they
agree on their options, take the first one's parameters, add up numbers, and hear of its errors.

Each of them calls the same things in the same order; PyTorch waits for the others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_ENVIRONMENT = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched_rank() -> int | None:
    """Which one this process is of a launcher's, such as `torchrun`'s; None of no launcher's."""
    found = all(name in os.environ for name in _ENVIRONMENT)
    return int(os.environ["RANK"]) if found else None


def shared_cores(cores: int) -> int:
    """Of so many cores those for one of the processes on this machine."""
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def local_device(device: Any) -> Any:
    """The device; of "cuda", in a process that is one of several on a machine, its own."""
    if device != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    return f"cuda:{int(os.environ['LOCAL_RANK'])}"


def _distributed() -> Any:
    try:
        import torch.distributed
    except ImportError as error:
        raise ImportError(
            "distributed=True needs PyTorch: pip install relay-wgrad[torch]"
        ) from error
    return torch.distributed


@dataclass(frozen=True)
class Processes:
    """The processes of PyTorch's default group.

    rank, world : which of how many this is.
    is_local_first : whether it is the first one on its machine.
    device : of tensors that are sent: "cpu", or "cuda:0" where that is NCCL's.
    """

    rank: int
    world: int
    is_local_first: bool
    device: str

    @classmethod
    def join(cls, device: str) -> Processes:
        """The default group, which is begun by the launcher's environment where there is none.

        device : that is trained on; tensors of another one than a group takes cannot be sent.
        Raises ImportError without PyTorch, ValueError where there is neither a group nor a
        launcher, or the group cannot send what lies on the device.
        """
        dist = _distributed()
        is_gpu, own = device != "cpu", None
        if is_gpu:
            import torch

            own = torch.device(device)
            torch.cuda.set_device(own)
        if not dist.is_initialized():
            if missing := [name for name in _ENVIRONMENT if name not in os.environ]:
                raise ValueError(
                    "distributed=True: there is no process group, and the environment lacks"
                    f" {', '.join(missing)}; start with torchrun, or call"
                    " torch.distributed.init_process_group"
                )
            # Without its device the first process alone is warned at a barrier, which is an error
            # where warnings are, and the others wait in it.
            dist.init_process_group("nccl" if is_gpu else "gloo", device_id=own)
        backend = str(dist.get_backend())
        if ("nccl" in backend) != is_gpu and backend in ("nccl", "gloo"):
            raise ValueError(
                f"distributed=True: the process group is {backend}'s, and the device is {device};"
                " NCCL is for GPUs, Gloo for CPUs"
            )
        rank, world = dist.get_rank(), dist.get_world_size()
        local = int(os.environ.get("LOCAL_RANK", rank))
        return cls(rank, world, local == 0, device)

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.rank == 0

    @property
    def scales(self) -> bool:
        """Whether a sum can multiply what it adds up (`scaled_sum`): NCCL's can."""
        return self.device != "cpu"

    def agree(self, options: Mapping[str, Any]) -> None:
        """Raises ValueError in every process where one has another option than the first."""
        found: list[Any] = [None] * self.world
        with heard():
            _distributed().all_gather_object(found, dict(options))
        for rank, others in enumerate(found):
            for name, value in found[0].items():
                if others[name] != value:
                    raise ValueError(
                        f"distributed=True: process 0 has {name} {value!r:.200}, process {rank} has"
                        f" {others[name]!r:.200}"
                    )

    def take_firsts(self, tensors: Sequence[Any]) -> None:
        """Writes the first process's values over tensors of TVM's."""

        with heard(), on_stream(self.device):
            for tensor in tensors:
                _distributed().broadcast(as_torch(tensor), 0)

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Each number's sum over the processes, in float64."""
        import torch

        made = torch.tensor(list(numbers), dtype=torch.float64, device=self.device)
        with heard():
            _distributed().all_reduce(made)
        return [float(number) for number in made.tolist()]

    def which(self, here: bool) -> list[int]:
        """The ranks of those of which something is so."""
        flags = self.sum([float(here and rank == self.rank) for rank in range(self.world)])
        return [rank for rank, flag in enumerate(flags) if flag]

    def by_first(self, work: Callable[[], object]) -> None:
        """Work of the first process alone, such as a file, for which the others wait.

        Raises what it raises there, and in the others an OSError or RuntimeError of its words.
        """
        error: Exception | None = None
        if self.is_first:
            try:
                work()
            except Exception as raised:
                error = raised
        told: list[Any] = [None if error is None else (isinstance(error, OSError), str(error))]
        with heard():
            _distributed().broadcast_object_list(told, 0)
        if error is not None:
            raise error
        if told[0] is not None:
            is_os, text = told[0]
            raise (OSError if is_os else RuntimeError)(f"in process 0: {text}")

    @contextlib.contextmanager
    def in_turn(self) -> Iterator[None]:
        """Within it the first process of a machine is done before the others of it begin: what it
        compiles they find in the cache."""
        try:
            if not self.is_local_first:
                self._barrier()
            yield
        finally:
            if self.is_local_first:
                self._barrier()

    def _barrier(self) -> None:
        place = self.device.partition(":")[2]
        with heard():
            _distributed().barrier(device_ids=[int(place)] if place else None)

    def leave(self) -> None:
        """Ends the group."""
        _distributed().destroy_process_group()


def scaled_sum(factor: Any) -> Any:
    """An all-reduce's operation: the sum of what each process multiplies by its factor, one number
    on the device, of the tensor's dtype."""
    return _distributed()._make_nccl_premul_sum(factor)


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Within it, another process that has gone is a ConnectionError."""
    try:
        yield
    except RuntimeError as error:
        text = " ".join(str(error).split())
        raise ConnectionError(
            f"another process has ended, or does not answer; its own message says why: {text:.300}"
        ) from error


def as_torch(tensor: Any) -> Any:
    """A tensor of TVM's as PyTorch's, of the same memory, to be used within `on_stream`.

    `torch.from_dlpack` takes 12 µs to agree on a stream, this one 0.8.
    """
    import torch.utils.dlpack

    return torch.utils.dlpack.from_dlpack(tensor.__dlpack__())


@contextlib.contextmanager
def on_stream(device: str) -> Iterator[None]:
    """Within it PyTorch works on a GPU on the stream that is TVM's there, in this thread."""
    if device == "cpu":
        yield
        return
    import torch
    import tvm
    import tvm_ffi

    place = torch.device(device)
    raw = int(tvm_ffi.get_raw_stream(tvm.cuda(place.index)))
    stream = torch.cuda.ExternalStream(raw, place) if raw else torch.cuda.default_stream(place)
    with torch.cuda.device(place), torch.cuda.stream(stream):
        yield
