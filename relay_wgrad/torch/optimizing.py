"""`optimize`: a model's convolutions on this package's kernels, where those are faster here.

Each layer is measured as it is used: with the operand's shape, type, memory order and device, under
autocast where the model runs so, the gradients that it needs included.  A layer that wins becomes
`relay_wgrad.torch.Conv2d` (`ConvTranspose2d`) in place: parameters, hooks and names stay.  On CUDA
each of its passes has the backend's kernel that was fastest (`cuda_kernels`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch._subclasses.fake_tensor import FakeTensor

from ..ambient import outside
from ..problem import ConvKind, ConvProblem
from . import cuda_kernels, kernels
from .choosing import MARGIN, TOLERANCE, UNKNOWN, Took, distance, times_of, why_not
from .modules import Conv2d, ConvTranspose2d
from .reads import HOOKS

_OURS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.Conv2d: Conv2d,
    torch.nn.ConvTranspose2d: ConvTranspose2d,
}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}


@dataclass(frozen=True)
class Measured:
    """What one layer takes.

    name : the layer's in the model.  operand : its input, as "float32 8x3x224x224".
    passes : "forward", or "forward and backward" where gradients are needed.  ours, theirs :
    milliseconds of them on the device, NaN where a side was not measured; ours_host, theirs_host :
    those of the host, which on CUDA run beside.  replaced : whether it is ours now.  reason : why
    it is not, or "".  kernels : whose each pass is with ours, "fprop cudnn, dgrad …".
    """

    name: str
    operand: str
    passes: str
    ours: float = math.nan
    theirs: float = math.nan
    ours_host: float = math.nan
    theirs_host: float = math.nan
    replaced: bool = False
    reason: str = ""
    kernels: str = ""


@dataclass
class Optimized:
    """What became of a model's convolutions; printed, a table.

    layers : of each that was measured or cannot be ours, in the order of their calls.
    """

    layers: list[Measured] = field(default_factory=list)
    _waiting: dict[str, tuple[torch.nn.Module, Any]] = field(default_factory=dict, repr=False)
    _replaced: dict[str, torch.nn.Module] = field(default_factory=dict, repr=False)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Names of the layers that are ours now."""
        return tuple(self._replaced)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Names of the layers that have not been called: they are measured by their first call."""
        return tuple(self._waiting)

    def undo(self) -> None:
        """Makes all layers what they were; those that wait are not measured any more."""
        for module in self._replaced.values():
            module.__class__ = _THEIRS[type(module)]
            module.__dict__.pop("benchmark", None)
        self._replaced.clear()
        self.stop()

    def stop(self) -> None:
        """Layers that have not been called stay as they are."""
        for _, handle in self._waiting.values():
            handle.remove()
        self._waiting.clear()

    def __str__(self) -> str:
        table = Table(box=box.SIMPLE, title=self._title())
        for column in ("layer", "operand", "passes", "ours, ms", "torch, ms", "ratio", "now"):
            table.add_column(column, justify="right" if "ms" in column else "left")
        for row in self.layers:
            times = [f"{t:.3f}" if not math.isnan(t) else "" for t in (row.ours, row.theirs)]
            ratio = row.ours / row.theirs
            table.add_row(
                row.name or "(itself)", row.operand, row.passes, *times,
                "" if math.isnan(ratio) else f"{ratio:.2f}",
                f"ours: {row.kernels}" if row.replaced else f"torch: {row.reason}",
            )  # fmt: skip
        console = Console(width=160)
        with console.capture() as text:
            console.print(table)
        return text.get()

    def _title(self) -> str:
        known = [r for r in self.layers if not math.isnan(r.ours) and not math.isnan(r.theirs)]
        before = sum(r.theirs for r in known)
        after = sum(r.ours if r.replaced else r.theirs for r in known)
        text = f"{len(self._replaced)} of {len(self.layers)} layers are ours"
        if known:
            text += f": {before:.3f} ms before, {after:.3f} after"
        if any(r.ours_host != r.ours for r in known):
            before = sum(r.theirs_host for r in known)
            after = sum(r.ours_host if r.replaced else r.theirs_host for r in known)
            text += f" (of the host {before:.3f} and {after:.3f})"
        return text + (f"; {len(self._waiting)} not called yet" if self._waiting else "")


def optimize(
    model: torch.nn.Module, *example: Any, margin: float = MARGIN, host: bool = True
) -> Optimized:
    """Puts this package's kernels under a model's convolutions where they are faster, in place.

    Parameters
    ----------
    model : its `torch.nn.Conv2d` and `torch.nn.ConvTranspose2d` layers are measured; subclasses of
        those, which may do something else, stay, as do layers whose results differ.
    example : what the model is called with once for it, its buffers and random numbers put back;
        without any, a layer is measured by its first call, which then takes longer.
    margin : how much faster, as a share of PyTorch's time, a layer must be on the device.
    host : whether on CUDA a layer stays PyTorch's where a call of ours would keep the host for
        longer than PyTorch's takes on device and host; False for steps that are captured as graphs.

    The choice is of the shapes, types and mode (training or not) of that call.  For other shapes
    kernels are built when they come (docs/howto/torch.md).  Kernels that `torch.compile` makes of a
    layer are not compared.  On CUDA a machine's first time takes some ten seconds of compiling;
    times are kept in the user's tuning record.

    Raises TypeError for a model that is no module or a `host` that is no bool, ValueError for a
    margin outside of [0, 1).
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"optimize: model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(margin, int | float) or not 0 <= margin < 1:
        raise ValueError(f"optimize: margin must be a share in [0, 1), got {margin!r}")
    if not isinstance(host, bool):
        raise TypeError(f"optimize: host must be a bool, got {host!r}")
    report = Optimized()
    known: dict[Any, _Times] = {}
    if example:
        _prefetch(model, example)
    for name, module in model.named_modules():
        if type(module) in _OURS:
            hook = _first_call(report, name, margin, host, known)
            report._waiting[name] = (module, module.register_forward_pre_hook(hook))
        elif isinstance(module, tuple(_OURS)) and type(module) not in _THEIRS:
            reason = f"a {type(module).__name__}, which may do something else"
            report.layers.append(Measured(name, "", "", reason=reason))
    if example:
        try:
            _call(model, example)
        except BaseException:
            report.undo()
            raise
    return report


