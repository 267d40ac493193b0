"""The three partial derivatives of the trilinear form as PyTorch operators.

Each is differentiated into the other two (`relay_wgrad.ops.algebra` has the derivation), so there
are gradients of any order.  Each exists three times, for what PyTorch's dispatcher costs a call:

- an operator, of which tracers see shape and gradient and never the kernel, and which modes,
  subclasses of tensors and the transforms of `torch.func` intercept;
- an autograd node around the kernel, for plain tensors of which one requires a gradient;
- the kernel alone, where nobody records the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import library as torch_library
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils.flop_counter import register_flop_formula

from ..argument_types import checked_bool
from ..problem import ConvKind
from ..ranks import OWN
from . import batching, kernels
from .arguments import OPERATORS, facts, is_plain, operator
from .kernels import Geometry, Options

Size = tuple[int, ...]


_frozen = 0
_frozen_lock = threading.Lock()


@contextmanager
def no_weight_gradients(disable: bool = True) -> Iterator[None]:
    """While inside, backward passes compute no weight gradients: they give None.

    What counts is when `backward` runs.  It holds for the whole process, since PyTorch's CUDA
    backward passes run in threads of its own.  Known from StyleGAN's conv2d_gradfix; biases keep
    their gradients.  Raises TypeError for a `disable` that is neither True nor False.
    """
    global _frozen
    checked_bool("no_weight_gradients: disable", disable)
    with _frozen_lock:
        _frozen += disable
    try:
        yield
    finally:
        with _frozen_lock:
            _frozen -= disable


# What all three end with: geometry, options.
_TAIL = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups,"
    " bool? benchmark, bool? deterministic, bool? allow_tf32) -> Tensor"
)
_HEADS: dict[ConvKind, str] = {
    ConvKind.FPROP: "(Tensor data, Tensor weight, Tensor? bias, ",
    ConvKind.DGRAD: "(Tensor grad, Tensor weight, Tensor? bias, SymInt[] size, ",
    ConvKind.WGRAD: "(Tensor grad, Tensor data, SymInt[] size, ",
}


def _split(kind: ConvKind, args: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
    """(first operand, second operand, bias, size, geometry, options) of an operator's arguments."""
    bias, size = None, ()
    first, second, *rest = args
    if kind is not ConvKind.WGRAD:
        bias, *rest = rest
    if kind is not ConvKind.FPROP:
        size, *rest = rest
    strides, padding, dilation, groups, *options = rest
    geometry = (tuple(strides), tuple(padding), tuple(dilation), groups)
    return first, second, bias, tuple(size), geometry, tuple(options)


def _checked(kind: ConvKind, rank: int, args: Any) -> tuple[Any, Any, Any, Any, Any, Any]:
    """`_split`; ValueError or TypeError for arguments that do not fit."""
    split = _split(kind, args)
    operator(kind, rank, [*map(facts, split[:3])], *split[3:5])
    return split


def _joined(kind: ConvKind, bias: Any, size: Any) -> tuple[Any, ...]:
    """Which of a bias and a size an operator takes between its operands and its geometry."""
    if kind is ConvKind.WGRAD:
        return (size,)
    return (bias,) if kind is ConvKind.FPROP else (bias, size)


_library = torch_library.Library("relay_wgrad", "DEF")


