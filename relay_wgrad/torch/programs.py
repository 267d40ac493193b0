"""What `TrainingStep` calls: a module compiled for one kind of call, on PyTorch's tensors.

Tensors go both ways by DLPack, on CUDA on PyTorch's current stream.  What is copied: operands that
are not dense, or not aligned as kernels want it; the new running statistics, into the module's
buffers; a gradient that shares its memory with another, since PyTorch changes gradients in place.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from .. import threads
from .kernels import ALIGNMENT, winograd_is_allowed
from .replayed import Replayed

Place = tuple[dict[str, Any], str]  # a module's `_parameters` or `_buffers`, and the name in it


class Choices(NamedTuple):
    """What is said of the arithmetic of convolutions: for cuDNN, and for a CPU."""

    tf32: bool
    benchmark: bool
    winograd: bool


def choices(device: torch.device | str) -> Choices:
    """Those that count on a device."""
    if torch.device(device).type == "cpu":
        return Choices(False, False, winograd_is_allowed())
    return Choices(torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark, False)


def compiled_at(device: torch.device, chosen: Choices) -> Any:
    """The `Place` that compiles for a device of PyTorch's."""
    from ..training.devices import place
    from ..training.options import Options

    options = Options(tf32=chosen.tf32, benchmark=chosen.benchmark, winograd=chosen.winograd)
    return place(f"cuda:{device.index or 0}" if device.type == "cuda" else "cpu", options)


class Asked(NamedTuple):
    """What a program is compiled for, besides the module's own state."""

    loss: Any  # of `from_torch`
    half: str | None
    differentiates: bool
    layout: str | None
    checkpoint: Any
    choices: Choices


