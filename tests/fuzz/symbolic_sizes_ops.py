"""The steps of `symbolic_sizes`, in Relax, in Relay and, as what is right, in PyTorch.

PyTorch refuses most of what has no value: a maximum of nothing, a window that is larger than its
image.  Where it goes its own ways (images without channels, pools of volumes, images without
pixels), the rule is written here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


class NoValueError(ValueError):
    """There is no such value."""


class InRelax:
    """Each step of Relax expressions; `bb` binds them."""

    def __init__(self, bb: Any) -> None:
        from tvm import relax

        self.bb, self.R, self.last = bb, relax.op, False

    def __getattr__(self, name: str) -> Any:
        """A unary operator."""
        function = getattr(self.R.nn, name, None) or getattr(self.R, name)
        return lambda x: self.bb.emit(function(x))

    def conv(self, x: Any, w: Any, rank: int, **window: Any) -> Any:
        layout = {"data_layout": "NHWC", "kernel_layout": "OIHW"} if self.last else {}
        return self.bb.emit(getattr(self.R.nn, f"conv{rank}d")(x, w, **window, **layout))

    def transposed(self, x: Any, w: Any, rank: int, **window: Any) -> Any:
        layout = {"data_layout": "NHWC", "kernel_layout": "IOHW"} if self.last else {}
        return self.bb.emit(getattr(self.R.nn, f"conv{rank}d_transpose")(x, w, **window, **layout))

    def pool(self, kind: str, x: Any, rank: int, size: int, stride: int, padding: int) -> Any:
        more: dict[str, Any] = {"count_include_pad": True} if kind == "avg" else {}
        more |= {"layout": "NHWC"} if self.last else {}
        function = getattr(self.R.nn, f"{kind}_pool{rank}d")
        return self.bb.emit(function(x, size, stride, padding, **more))

    def pad(self, x: Any, mode: str, width: int, rank: int) -> Any:
        return self.bb.emit(self.R.nn.pad(x, _widths(width, rank, self.last), mode))

    def nll(self, x: Any) -> Any:
        from tvm import relax

        first = self.bb.emit(self.R.zeros(relax.ShapeExpr([x.ty.shape.values[0]]), "int64"))
        return self.bb.emit(self.R.nn.nll_loss(x, first))

    def add(self, x: Any, y: Any) -> Any:
        return self.bb.emit(self.R.add(x, y))

    def subtract(self, x: Any, y: Any) -> Any:
        return self.bb.emit(self.R.subtract(x, y))

    def multiply(self, x: Any, y: Any) -> Any:
        return self.bb.emit(self.R.multiply(x, y))

    def softmax(self, x: Any, axis: int) -> Any:
        return self.bb.emit(self.R.nn.softmax(x, axis))

    def log_softmax(self, x: Any, axis: int) -> Any:
        return self.bb.emit(self.R.nn.log_softmax(x, axis))

    def product(self, kind: str, x: Any, y: Any) -> Any:
        if kind == "dense":
            y = self.bb.emit(self.R.permute_dims(y))
        if kind == "einsum":
            return self.bb.emit(self.R.einsum((x, y), "ij,jk->ik"))
        return self.bb.emit(self.R.matmul(x, y))

    def reduce(self, name: str, x: Any, axes: Sequence[int], keepdims: bool) -> Any:
        given: Any = list(axes)
        if name.startswith("arg"):
            given = axes[0] if len(axes) == 1 else None
        return self.bb.emit(getattr(self.R, name)(x, given, keepdims))


class InRelay:
    """Each step of Relay expressions."""

    def __init__(self) -> None:
        from relay_wgrad import relay

        self.relay, self.last = relay, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.relay.nn, name, None) or getattr(self.relay, name)

    def conv(self, x: Any, w: Any, rank: int, **window: Any) -> Any:
        layout = {"data_layout": "NHWC", "kernel_layout": "OIHW"} if self.last else {}
        return getattr(self.relay.nn, f"conv{rank}d")(x, w, **_listed(window, rank), **layout)

    def transposed(self, x: Any, w: Any, rank: int, **window: Any) -> Any:
        layout = {"data_layout": "NHWC", "kernel_layout": "IOHW"} if self.last else {}
        function = getattr(self.relay.nn, f"conv{rank}d_transpose")
        return function(x, w, **_listed(window, rank), **layout)

    def pool(self, kind: str, x: Any, rank: int, size: int, stride: int, padding: int) -> Any:
        function = getattr(self.relay.nn, f"{kind}_pool{rank}d")
        more: dict[str, Any] = {"count_include_pad": True} if kind == "avg" else {}
        more |= {"layout": "NHWC"} if self.last else {}
        window = {"pool_size": size, "strides": stride, "padding": padding}
        return function(x, **_listed(window, rank), **more)

    def pad(self, x: Any, mode: str, width: int, rank: int) -> Any:
        flat = _widths(width, rank, self.last)
        pairs = tuple(zip(flat[::2], flat[1::2], strict=True))
        mode = "edge" if mode == "replicate" else mode
        return self.relay.nn.pad(x, pairs, pad_mode=mode)

    def product(self, kind: str, x: Any, y: Any) -> Any:
        nn = self.relay.nn
        if kind == "einsum":
            return self.relay.einsum([x, y], "ij,jk->ik")
        if kind == "batch":
            return nn.batch_matmul(x, y, transpose_b=False)
        return nn.dense(x, y) if kind == "dense" else nn.matmul(x, y)

    def reduce(self, name: str, x: Any, axes: Sequence[int], keepdims: bool) -> Any:
        if name in ("any", "all"):
            x = self.relay.less(x, self.relay.zeros_like(x))
        return getattr(self.relay, name)(x, axis=list(axes), keepdims=keepdims)


def _listed(window: dict[str, Any], rank: int) -> dict[str, Any]:
    return {k: v if k == "groups" else (v,) * rank for k, v in window.items()}


def _widths(width: int, rank: int, last: bool) -> list[int]:
    """Of each axis' both sides, of pixels alone."""
    pixels = [width] * (2 * rank)
    return [0, 0, *pixels, 0, 0] if last else [0, 0, 0, 0, *pixels]