def _define(kind: ConvKind, rank: int) -> Callable[..., torch.Tensor]:
    name, head = OPERATORS[kind, rank][0], _HEADS[kind]
    recorded, traced = _nodes(kind, rank)

    @torch._disable_dynamo
    def implementation(*args: Any) -> torch.Tensor:
        return kernels.run(kind, *_checked(kind, rank, args))

    def fake(*args: Any) -> torch.Tensor:
        first, second, _, size, geometry, _ = _checked(kind, rank, args)
        is_last = kernels.channels_last(first) or kernels.channels_last(second)
        shape = kernels.result_shape(kind, first.shape, second.shape, size, geometry)
        return first.new_empty(shape).contiguous(memory_format=kernels.memory_format(is_last, rank))

    # `register_autograd` of PyTorch makes nodes that `torch.func`'s transforms refuse.
    def autograd(keys: Any, *args: Any) -> torch.Tensor:
        split = _checked(kind, rank, args)
        # What `forward_ad` calls its level is not known to a graph that PyTorch compiles.
        if torch._C._is_fwd_grad_enabled() or _is_recorded(*split[:3]):
            with enable_single_level_autograd_function():  # the dispatcher sees to each level
                modes = (torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled())
                return traced.apply(*split, keys, modes)
        return _below_autograd(kind, rank, keys, args)

    def batched(info: Any, in_dims: Any, *args: Any) -> Any:
        split = _split(kind, args)
        dims = (*in_dims[:2], None if split[2] is None else in_dims[2])
        operator(kind, rank, [*map(facts, split[:3], dims)], *split[3:5])
        return batching.batched(kind, _CALLS[kind, rank], info.batch_size, in_dims, *split)

    def flop(first: Any, second: Any, *_: Any, out_shape: Any, **__: Any) -> int:
        grad = out_shape if kind is ConvKind.FPROP else first
        weight = out_shape if kind is ConvKind.WGRAD else second
        return 2 * prod((grad[0], *grad[2:], *weight))

    _library.define(f"{name}{head}{_TAIL}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    _library.impl(name, autograd, "Autograd", with_keyset=True)
    qualified = f"relay_wgrad::{name}"
    torch_library.register_fake(qualified, fake, lib=_library)
    torch_library.register_vmap(qualified, batched, lib=_library)
    packet = getattr(torch.ops.relay_wgrad, name)
    register_flop_formula(packet)(flop)
    overload = _OVERLOADS[kind, rank] = packet.default

    def call(
        first: torch.Tensor, second: torch.Tensor, bias: torch.Tensor | None, size: Size,
        geometry: Geometry, options: Options, plain: bool = False,
    ) -> torch.Tensor:  # fmt: skip
        """`plain`: what `is_plain` says of the tensors, where the caller knows it to be true."""
        if not (plain or is_plain(first, second, bias)):
            if not torch.compiler.is_compiling() and torch._C._is_tracing():
                # To `torch.jit.trace` what follows from sizes is tensors.
                size = tuple(map(int, size))
                strides, padding, dilation = (tuple(map(int, part)) for part in geometry[:3])
                geometry = (strides, padding, dilation, int(geometry[3]))
            return overload(first, second, *_joined(kind, bias, size), *geometry, *options)
        if _is_recorded(first, second, bias):
            return recorded.apply(first, second, bias, size, geometry, options)
        return kernels.run(kind, first, second, bias, size, geometry, options)

    return call


_OVERLOADS: dict[tuple[ConvKind, int], Any] = {}  # by kind and rank


def _below_autograd(kind: ConvKind, rank: int, keys: Any, args: Any) -> torch.Tensor:
    """The operator's dispatch after autograd."""
    with torch._C._AutoDispatchBelowAutograd():
        return _OVERLOADS[kind, rank].redispatch(keys & torch._C._after_autograd_keyset, *args)


def _is_recorded(first: torch.Tensor, second: torch.Tensor, bias: torch.Tensor | None) -> bool:
    # A dual number, of forward-mode differentiation, requires no gradient.
    return forward_ad._current_level >= 0 or (
        torch.is_grad_enabled()
        and (
            first.requires_grad or second.requires_grad or (bias is not None and bias.requires_grad)
        )
    )


def remember(
    ctx: Any, first: Any, second: Any, bias: Any, size: Any, geometry: Any, options: Any
) -> None:
    """What the gradients need.  An operand is needed for the other's gradient only."""
    a, b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(first if b else None, second if a else None)
    ctx.set_materialize_grads(False)  # tangents that are not there cost no call
    is_last = kernels.channels_last(first) or kernels.channels_last(second)
    ctx.facts = (first.shape[2:], second.shape[2:], is_last, geometry, options)


class _Node(_SingleLevelFunction):
    """What `torch.autograd.Function` is without its support of `torch.func`."""

    _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)


