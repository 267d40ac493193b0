"""A first layer's convolution and its weight gradient: in Relax, and by PyTorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import tvm
from tvm import relax

from relay_wgrad import problem
from relay_wgrad.attrs import ConvAttrs
from relay_wgrad.ops.algebra import fprop_call, wgrad_call

DTYPES = {**problem.DTYPES, "tf32": "float32"}


def module(layer: tuple[int, ...], batch: int, dtype: str) -> tvm.IRModule:
    """`main`: (image, filter, gradient of the result) to (result, gradient of the filter).

    layer : channels, filters, side, taps, stride, padding.
    """
    c, k, side, taps, stride, pad = layer
    size = (side + 2 * pad - taps) // stride + 1
    image = relax.Var("image", relax.TensorType((batch, c, side, side), "float32"))
    weight = relax.Var("weight", relax.TensorType((k, c, taps, taps), "float32"))
    dy = relax.Var("dy", relax.TensorType((batch, size, size, k), dtype))
    plain = ConvAttrs((stride,) * 2, (pad,) * 4, data_layout="NHWC", kernel_layout="OHWI",
                      grad_layout="NHWC")  # fmt: skip
    bb = relax.BlockBuilder()

    def last(tensor: Any) -> Any:
        moved = bb.emit(relax.op.permute_dims(tensor, [0, 2, 3, 1]))
        return moved if dtype == "float32" else bb.emit(relax.op.astype(moved, dtype))

    with bb.function("main", [image, weight, dy]):
        with bb.dataflow():
            x, w = last(image), last(weight)
            y = bb.emit(fprop_call(x, w, plain))
            sized = ConvAttrs(**{**vars(plain), "kernel_size": (taps, taps)})
            dw = bb.emit(wgrad_call(dy, x, sized))
            wide = dw if dtype == "float32" else bb.emit(relax.op.astype(dw, "float32"))
            moved = bb.emit(relax.op.permute_dims(wide, [0, 3, 1, 2]))
            both = bb.emit_output(relax.Tuple([y, moved]))
        bb.emit_func_output(both)
    return bb.get()


def by_torch(layer: tuple[int, ...], given: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """What `main` returns of float64."""
    stride, pad = layer[-2:]
    image, weight, dy = given
    y = F.conv2d(image, weight, None, stride, pad)
    dw = torch.nn.grad.conv2d_weight(image, weight.shape, dy.permute(0, 3, 1, 2), stride, pad)
    return y.permute(0, 2, 3, 1), dw