def _call(model: torch.nn.Module, example: tuple[Any, ...]) -> None:
    """Calls a model once; buffers, random numbers and gradients are as before."""
    before = [(b, b.detach().clone()) for b in model.buffers()]
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    indices = [index for index in devices if index is not None]
    stance = getattr(torch.compiler, "set_stance", None)  # PyTorch 2.5 has none
    try:
        with torch.random.fork_rng(indices), stance("force_eager") if stance else nullcontext():
            model(*example)
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _prefetch(model: torch.nn.Module, example: tuple[Any, ...]) -> None:
    """Builds what layers on CUDA will want, all at once; by a call of the model."""
    problems: dict[torch.device, list[ConvProblem]] = {}

    def hook(module: Any, inputs: Any) -> None:
        x = inputs[0] if inputs else None
        if isinstance(x, torch.Tensor) and x.is_cuda and cuda_kernels.compared:
            cast = torch.is_autocast_enabled("cuda") and x.dtype != torch.float64
            dtype = torch.get_autocast_dtype("cuda") if cast else x.dtype
            gradients = torch.is_grad_enabled() and (x.requires_grad or module.weight.requires_grad)
            problems.setdefault(x.device, []).extend(_problems(module, x, dtype, gradients))

    layers = [m for m in model.modules() if type(m) in _OURS and m.weight.is_cuda]
    handles = [m.register_forward_pre_hook(hook) for m in layers]
    try:
        if handles:
            _call(model, example)
    finally:
        for handle in handles:
            handle.remove()
    for device, wanted in problems.items():
        asked = kernels.resolved((True, None, None))
        cuda_kernels.prefetch(wanted, device, asked)


def _problems(
    module: Any, x: torch.Tensor, dtype: torch.dtype, gradients: bool
) -> Iterator[ConvProblem]:
    """What a layer asks for on CUDA; for building ahead, so none where that is not simple."""
    if type(module) is not torch.nn.Conv2d or module.padding_mode != "zeros" or x.ndim != 4:
        return
    left, right, top, bottom = module._reversed_padding_repeated_twice
    geometry = (module.stride, (top, left, bottom, right), module.dilation, module.groups)
    last = kernels.channels_last(x) or kernels.channels_last(module.weight)
    if dtype not in kernels.DTYPES or not x.numel():
        return
    w, size = module.weight.shape, tuple(x.shape)
    y = kernels.result_shape(ConvKind.FPROP, size, w, (), geometry)
    operands = {ConvKind.FPROP: (size, w, y)}
    if gradients:
        operands |= {ConvKind.DGRAD: (y, w, size), ConvKind.WGRAD: (y, size, w)}
    for kind, (first, second, out) in operands.items():
        if min(out) > 0:
            yield kernels.problem_of(
                (kind, first, second, out, geometry, (last, last), dtype, x.device, None)
            )


_Times = tuple[Took, Took, str, str]