def _nodes(kind: ConvKind, rank: int) -> tuple[Any, Any]:
    """The autograd nodes of a plain call, and of the operator."""

    class Recorded(_Node):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> torch.Tensor:
            remember(ctx, *args)
            if forward_ad._current_level >= 0:
                ctx.save_for_forward(*args[:2])
                ctx.size = args[3]
            return kernels.run(kind, *args)

        @staticmethod
        def backward(ctx: Any, v: torch.Tensor | None) -> tuple[Any, ...]:
            return (*_BACKWARD[kind](ctx, v), None, None, None)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            # PyTorch switches forward mode off for all levels, not for this alone.
            with forward_ad._set_fwd_grad_enabled(True):
                return _forward_mode(kind, ctx, *tangents[:3])

    class Traced(_Node):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> torch.Tensor:
            *split, keys, modes = args
            remember(ctx, *split)
            first, second, bias, size, geometry, options = split
            ctx.save_for_forward(first, second)  # until `apply` ends
            ctx.size = size
            joined = _joined(kind, bias, size)
            # Below may be another level, of a transform, that records; `apply` switched off both.
            with torch.set_grad_enabled(modes[0]), forward_ad._set_fwd_grad_enabled(modes[1]):
                joined = (first, second, *joined, *geometry, *options)
                return _below_autograd(kind, rank, keys, joined)

        @staticmethod
        def backward(ctx: Any, v: torch.Tensor | None) -> tuple[Any, ...]:
            return (*_BACKWARD[kind](ctx, v), *[None] * 5)

        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            # PyTorch switches forward mode off for all levels, not for this alone.
            with forward_ad._set_fwd_grad_enabled(True):
                return _forward_mode(kind, ctx, *tangents[:3])

    return Recorded, Traced


# ---- gradients -----------------------------------------------------------------------------------


def _needed(ctx: Any, i: int) -> bool:
    """Whether this backward pass wants the gradient by tensor i.

    `needs_input_grad` alone says what the forward pass saw: `torch.autograd.grad(loss, x)` would
    pay for the weight's gradient too.
    """
    if not ctx.needs_input_grad[i]:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(ctx.next_functions[i][0]))
    except (AttributeError, RuntimeError, TypeError):
        # A leaf that `torch.autograd.grad` asks for; or a transform, which has no engine.
        return True


def _like_result(v: torch.Tensor, is_last: bool) -> torch.Tensor:
    """The cotangent in the result's memory order, which the gradients then have too."""
    rank = v.dim() - 2
    if not is_last or kernels.is_batched(v):
        return v
    if v.is_contiguous(memory_format=kernels.FORMATS[rank]):
        return v
    # Not by `memory_format`: v may have a tangent that is batched, which takes none.
    return v.movedim(1, -1).contiguous().movedim(-1, 1)


def _of_bias(v: torch.Tensor) -> torch.Tensor:
    return v.sum((0, *range(2, v.dim())))


def _backward_fprop(ctx: Any, v: torch.Tensor | None) -> tuple[Any, Any, Any]:
    if v is None:
        return None, None, None
    data, weight = ctx.saved_tensors
    pixels, taps, is_last, *rest = ctx.facts
    v = _like_result(v, is_last)
    return (
        dgrad(v, weight, None, pixels, *rest) if _needed(ctx, 0) else None,
        wgrad(v, data, None, taps, *rest) if _needed(ctx, 1) and not _frozen else None,
        _of_bias(v) if _needed(ctx, 2) else None,
    )


def _backward_dgrad(ctx: Any, v: torch.Tensor | None) -> tuple[Any, Any, Any]:
    if v is None:
        return None, None, None
    grad, weight = ctx.saved_tensors
    _, taps, is_last, *rest = ctx.facts
    v = _like_result(v, is_last)
    return (
        fprop(v, weight, None, (), *rest) if _needed(ctx, 0) else None,
        wgrad(grad, v, None, taps, *rest) if _needed(ctx, 1) and not _frozen else None,
        _of_bias(v) if _needed(ctx, 2) else None,
    )


def _backward_wgrad(ctx: Any, v: torch.Tensor | None) -> tuple[Any, Any, Any]:
    if v is None:
        return None, None, None
    grad, data = ctx.saved_tensors
    _, pixels, is_last, *rest = ctx.facts
    v = _like_result(v, is_last)
    return (
        fprop(data, v, None, (), *rest) if _needed(ctx, 0) else None,
        dgrad(grad, v, None, pixels, *rest) if _needed(ctx, 1) else None,
        None,
    )


