"""The three partial derivatives of the trilinear form as PyTorch operators.

Each is differentiated into the other two (`relay_wgrad.ops.algebra` has the derivation), so there
are gradients of any order.  Each is a custom operator, of which `torch.compile` and other tracers
see shape and gradient and never the kernel; and, for calls that nobody traces, an
`autograd.Function` with the same rules: it spares a call most of PyTorch's dispatcher, and
`torch.func` can transform it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import library as torch_library

from ..problem import ConvKind, out_size
from . import kernels

Gradient = torch.Tensor | None

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


# What follows the tensors in all three: the result's two sizes that do not follow from the
# operands (fprop has none), geometry, options.
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


def _shape(kind: ConvKind, first: Any, second: Any, size: Any, rest: Any) -> tuple[Any, ...]:
    """The result's shape."""
    stride, padding, dilation, groups = rest[:4]
    if kind is ConvKind.DGRAD:
        return (first.shape[0], second.shape[1] * groups, *size)
    if kind is ConvKind.WGRAD:
        return (first.shape[1], second.shape[1] // groups, *size)
    pixels = [
        out_size(first.shape[2 + i], padding[i] + padding[2 + i], second.shape[2 + i],
                 stride[i], dilation[i])
        for i in (0, 1)
    ]  # fmt: skip
    return (first.shape[0], second.shape[0], *pixels)


def _split(kind: ConvKind, args: Any) -> tuple[Any, Any, Any, Any, Any]:
    """(first operand, second operand, bias, size, the rest) of an operator's arguments."""
    if kind is ConvKind.FPROP:
        return args[0], args[1], args[2], (), args[3:]
    if kind is ConvKind.DGRAD:
        return args[0], args[1], args[2], args[3], args[4:]
    return args[0], args[1], None, args[2], args[3:]


def _define(kind: ConvKind) -> Any:
    name, head = _OPERATORS[kind]

    def implementation(*args: Any) -> torch.Tensor:
        first, second, bias, size, rest = _split(kind, args)
        stride, padding, dilation, groups, *options = rest
        geometry = (tuple(stride), tuple(padding), tuple(dilation), groups)
        shape = _shape(kind, first, second, size, rest)
        return kernels.run(kind, first, second, shape, bias, geometry, tuple(options))

    def fake(*args: Any) -> torch.Tensor:
        first, second, _, size, rest = _split(kind, args)
        is_last = kernels.channels_last(first) or kernels.channels_last(second)
        shape = _shape(kind, first, second, size, rest)
        return first.new_empty(shape).contiguous(memory_format=kernels.memory_format(is_last))

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        first, second, _, _, ctx.rest = _split(kind, inputs)
        # An operand is needed for the other's gradient only.
        a, b = ctx.needs_input_grad[:2]
        ctx.save_for_backward(first if b else None, second if a else None)
        ctx.sizes = (first.shape[2:], second.shape[2:])
        ctx.channels_last = kernels.channels_last(first) or kernels.channels_last(second)

    operator = torch_library.custom_op(
        f"relay_wgrad::{name}", implementation, mutates_args=(), schema=head + _TAIL
    )
    operator.register_fake(fake)
    operator.register_autograd(_BACKWARD[kind], setup_context=setup_context)
    operator.register_vmap(_batched(kind))
    return _chooser(operator, *_functions(kind, implementation, setup_context))


def _functions(kind: ConvKind, implementation: Any, setup: Any) -> tuple[Any, Any]:
    """The operator as a Function for plain calls, and as one for `torch.func`'s transforms."""

    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> torch.Tensor:
            setup(ctx, args, None)
            return implementation(*args)

        backward = staticmethod(_BACKWARD[kind])

    # With a `setup_context` PyTorch inspects the signature at each call: not for all calls.
    class Transformed(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> torch.Tensor:
            return implementation(*args)

        setup_context = staticmethod(setup)
        backward = staticmethod(_BACKWARD[kind])
        vmap = staticmethod(_batched(kind))

    return Plain, Transformed


def _chooser(operator: Any, plain: Any, transformed: Any) -> Callable[..., torch.Tensor]:
    def call(first: torch.Tensor, second: torch.Tensor, *rest: Any) -> torch.Tensor:
        traced = (
            torch.compiler.is_compiling()
            or type(first) not in _OWN
            or type(second) not in _OWN
            or first.is_meta
            or torch._C._len_torch_dispatch_stack() > 0
        )
        if traced:
            return operator(first, second, *rest)
        if torch._C._are_functorch_transforms_active():
            return transformed.apply(first, second, *rest)
        return plain.apply(first, second, *rest)

    return call


_OWN = (torch.Tensor, torch.nn.Parameter)  # subclasses have dispatch rules of their own


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


def _like_result(ctx: Any, v: torch.Tensor) -> torch.Tensor:
    """The cotangent in the result's memory order, which the gradients then have too."""
    return v.contiguous(memory_format=torch.channels_last) if ctx.channels_last else v


def _backward_fprop(ctx: Any, v: torch.Tensor) -> tuple[Any, ...]:
    v = _like_result(ctx, v)
    data, weight = ctx.saved_tensors
    (pixels, taps), rest = ctx.sizes, ctx.rest
    return (
        dgrad(v, weight, None, list(pixels), *rest) if _needed(ctx, 0) else None,
        wgrad(v, data, list(taps), *rest) if _needed(ctx, 1) and not _frozen else None,
        v.sum((0, 2, 3)) if _needed(ctx, 2) else None,
        *[None] * 7,
    )


def _backward_dgrad(ctx: Any, v: torch.Tensor) -> tuple[Any, ...]:
    v = _like_result(ctx, v)
    grad, weight = ctx.saved_tensors
    (_, taps), rest = ctx.sizes, ctx.rest
    return (
        fprop(v, weight, None, *rest) if _needed(ctx, 0) else None,
        wgrad(grad, v, list(taps), *rest) if _needed(ctx, 1) and not _frozen else None,
        v.sum((0, 2, 3)) if _needed(ctx, 2) else None,
        *[None] * 8,
    )


def _backward_wgrad(ctx: Any, v: torch.Tensor) -> tuple[Any, ...]:
    v = _like_result(ctx, v)
    grad, data = ctx.saved_tensors
    (_, pixels), rest = ctx.sizes, ctx.rest
    return (
        fprop(data, v, None, *rest) if _needed(ctx, 0) else None,
        dgrad(grad, v, None, list(pixels), *rest) if _needed(ctx, 1) else None,
        *[None] * 8,
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


def _batched(kind: ConvKind) -> Callable[..., Any]:
    # The axis that takes b: channels of data and gradient, filters of the weight.
    axes = {
        ConvKind.FPROP: (1, 0, 1), ConvKind.DGRAD: (1, 0, 1), ConvKind.WGRAD: (1, 1, 0),
    }[kind]  # fmt: skip

    def rule(info: Any, in_dims: Any, *args: Any) -> tuple[torch.Tensor, int]:
        first, second, bias, size, rest = _split(kind, args)
        count, dims = info.batch_size, _split(kind, in_dims)
        operands = [
            _folded(t, dim, count, axis)
            for t, dim, axis in zip((first, second), dims, axes, strict=False)
        ]
        stride, padding, dilation, groups, *options = rest
        rest = (stride, padding, dilation, groups * count, *options)
        if kind is ConvKind.FPROP:
            out = fprop(*operands, None, *rest)
        elif kind is ConvKind.DGRAD:
            out = dgrad(*operands, None, size, *rest)
        else:
            out = wgrad(*operands, size, *rest)
        axis = axes[2]
        out = out.unflatten(axis, (count, out.shape[axis] // count))
        if bias is not None:
            bias = bias.expand(count, -1) if dims[2] is None else bias.movedim(dims[2], 0)
            out = out + bias.view(1, count, -1, 1, 1)
        return out, axis

    return rule


def _folded(tensor: torch.Tensor, dim: int | None, count: int, axis: int) -> torch.Tensor:
    if dim is None:
        tensor, dim = tensor.expand(count, *tensor.shape), 0
    return tensor.movedim(dim, axis).flatten(axis, axis + 1)


fprop = _define(ConvKind.FPROP)
dgrad = _define(ConvKind.DGRAD)
wgrad = _define(ConvKind.WGRAD)