class Program:
    """A module's forward part, and the backward part where gradients are wanted.

    module : as it is now: in training or not, layer by layer.
    inputs : its arguments.  Gradients are computed by those that require them.

    Raises ValueError as `from_torch` does, and for tensors on several devices.
    """

    def __init__(self, module: torch.nn.Module, inputs: Sequence[Any], asked: Asked) -> None:
        from ..frontend import from_torch
        from ..training.step import ADJOINT
        from ..training.two_parts import FORWARD, two_parts

        self.device = _device(module, inputs)
        _check_norms(module)
        with _plain(module, self.device):
            graph = from_torch(
                module, tuple(x.detach() for x in inputs), loss=asked.loss, dropout="mask"
            )
        self.name, self.specs = graph.name, graph.inputs
        self.parts = list(module.modules())  # kept, so that their ids are nobody else's
        self.drawn = [spec for spec in graph.inputs if spec.kind in ("mask", "random")]
        targets = list(graph.onnx_names.values())
        self.places = [_place(module, target) for target in targets]
        self.constants = [
            _Constant(_place(module, name), buffer)
            for name, buffer in module.named_buffers(remove_duplicate=False)
            if name not in targets and not name.endswith("num_batches_tracked")
        ]
        self.statistics, self.counters = _statistics(module, graph)
        wrt: list[str] = []
        if asked.differentiates:
            wrt = [s.name for s, x in zip(graph.inputs, inputs, strict=False) if x.requires_grad]
            wrt += graph.trainable
        where = compiled_at(self.device, asked.choices)
        parts = two_parts(
            graph, wrt=wrt, dtype=asked.half,
            layout=where.layout if asked.layout is None else asked.layout,
            checkpoint=asked.checkpoint, wide_weight_gradients=where.wide, raise_norms=where.norms,
            blocks=where.blocks,
        )  # fmt: skip
        self.outputs, self.sources = parts.outputs, parts.sources
        order = [*(spec.name for spec in graph.inputs), *graph.params]
        self.wrt = [order.index(name) for name in parts.wrt]
        compiled = where.compile(parts.module, lambda what: None)
        self.compiled, self.notes = compiled, [*graph.notes, *where.notes]
        self._forward = compiled.vm[FORWARD if parts.wrt else ADJOINT]
        self._backward = compiled.vm[ADJOINT] if parts.wrt else None
        self._turns = Turns(self.device)

    def is_current(self) -> bool:
        """Whether the buffers that were made constants are as they were."""
        return all(constant.is_as_it_was() for constant in self.constants)

    def arguments(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The forward part's: inputs, what is drawn, parameters and statistics as they are now.

        Raises TypeError or ValueError for an input that is not the one that was compiled for.
        """
        expected = self.specs[: len(self.specs) - len(self.drawn)]
        if len(inputs) != len(expected):
            names = ", ".join(f"{s.name} {s.dtype}{list(s.shape)}" for s in expected)
            raise TypeError(f"{self.name}: takes {names}; got {len(inputs)} arguments")
        for spec, x in zip(expected, inputs, strict=True):
            dtype = str(x.dtype).removeprefix("torch.")
            if tuple(x.shape) != spec.shape or dtype != spec.dtype:
                raise ValueError(
                    f"{self.name}: {spec.name} is {spec.dtype}{list(spec.shape)}, got"
                    f" {dtype}{list(x.shape)}"
                )
            if x.device != self.device:
                raise ValueError(
                    f"{self.name}: {spec.name} must be on {self.device}, got {x.device}"
                )
        numbers = [drawn(spec, self.device) for spec in self.drawn]
        return [*inputs, *numbers, *(held[name] for held, name in self.places)]

    def forward(self, arguments: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """(the first output, what the backward part reads); statistics are updated."""
        args = [dense(x) for x in arguments]
        made = self._run(self._forward, args)
        result, kept = made[0], made[self.outputs :]
        # A view of an operand or of what is kept would be changed with it, or change it, unseen.
        shared = {x.data_ptr() for x in (*args, *kept) if x.numel()}
        if result.numel() and result.data_ptr() in shared:
            result = result.clone()
        if self.statistics:
            with torch.no_grad():
                buffers = [held[name] for held, name in self.statistics]
                first = self.outputs - len(buffers)
                torch._foreach_copy_(buffers, made[first : self.outputs])
                counters = [held[name] for held, name in self.counters]
                if counters:
                    torch._foreach_add_(counters, 1)
        of = {"argument": args, "output": [result, *made[1 : self.outputs]], "kept": kept}
        return result, [of[source.kind][source.index] for source in self.sources]

    def backward(
        self, read: Sequence[torch.Tensor], gradient: torch.Tensor
    ) -> dict[int, torch.Tensor]:
        """The gradients by the arguments' places."""
        made = self._run(self._backward, [*read, dense(gradient)])
        seen: set[int] = set()
        for i, found in enumerate(made):
            if found.numel() and found.data_ptr() in seen:
                made[i] = found.clone()
            seen.add(found.data_ptr())
        return dict(zip(self.wrt, made, strict=True))

    def _run(self, function: Any, args: list[torch.Tensor]) -> list[torch.Tensor]:
        with self._turns:
            return call(function, args, self.device)


class _Constant:
    """A buffer that the graph has as a constant: a program that has an old one must not run."""

    def __init__(self, place: Place, tensor: torch.Tensor) -> None:
        self._place, self._tensor = place, tensor
        self._version, self._value = tensor._version, tensor.detach().clone()

    def is_as_it_was(self) -> bool:
        held, name = self._place
        now = held.get(name)
        if now is self._tensor and now._version == self._version:
            return True
        if now is None or now.device != self._value.device or now.dtype != self._value.dtype:
            return False
        if not torch.equal(now, self._value):
            return False
        self._tensor, self._version = now, now._version
        return True


def call(function: Any, args: Sequence[torch.Tensor], device: torch.device) -> list[torch.Tensor]:
    """What a compiled function gives for dense tensors of one device, on the current stream."""
    if device.type != "cuda":
        return list(threads.run(function, *args, threads=torch.get_num_threads()))
    import tvm_ffi

    # TVM makes a tensor's device the current one, and leaves it so.
    with torch.cuda.device(device), tvm_ffi.use_torch_stream():
        return list(function(*args))


class Turns:
    """Within, a program is called by one thread, and on CUDA when what it was given before is over:
    a virtual machine has one memory for its intermediate results."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._lock = device, threading.Lock()
        self._stream: torch.cuda.Stream | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._device.type == "cuda":
            now = torch.cuda.current_stream(self._device)
            if self._stream is not None and now != self._stream:
                now.wait_stream(self._stream)
            self._stream = now

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def replayed(
    function: Any, where: Any, device: torch.device, told: Callable[[str], None], *,
    last: Sequence[bool], graphs: bool, late: bool = False,
) -> Replayed:  # fmt: skip
    """A compiled function for tensors of a device, of which it takes those of `last` channels last;
    `graphs`: as CUDA graphs, where it can be."""

    def prepared(given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [
            dense(x.permute(0, 2, 3, 1) if i < len(last) and last[i] else x)
            for i, x in enumerate(given)
        ]

    lane = where.work() if graphs and where.work is not None else None
    plain = partial(call, function, device=device)
    here = None if lane is None else _Here(lane, device)
    return Replayed(plain, function, here, told, late, prepared, last)


class _Here:
    """A place's lane for a device, before and after which PyTorch's current stream works."""

    def __init__(self, lane: Any, device: torch.device) -> None:
        self._lane, self._device = lane, device

    def done(self, do: Callable[[], Any]) -> Any:
        return self._within(lambda: self._lane.done(do))

    def captured(self, do: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        made, launch = self._within(lambda: self._lane.captured(do))
        return made, lambda: self._within(launch)

    def _within(self, do: Callable[[], Any]) -> Any:
        import tvm_ffi

        with torch.cuda.device(self._device), tvm_ffi.use_torch_stream():
            return do()


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as kernels take it: a copy only where need be."""
    tensor = tensor.detach().resolve_neg().contiguous()
    if not tensor.numel():
        # Where nothing lies PyTorch calls any strides contiguous, and TVM these alone.
        strides = [math.prod(tensor.shape[i + 1 :]) for i in range(tensor.dim())]
        return tensor.new_empty_strided(tensor.shape, strides)
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT[tensor.device.type] else tensor


def _place(module: torch.nn.Module, name: str) -> Place:
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    return (owner._parameters if last in owner._parameters else owner._buffers), last


def _statistics(module: torch.nn.Module, graph: Any) -> tuple[list[Place], list[Place]]:
    """(the buffers that the graph's outputs renew, in their order, the batch counters of those)."""
    statistics, counters = [], {}
    for output in graph.outputs:
        if output in graph.updates:
            target = graph.onnx_names[graph.updates[output]]
            statistics.append(_place(module, target))
            owner = module.get_submodule(target.rpartition(".")[0])
            if owner._buffers.get("num_batches_tracked") is not None:
                counters[id(owner)] = (owner._buffers, "num_batches_tracked")
    return statistics, list(counters.values())


def _check_norms(module: torch.nn.Module) -> None:
    for name, part in module.named_modules():
        tracks = part.training and getattr(part, "track_running_stats", False)
        if tracks and getattr(part, "momentum", 0.0) is None:
            raise ValueError(
                f"TrainingStep: {name or 'the module'} has momentum=None, so its statistics depend"
                " on the number of batches: give it a momentum"
            )


def _device(module: torch.nn.Module, inputs: Sequence[Any]) -> torch.device:
    found = {t.device for t in (*inputs, *module.parameters(), *module.buffers())}
    if len(found) != 1 or not found <= {d for d in found if d.type in ("cpu", "cuda")}:
        names = ", ".join(sorted(map(str, found)))
        raise ValueError(f"TrainingStep: all tensors must be on one device, cpu or cuda: {names}")
    return found.pop()


@contextlib.contextmanager
def _plain(module: torch.nn.Module, device: torch.device) -> Iterator[None]:
    """Within it the module is traced as it is: without autocast's casts, and without the hooks of
    parameters, which autograd runs all the same when it gets the gradients."""
    hooks = [(p, p._backward_hooks) for p in module.parameters() if p._backward_hooks]
    for parameter, _ in hooks:
        parameter._backward_hooks = None
    try:
        with torch.autocast(device.type, enabled=False), torch.inference_mode(False):
            yield
    finally:
        for parameter, given in hooks:
            parameter._backward_hooks = given


def drawn(spec: Any, device: torch.device) -> torch.Tensor:
    """A mask of dropout, or other random numbers, by PyTorch's generator of the device."""
    dtype = getattr(torch, spec.dtype)
    out = torch.empty(spec.shape, dtype=dtype, device=device)
    if spec.kind == "mask":
        return out.zero_() if spec.keep <= 0 else out.bernoulli_(spec.keep).div_(spec.keep)
    kind, *numbers = spec.distribution
    if kind == "bernoulli":
        return out.bernoulli_(numbers[0])
    if kind == "normal":
        return out.normal_(*numbers)
    if kind == "integers":
        return out.random_(int(numbers[0]), int(numbers[1]))
    return out.uniform_(*numbers)