class InTorch:
    """Each step of tensors in float64."""

    def __init__(self) -> None:
        import torch

        self.torch, self.F, self.last = torch, torch.nn.functional, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.torch, name)

    def channels_second(self, x: Any) -> Any:
        """The images as PyTorch takes them; they must have pixels."""
        x = x.permute(0, 3, 1, 2) if self.last else x
        if not all(x.shape[2:]):
            raise NoValueError(f"an image without pixels: {tuple(x.shape)}")
        return x

    def back(self, x: Any) -> Any:
        """What `channels_second` made, as the program has it."""
        return x.permute(0, 2, 3, 1) if self.last else x

    def conv(
        self, x: Any, w: Any, rank: int, strides: int, padding: int, dilation: int, groups: int
    ) -> Any:
        x = self.channels_second(x)
        sizes = [
            (n + 2 * padding - dilation * (k - 1) - 1) // strides + 1
            for n, k in zip(x.shape[2:], w.shape[2:], strict=True)
        ]
        if min(sizes) < 1:
            raise NoValueError(
                f"a window larger than its image: {tuple(x.shape)}, {tuple(w.shape)}"
            )
        if not x.shape[1]:  # a sum of nothing; PyTorch's result has no channels
            none = x.new_zeros((x.shape[0], w.shape[0], *sizes)) + 0 * w.sum() + 0 * x.sum()
            return self.back(none)
        function = getattr(self.F, f"conv{rank}d")
        return self.back(function(x, w, None, strides, padding, dilation, groups))

    def transposed(
        self, x: Any, w: Any, rank: int, strides: int, padding: int, output_padding: int
    ) -> Any:
        x = self.channels_second(x)
        sizes = [
            (n - 1) * strides - 2 * padding + k + output_padding
            for n, k in zip(x.shape[2:], w.shape[2:], strict=True)
        ]
        if min(sizes) < 1:
            raise NoValueError(f"no pixel comes out: {x.shape}, {w.shape}")
        function = getattr(self.F, f"conv_transpose{rank}d")
        return self.back(function(x, w, None, strides, padding, output_padding))

    def pool(self, kind: str, x: Any, rank: int, size: int, stride: int, padding: int) -> Any:
        outside = {"max": -math.inf, "avg": 0.0}[kind]
        x = self.F.pad(self.channels_second(x), [padding] * (2 * rank), value=outside)
        return self.back(getattr(self.F, f"{kind}_pool{rank}d")(x, size, stride))

    def pad(self, x: Any, mode: str, width: int, rank: int) -> Any:
        """Along one axis after another; PyTorch wants images and channels for it."""
        pixels = range(1, 1 + rank) if self.last else range(2, 2 + rank)
        for axis in pixels:
            size = x.shape[axis]
            if mode == "constant":
                first = [x.new_zeros((*x.shape[:axis], width, *x.shape[axis + 1 :]))]
                x = self.torch.cat([*first, x, *first], axis)
                continue
            if size <= (width if mode == "reflect" else 0):
                raise NoValueError(f"{mode} by {width} of {size}")
            at = self.torch.arange(-width, size + width)
            if mode == "reflect":
                at = size - 1 - (size - 1 - at.abs()).abs()
            x = x.index_select(axis, at.clamp(0, size - 1))
        return x

    def nll(self, x: Any) -> Any:
        return self.F.nll_loss(x, self.torch.zeros(x.shape[0], dtype=self.torch.int64))

    def softmax(self, x: Any, axis: int) -> Any:
        return self.F.softmax(x, axis)

    def log_softmax(self, x: Any, axis: int) -> Any:
        return self.F.log_softmax(x, axis)

    def product(self, kind: str, x: Any, y: Any) -> Any:
        return x @ (y.T if kind == "dense" else y)

    def reduce(self, name: str, x: Any, axes: Sequence[int], keepdims: bool) -> Any:
        choosing = name in ("max", "min", "argmax", "argmin")
        if choosing and not math.prod(x.shape[axis] for axis in axes):
            raise NoValueError(f"{name} of nothing: axes {list(axes)} of {tuple(x.shape)}")
        if name == "mean" and not x.dtype.is_floating_point:
            count = math.prod(x.shape[axis] for axis in axes)
            if not count:
                raise NoValueError(f"a mean of no integers: axes {list(axes)} of {tuple(x.shape)}")
            total = x.sum(tuple(axes), keepdims)
            return self.torch.div(total, count, rounding_mode="trunc")
        if name in ("max", "min"):
            return getattr(x, f"a{name}")(tuple(axes), keepdims)
        if name in ("variance", "std"):
            function = x.var if name == "variance" else x.std
            return function(tuple(axes), correction=0, keepdim=keepdims)
        if name.startswith("arg"):
            if len(axes) == 1:
                return getattr(x, name)(axes[0], keepdims)
            found = getattr(x.flatten(), name)(0)
            return found.reshape((1,) * x.ndim) if keepdims else found
        if name in ("any", "all"):
            x = x < 0
        for axis in sorted(axes, reverse=True):
            x = getattr(x, name)(axis, keepdims)
        return x
