"""The three partial derivatives of the trilinear form as PyTorch operators.

Each is differentiated into the other two (`relay_wgrad.ops.algebra` has the derivation), so there
are gradients of any order.  Each exists four times, for what PyTorch's dispatcher costs a call:

- a custom operator, of which `torch.compile` and other tracers see shape and gradient and never the
  kernel, and which subclasses of tensors can intercept;
- an `autograd.Function` that `torch.func` can transform;
- a leaner one with the same rules, for plain tensors of which one requires a gradient;
- the kernel alone, where nobody records the call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import library as torch_library
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction

from ..problem import ConvKind
from . import kernels
from .arguments import PLAIN
from .kernels import Geometry, Options

Size = tuple[int, ...]


_frozen = 0
_frozen_lock = threading.Lock()


@contextmanager
def no_weight_gradients(disable: bool = True) -> Iterator[None]:
    """While inside, backward passes compute no weight gradients: they give None.

    What counts is when `backward` runs.  It holds for the whole process, since PyTorch's CUDA
    backward passes run in threads of its own.  Known from StyleGAN's conv2d_gradfix; biases keep
    their gradients.
    """
    global _frozen
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
_OPERATORS: dict[ConvKind, tuple[str, str]] = {
    ConvKind.FPROP: ("conv2d", "(Tensor data, Tensor weight, Tensor? bias, "),
    ConvKind.DGRAD: (
        "conv2d_backward_data",
        "(Tensor grad, Tensor weight, Tensor? bias, SymInt[] size, ",
    ),
    ConvKind.WGRAD: ("conv2d_backward_weight", "(Tensor grad, Tensor data, SymInt[] size, "),
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


def _joined(kind: ConvKind, bias: Any, size: Any) -> tuple[Any, ...]:
    """Which of a bias and a size an operator takes between its operands and its geometry."""
    if kind is ConvKind.WGRAD:
        return (size,)
    return (bias,) if kind is ConvKind.FPROP else (bias, size)


def _define(kind: ConvKind) -> Any:
    name, head = _OPERATORS[kind]

    def implementation(*args: Any) -> torch.Tensor:
        return kernels.run(kind, *_split(kind, args))

    def fake(*args: Any) -> torch.Tensor:
        first, second, _, size, geometry, _ = _split(kind, args)
        is_last = kernels.channels_last(first) or kernels.channels_last(second)
        shape = kernels.result_shape(kind, first.shape, second.shape, size, geometry)
        return first.new_empty(shape).contiguous(memory_format=kernels.memory_format(is_last))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _remember(ctx, *_split(kind, inputs))

    def backward(ctx: Any, v: torch.Tensor) -> tuple[Any, ...]:
        by_first, by_second, by_bias = _BACKWARD[kind](ctx, v)
        return (by_first, by_second, *_joined(kind, by_bias, None), *[None] * 7)

    def batched(info: Any, in_dims: Any, *args: Any) -> Any:
        return _batched(kind, info, in_dims, *_split(kind, args))

    operator = torch_library.custom_op(
        f"relay_wgrad::{name}", implementation, mutates_args=(), schema=head + _TAIL
    )
    operator.register_fake(fake)
    operator.register_autograd(backward, setup_context=setup_context)
    operator.register_vmap(batched)
    return _chooser(kind, operator, *_functions(kind))


def _remember(
    ctx: Any, first: Any, second: Any, bias: Any, size: Any, geometry: Any, options: Any
) -> None:
    """What the gradients need.  An operand is needed for the other's gradient only."""
    a, b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(first if b else None, second if a else None)
    is_last = kernels.channels_last(first) or kernels.channels_last(second)
    ctx.facts = (first.shape[2:], second.shape[2:], is_last, geometry, options)


def _functions(kind: ConvKind) -> tuple[Any, Any]:
    """The operator as a Function for plain calls, and as one for `torch.func`'s transforms."""

    def differentiate(ctx: Any, v: torch.Tensor) -> tuple[Any, ...]:
        return (*_BACKWARD[kind](ctx, v), None, None, None)

    # What `torch.autograd.Function` is without its support of `torch.func`.
    class Plain(_SingleLevelFunction):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> torch.Tensor:
            _remember(ctx, *args)
            return kernels.run(kind, *args)

        backward = staticmethod(differentiate)

    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> torch.Tensor:
            return kernels.run(kind, *args)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            _remember(ctx, *inputs)

        backward = staticmethod(differentiate)

        @staticmethod
        def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
            return _batched(kind, info, in_dims, *args)

    return Plain, Transformed


_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor


def _chooser(
    kind: ConvKind, operator: Any, plain: Any, transformed: Any
) -> Callable[..., torch.Tensor]:
    def call(
        first: torch.Tensor,
        second: torch.Tensor,
        bias: torch.Tensor | None,
        size: Size,
        geometry: Geometry,
        options: Options,
    ) -> torch.Tensor:
        traced = (
            torch.compiler.is_compiling()
            or type(first) not in PLAIN
            or type(second) not in PLAIN
            or (bias is not None and type(bias) not in PLAIN)
            or first.is_meta
            or torch._C._len_torch_dispatch_stack() > 0
            or torch._C._is_tracing()
        )
        if traced:
            return operator(first, second, *_joined(kind, bias, size), *geometry, *options)
        transforms = torch._C._are_functorch_transforms_active()
        if transforms or _is_wrapped(first) or _is_wrapped(second):  # perhaps of one that is over
            return transformed.apply(first, second, bias, size, geometry, options)
        recorded = torch.is_grad_enabled() and (
            first.requires_grad or second.requires_grad or (bias is not None and bias.requires_grad)
        )
        # A dual number, of forward-mode differentiation, requires no gradient: PyTorch refuses it.
        if recorded or forward_ad._current_level >= 0:
            return plain.apply(first, second, bias, size, geometry, options)
        return kernels.run(kind, first, second, bias, size, geometry, options)

    return call


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
    return v.contiguous(memory_format=torch.channels_last) if is_last else v


def _backward_fprop(ctx: Any, v: torch.Tensor) -> tuple[Any, Any, Any]:
    data, weight = ctx.saved_tensors
    pixels, taps, is_last, *rest = ctx.facts
    v = _like_result(v, is_last)
    return (
        dgrad(v, weight, None, pixels, *rest) if _needed(ctx, 0) else None,
        wgrad(v, data, None, taps, *rest) if _needed(ctx, 1) and not _frozen else None,
        v.sum((0, 2, 3)) if _needed(ctx, 2) else None,
    )


def _backward_dgrad(ctx: Any, v: torch.Tensor) -> tuple[Any, Any, Any]:
    grad, weight = ctx.saved_tensors
    _, taps, is_last, *rest = ctx.facts
    v = _like_result(v, is_last)
    return (
        fprop(v, weight, None, (), *rest) if _needed(ctx, 0) else None,
        wgrad(grad, v, None, taps, *rest) if _needed(ctx, 1) and not _frozen else None,
        v.sum((0, 2, 3)) if _needed(ctx, 2) else None,
    )


def _backward_wgrad(ctx: Any, v: torch.Tensor) -> tuple[Any, Any, Any]:
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


# ---- batching ------------------------------------------------------------------------------------
#
# B convolutions at once are one with B times as many groups: b goes in front of the channels of
# data and gradient and of the weight's filters.  The operand that is not batched is repeated.


# The axis that takes b: channels of data and gradient, filters of the weight.
_BATCHED_AXES = {
    ConvKind.FPROP: (1, 0, 1), ConvKind.DGRAD: (1, 0, 1), ConvKind.WGRAD: (1, 1, 0),
}  # fmt: skip
_CALLS: dict[ConvKind, Callable[..., torch.Tensor]] = {}


def _batched(
    kind: ConvKind, info: Any, dims: Any, first: Any, second: Any, bias: Any, size: Any,
    geometry: Any, options: Any,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    count, axes = info.batch_size, _BATCHED_AXES[kind]
    operands = [
        _folded(t, dim, count, axis)
        for t, dim, axis in zip((first, second), dims, axes, strict=False)
    ]
    geometry = (*geometry[:3], geometry[3] * count)
    out = _CALLS[kind](*operands, None, size, geometry, options)
    axis = axes[2]
    out = out.unflatten(axis, (count, out.shape[axis] // count))
    if bias is not None:
        bias = bias.expand(count, -1) if dims[2] is None else bias.movedim(dims[2], 0)
        out = out + bias.view(1, count, -1, 1, 1)
    return out, axis


def _folded(tensor: torch.Tensor, dim: int | None, count: int, axis: int) -> torch.Tensor:
    if dim is None:
        tensor, dim = tensor.expand(count, *tensor.shape), 0
    return tensor.movedim(dim, axis).flatten(axis, axis + 1)


fprop = _CALLS[ConvKind.FPROP] = _define(ConvKind.FPROP)
dgrad = _CALLS[ConvKind.DGRAD] = _define(ConvKind.DGRAD)
wgrad = _CALLS[ConvKind.WGRAD] = _define(ConvKind.WGRAD)