_BACKWARD: dict[ConvKind, Callable[..., Any]] = {
    ConvKind.FPROP: _backward_fprop,
    ConvKind.DGRAD: _backward_dgrad,
    ConvKind.WGRAD: _backward_wgrad,
}


# ---- forward mode --------------------------------------------------------------------------------


def _forward_mode(
    kind: ConvKind, ctx: Any, first_t: Any, second_t: Any, bias_t: Any
) -> torch.Tensor | None:
    """The tangent: f(first', second) + f(first, second') + bias', f being bilinear."""
    (first, second), size = ctx.saved_for_forward, ctx.size
    *_, is_last, geometry, options = ctx.facts
    tangent = None

    def call(first: torch.Tensor, second: torch.Tensor, bias: Any) -> torch.Tensor:
        return _CALLS[kind, len(geometry[0])](first, second, bias, size, geometry, options)

    # A bias goes through a call where there is one: its tangent is in the result's memory order.
    bias_t = None if _is_zero(bias_t) else bias_t
    if not _is_zero(first_t):
        tangent = call(first_t, _primal(second), bias_t)
    if not _is_zero(second_t):
        bias_t = bias_t if tangent is None else None
        other = call(_primal(first), second_t, bias_t)
        tangent = other if tangent is None else tangent + other
    if tangent is None and bias_t is not None:
        n, k, *pixels = kernels.result_shape(kind, first.shape, second.shape, size, geometry)
        tangent = bias_t.expand(n, *pixels, k).clone(memory_format=torch.contiguous_format)
        # In the result's memory order, or PyTorch copies it, which it can't with symbolic sizes.
        tangent = tangent.movedim(-1, 1)
        return tangent if is_last else tangent.contiguous()
    return tangent


def _is_zero(tangent: torch.Tensor | None) -> bool:
    return tangent is None or tangent._is_zerotensor()


def _primal(tensor: torch.Tensor) -> torch.Tensor:
    """A dual number without its tangent, so that this level's derivative is no dual number."""
    return torch._VF._unpack_dual(tensor, level=0)[0]


def _of_lines(kind: ConvKind) -> Callable[..., torch.Tensor]:
    """The operator of one dimension: a line is an image with one row."""
    of_images = _CALLS[kind, 2]

    def call(
        first: torch.Tensor, second: torch.Tensor, bias: torch.Tensor | None, size: Size,
        geometry: Geometry, *rest: Any,
    ) -> torch.Tensor:  # fmt: skip
        (stride,), (before, after), (dilation,), groups = geometry
        of_row = ((1, stride), (0, before, 0, after), (1, dilation), groups)
        rows = first.unsqueeze(-2), second.unsqueeze(-2)
        return of_images(*rows, bias, (1, *size) if size else (), of_row, *rest).squeeze(-2)

    return call


_CALLS: dict[tuple[ConvKind, int], Callable[..., torch.Tensor]] = {
    (kind, rank): _define(kind, rank) for kind in ConvKind for rank in OWN
}
_CALLS |= {(kind, 1): _of_lines(kind) for kind in ConvKind}


def fprop(first: Any, second: Any, bias: Any, size: Size, g: Geometry, *rest: Any) -> torch.Tensor:
    """The convolution of data with a weight; `rest` as `_define`'s call has it."""
    return _CALLS[ConvKind.FPROP, len(g[0])](first, second, bias, size, g, *rest)


def dgrad(first: Any, second: Any, bias: Any, size: Size, g: Geometry, *rest: Any) -> torch.Tensor:
    """The data's gradient, of a gradient and a weight."""
    return _CALLS[ConvKind.DGRAD, len(g[0])](first, second, bias, size, g, *rest)


def wgrad(first: Any, second: Any, bias: Any, size: Size, g: Geometry, *rest: Any) -> torch.Tensor:
    """The weight's gradient, of a gradient and data; no bias."""
    return _CALLS[ConvKind.WGRAD, len(g[0])](first, second, bias, size, g, *rest)
