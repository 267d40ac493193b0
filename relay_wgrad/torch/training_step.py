"""`TrainingStep`: a PyTorch module whose forward and backward passes are compiled ones."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad
from torch.nn.modules.module import _has_any_global_hook

from ..argument_types import checked_bool
from .host_library import reason
from .kernels import DTYPES
from .programs import Asked, Program, choices, foreign

if TYPE_CHECKING:
    from ..frontend import Loss

PROGRAMS = 8
"""Of one step, for different shapes, modes and the like; the least recently called one goes."""
AGAIN = 8
"""Programs for calls of one kind, after which a warning says what changes again and again."""
PIECES = (1 << 20, 25 << 20)
"""Bytes of gradients from which the first piece of a backward pass ends, and each later one: as
`DistributedDataParallel`'s buckets."""


_TRACING = tuple(torch._C._TorchDispatchModeKey.__members__.values())  # PyTorch's own modes
_TRACED = "a trace (torch.export, make_fx, fake tensors) does not look into a compiled pass"


class _Programs(list[tuple[Any, Program]]):
    """(what kind of call it is for, a program), the one that was called last at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.made: Counter[Any] = Counter()  # by kind of call

    def __reduce__(self) -> Any:
        return (_Programs, ())  # a copy of a step compiles for itself: its tensors are others


class TrainingStep(torch.nn.Module):
    """A module's forward and backward passes, each compiled as a whole, as a module.

    It has the given module's own parameters, buffers and layers, by the same names, so that an
    optimizer, a `state_dict`, `.to()`, `train()` and `DistributedDataParallel` do with it what they
    do with the module.  Calling it runs the compiled forward part; the gradient that comes back
    from whatever follows enters the compiled backward part, and the parameters' gradients go where
    autograd brings them.  Running statistics are updated once a forward pass in training.

    Parameters
    ----------
    module : a `torch.nn.Module` in float32 or float64 with one output, of those that `from_torch`
        takes, on the CPU or on CUDA.
    example : the module's arguments, a tuple of tensors, or one: it is compiled for them at once.
        Other shapes, dtypes and devices, modes (`train()`, `eval()`, `requires_grad`, `no_grad`)
        and autocast types are compiled for when they come.
    loss : None: a call gives the module's output, of any shape.  A loss of
        `relay_wgrad.frontend.LOSSES`, by its record or text, as "cross_entropy" (int64 labels) or
        "mse": a call takes the labels or the target last and gives the loss, which is then part of
        what is compiled.
    layout : of activations inside; by default "NCHW", on CUDA "NHWC".
    checkpoint : None, or "auto" to recompute parts of the forward pass in the backward pass, which
        takes less memory.
    graphs : whether calls on CUDA become CUDA graphs after some that are not, two parts of a step
        each; what is kept between them then stays in the graphs' memory.  A forward pass before
        the backward pass of the one before, and operands that lie elsewhere, are called kernel by
        kernel.
    piece_bytes : of gradients, from which the first piece of a backward pass ends, and each later
        one; in one piece all gradients come at its end.  By default (1 MiB, 25 MiB), as
        `DistributedDataParallel`'s buckets, where a process group of several processes is there,
        and else one piece; 0: one piece.

    Under autocast, convolutions and matrix products are computed in its type and the output is
    float32.  Dropout's masks are drawn by PyTorch's generator, other numbers than eager's.

    Raises
    ------
    ValueError : for what `from_torch` refuses, naming it; for an unknown `loss`.
    TypeError : for an argument of another type.
    RuntimeError : before `relay_wgrad.register()`; for a gradient of a gradient.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        example: torch.Tensor | Sequence[torch.Tensor],
        *,
        loss: str | Loss | None = None,
        layout: str | None = None,
        checkpoint: str | None = None,
        graphs: bool = True,
        piece_bytes: int | tuple[int, int] | None = None,
    ) -> None:
        super().__init__()
        from ..frontend.loss import loss_of

        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"TrainingStep: module must be a torch.nn.Module, got {type(module).__name__}"
            )
        if loss == "own":
            raise ValueError("TrainingStep: for a module that gives its loss give None, got 'own'")
        wanted = "none" if loss is None else loss_of(loss)
        if checkpoint not in (None, "auto"):
            raise ValueError(f"TrainingStep: checkpoint must be None or 'auto', got {checkpoint!r}")
        inputs = (example,) if isinstance(example, torch.Tensor) else example
        if not isinstance(inputs, (tuple, list)) or not all(
            isinstance(x, torch.Tensor) for x in inputs
        ):
            raise TypeError(f"TrainingStep: example must be tensors, got {type(example).__name__}")
        # The same dictionaries: whatever is done to one of the two is done to both.
        ours = self.__dict__
        ours["_wrapped"] = module
        for name in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            ours[name] = getattr(module, name)
        captures = checked_bool("TrainingStep: graphs", graphs)
        pieces = _checked_pieces(piece_bytes)
        ours["_options"] = (len(inputs), wanted, layout, checkpoint, captures, pieces)
        ours.update(_programs=_Programs(), _told=set())
        if lost := self._program(tuple(inputs)).lost:
            raise ValueError(f"TrainingStep: {lost}")

    # `training` is the module's own.
    @property
    def training(self) -> bool:
        return bool(self._wrapped.training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "_wrapped" in self.__dict__:  # not while it is made
            self._wrapped.training = mode

    def __getattr__(self, name: str) -> Any:
        """What the module has of its own: its methods and attributes."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "_wrapped" not in self.__dict__:
                raise
            return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What the module has, and a step has not, is set there, where `forward` reads it."""
        wrapped = self.__dict__.get("_wrapped")
        is_own = name.startswith("_") or wrapped is None or hasattr(type(self), name)
        if not is_own and hasattr(wrapped, name):
            setattr(wrapped, name, value)
        else:
            super().__setattr__(name, value)

    @torch._disable_dynamo  # it has nothing to trace here
    def forward(self, *inputs: torch.Tensor) -> Any:
        """The module's output, in a tuple or a dictionary where the module returns it so, or the
        loss.

        Raises TypeError or ValueError for arguments that the module, or the loss, does not take.
        """
        count = self._options[0]
        for x in inputs:
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"TrainingStep: arguments must be tensors, got {type(x).__name__}")
        for x in inputs[count:]:
            if x.requires_grad:
                raise ValueError("TrainingStep: the target must not require a gradient")
        reason = _why_not_now() or foreign(*inputs)
        if reason:
            return self._by_pytorch(reason, inputs)
        # Another thread's export has stand-ins in the module for its tensors, for a while.
        with self._programs.lock:
            program = self._program(inputs[:count])
            arguments = None if program.lost else program.arguments(inputs)
        if arguments is None:
            return self._by_pytorch(program.lost, inputs)
        made = program.forward(arguments)
        result = made.result
        if program.wrt:
            result = program.backward.differentiable(made, arguments.tensors)
        return program.returned(result)

    @property
    def notes(self) -> list[str]:
        """What a user should know of the programs so far, one line each."""
        found = [note for _, program in self._programs for note in program.notes]
        if self.captured:
            found += filter(None, [reason()])
        return list(dict.fromkeys(found))

    @property
    def captured(self) -> bool:
        """Whether the passes that were called last are CUDA graphs by now."""
        return bool(self._programs) and self._programs[-1][1].is_graph

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self._wrapped.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads into the module."""
        return self._wrapped.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._wrapped._load_from_state_dict(*args, **kwargs)

    def __call__(self, *inputs: Any) -> Any:
        # Hooks of all modules are called for the module's, of which this is none.
        if _has_any_global_hook() and not (self._forward_hooks or self._forward_pre_hooks):
            return self.forward(*inputs)
        return super().__call__(*inputs)

    def _by_pytorch(self, reason: str, inputs: Sequence[Any]) -> Any:
        """What the module gives, run by PyTorch, which is said once for each reason; a trace runs
        nothing, and its maker gets what was asked for."""
        if self._options[1] != "none":
            raise ValueError(f"TrainingStep: {reason}: call the module")
        if reason != _TRACED and reason not in self._told:
            self._told.add(reason)
            warnings.warn(f"TrainingStep: PyTorch runs this: {reason}", stacklevel=4)
        return self._wrapped(*inputs)

    def _program(self, inputs: tuple[torch.Tensor, ...]) -> Program:
        """The program for this call, under the lock; it is compiled where there is none."""
        grads = torch.is_grad_enabled()
        device = inputs[0].device.type if inputs else "cpu"
        cast = None
        if device in ("cpu", "cuda") and torch.is_autocast_enabled(device):
            cast = torch.get_autocast_dtype(device)
        key = (
            grads, cast, choices(device), torch.get_default_dtype(), self._pieces(),
            tuple((x.shape, x.dtype, x.device, grads and x.requires_grad) for x in inputs),
        )  # fmt: skip
        return self._kept(key) or self._made(key, inputs, cast)

    def _kept(self, key: Any) -> Program | None:
        """The program for calls of a kind that computes what the module does now, if there is."""
        programs = self._programs
        for i in range(len(programs) - 1, -1, -1):
            of, program = programs[i]
            if of == key and program.depends.is_current():
                programs.append(programs.pop(i))
                return program
        return None

    def _made(
        self, key: Any, inputs: tuple[torch.Tensor, ...], cast: torch.dtype | None
    ) -> Program:
        programs = self._programs
        before = next((program for of, program in reversed(programs) if of == key), None)
        programs.made[key] += 1
        if before is not None and programs.made[key] == AGAIN:
            changed = before.depends.difference()
            warnings.warn(
                f"TrainingStep: {AGAIN} programs were compiled for such calls, the last one as"
                f" {changed} has changed: what changes often should be an argument",
                stacklevel=5,
            )
        made = Program(self._wrapped, inputs, self._asked(inputs, cast))
        del programs[: max(0, len(programs) - PROGRAMS + 1)]
        programs.append((key, made))
        return made

    def _asked(self, inputs: Sequence[torch.Tensor], cast: torch.dtype | None) -> Asked:
        _, loss, layout, checkpoint, graphs, _ = self._options
        tensors, grads = list(self._wrapped.parameters()), torch.is_grad_enabled()
        first = next((t.dtype for t in tensors if t.is_floating_point()), None)
        # Autocast leaves float64 alone.
        half = DTYPES.get(cast) if cast is not None and first == torch.float32 else None
        differentiates = grads and any(t.requires_grad for t in (*inputs, *tensors))
        device = inputs[0].device.type if inputs else "cpu"
        return Asked(
            loss, half, grads, differentiates, layout, checkpoint, choices(device), graphs,
            self._pieces(),
        )  # fmt: skip

    def _pieces(self) -> tuple[int, int] | None:
        """The bytes of pieces, None for one piece."""
        asked = self._options[-1]
        if asked is None:
            dist = torch.distributed
            several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
            return PIECES if several else None
        return asked or None


def _checked_pieces(given: Any) -> tuple[int, ...] | None:
    """() for one piece.  Raises ValueError for what is none of the three."""
    from ..training.schedules import is_count

    if given is None:
        return None
    if is_count(given, 0) and given == 0:
        return ()
    if isinstance(given, tuple) and len(given) == 2 and all(is_count(n, 1) for n in given):
        return given
    raise ValueError(
        f"TrainingStep: piece_bytes must be None, 0 or two numbers of bytes, got {given!r}"
    )


def _why_not_now() -> str:
    """What of a caller's modes only PyTorch's own operators can do, or ""."""
    if _has_any_global_hook():
        return "hooks of all modules would be lost"
    if torch._C._are_functorch_transforms_active():
        return "transforms of torch.func do not look into a compiled pass"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation does not look into a compiled pass"
    if torch.jit.is_tracing():
        return "torch.jit.trace does not look into a compiled pass"
    # What is computed while one of these traces would be a constant of its graph, or has no memory.
    if any(map(torch._C._get_dispatch_mode, _TRACING)):
        return _TRACED
    return ""