def _first_call(
    report: Optimized, name: str, margin: float, host: bool, known: dict[Any, _Times]
) -> Callable[[torch.nn.Module, Any], None]:
    def hook(module: torch.nn.Module, inputs: Any) -> None:
        if name not in report._waiting or not _is_plain_call(inputs):
            return
        report._waiting.pop(name)[1].remove()
        if not inputs:
            report.layers.append(Measured(name, "", "", reason="called with keywords alone"))
            return
        x = inputs[0]
        operand = f"{str(x.dtype).removeprefix('torch.')} {'x'.join(map(str, x.shape))}"
        gradients = torch.is_grad_enabled() and (x.requires_grad or module.weight.requires_grad)
        passes = "forward and backward" if gradients else "forward"
        if type(module) not in _OURS or type(x) not in (torch.Tensor, torch.nn.Parameter):
            report.layers.append(Measured(name, operand, passes, reason="changed, or a subclass"))
            return
        key = _key(module, inputs)
        if key not in known:
            kind, cast = x.device.type, torch.is_autocast_enabled(x.device.type)
            with outside(), torch.set_grad_enabled(gradients), torch.autocast(kind, enabled=cast):
                known[key] = compared_times(module, inputs, gradients)
        ours, theirs, reason, whose = known[key]
        reason = reason or why_not(ours, theirs, margin=margin, host=host)
        row = Measured(
            name, operand, passes, ours.ms, theirs.ms, ours.host, theirs.host, not reason, reason,
            whose,
        )  # fmt: skip
        report.layers.append(row)
        if not reason:
            module.__class__ = _OURS[type(module)]
            if x.is_cuda:
                module.benchmark = True
            report._replaced[name] = module

    return hook


def _is_plain_call(inputs: tuple[Any, ...]) -> bool:
    """Whether a layer is called on tensors with numbers, of which a measurement can make others."""
    functorch: Any = torch._C._functorch
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or any(isinstance(x, FakeTensor) or functorch.is_functorch_wrapped_tensor(x)
               for x in inputs if isinstance(x, torch.Tensor))
    )  # fmt: skip


def _key(module: Any, inputs: tuple[Any, ...]) -> Any:
    """What a measurement depends on."""
    x, *rest = inputs
    settings = [
        getattr(module, name, None)
        for name in ("stride", "padding", "dilation", "groups", "padding_mode", "output_padding")
    ]
    w = module.weight
    has_bias = module.bias is not None and module.bias.requires_grad
    kind = x.device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    return (
        type(module), *map(str, settings), tuple(x.shape), x.stride(), x.dtype, x.device,
        tuple(w.shape), w.stride(), w.dtype, torch.is_grad_enabled(), x.requires_grad,
        w.requires_grad, module.bias is not None, has_bias, cast, tuple(map(str, rest)),
    )  # fmt: skip


def compared_times(module: torch.nn.Module, inputs: tuple[Any, ...], gradients: bool) -> _Times:
    """(our times, PyTorch's, why ours cannot be, or "", whose kernels ours are)."""
    theirs, ours = (_twin(module, kind) for kind in (type(module), _OURS[type(module)]))
    x = inputs[0].detach()
    if x.is_cuda:
        ours.__dict__["benchmark"] = True
    generator = torch.Generator(x.device).manual_seed(0)
    noise = torch.empty_like(x).normal_(generator=generator)
    data = noise.requires_grad_(inputs[0].requires_grad)
    wanted = [t for t in (data, *theirs.parameters()) if t.requires_grad] if gradients else []
    given = (data, *inputs[1:])

    def call(layer: torch.nn.Module) -> list[torch.Tensor]:
        torch.clear_autocast_cache()  # PyTorch's casts of weights, once for all calls in a row
        y = layer(*given)
        return [y, *torch.autograd.grad(y, wanted, grad)] if wanted else [y]

    with torch.no_grad():
        grad = torch.empty_like(theirs(*given)).normal_(generator=generator)
    try:
        with kernels.recorded_calls() as heard:
            results = [[t.detach() for t in call(layer)] for layer in (ours, theirs)]
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return UNKNOWN, UNKNOWN, f"{type(error).__name__}: {str(error)[:80]}", ""
    for a, b in zip(*results, strict=True):
        far = distance(a, b)
        if not far <= TOLERANCE[b.dtype]:
            return UNKNOWN, UNKNOWN, f"results differ by {far:.1e}", ""
    del results
    times = times_of({"ours": partial(call, ours), "theirs": partial(call, theirs)}, x)
    whose = ", ".join(dict.fromkeys(f"{kind.value} {what}" for kind, what in heard if what))
    return times["ours"], times["theirs"], "", whose


def _twin(module: torch.nn.Module, kind: type[torch.nn.Module]) -> torch.nn.Module:
    """A layer on the same parameters, without hooks."""
    twin: torch.nn.Module = object.__new__(kind)
    twin.__dict__.update(module.__dict__)
    for hooks in HOOKS:
        twin.__dict__[hooks] = type(module.__dict__[hooks])()
    return twin
