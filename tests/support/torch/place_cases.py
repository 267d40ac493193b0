"""More PyTorch ops to import, of images (2, 4, 6, 6): sizes, borders, places, products."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.nn import functional as fn

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


def _places(*shape: int, below: int) -> Tensor:
    """Integers that repeat and skip, the same each time."""
    count = math.prod(shape)
    return (torch.arange(count) * 5 + 2).remainder(below).reshape(shape)


RESIZING: dict[str, Function] = {
    "bicubic": lambda y: (
        fn.interpolate(y, size=(9, 5), mode="bicubic").sum((2, 3))
        + fn.interpolate(y, scale_factor=1.7, mode="bicubic", align_corners=True).mean((2, 3))
    ),
    "bilinear": lambda y: (
        fn.interpolate(y, scale_factor=2, mode="bilinear").mean((2, 3))
        + fn.interpolate(y, size=(7, 3), mode="bilinear", align_corners=True)[:, :, 1, 2]
        + fn.interpolate(y, scale_factor=(1.3, 0.6), mode="bilinear")[:, :, 2, 1]
    ),
    "antialiased": lambda y: (
        fn.interpolate(y, size=(3, 4), mode="bilinear", antialias=True).square().mean((2, 3))
        + fn.interpolate(y, size=(4, 9), mode="bicubic", antialias=True).square().mean((2, 3))
    ),
    "one axis": lambda y: (
        fn.interpolate(y.flatten(2), size=25, mode="linear").square().mean()
        + fn.interpolate(y.flatten(2), scale_factor=0.4).square().mean()
        + fn.interpolate(y.flatten(2), size=25, mode="nearest-exact").square().mean()
        + fn.adaptive_avg_pool1d(y.flatten(2), 7).square().mean()
        + fn.adaptive_avg_pool1d(y.flatten(2), 1).square().mean()
    ),
    "nearest": lambda y: (
        fn.interpolate(y, scale_factor=2).square().mean((2, 3))
        + fn.interpolate(y, size=(4, 11)).square().mean((2, 3))
        + fn.interpolate(y, size=(4, 11), mode="nearest-exact").square().mean((2, 3))
    ),
    "volumes": lambda y: (
        fn.interpolate(y[:, None], size=(3, 7, 9), mode="trilinear").square().mean()
        + fn.interpolate(y[:, None], size=(3, 7, 9)).square().mean()
        + fn.interpolate(y[:, None], size=(3, 7, 9), mode="nearest-exact").square().mean()
    ),
    "uneven windows": lambda y: (
        fn.adaptive_avg_pool2d(y, (4, 5)).square().mean() + fn.adaptive_avg_pool2d(y, (None, 8))
    ),
    "borders": lambda y: (
        fn.pad(y, (2, 1, 3, 0), mode="reflect").square().mean((2, 3))
        + fn.pad(y, (2, 1, 3, 0), mode="replicate").square().mean((2, 3))
        + fn.pad(y, (2, 1, 3, 0), mode="circular").square().mean((2, 3))
        + torch.ops.aten.reflection_pad2d(y, [1, 0, 2, 1]).square().mean()
        + torch.ops.aten.replication_pad1d(y.flatten(2), [1, 0]).square().mean()
        + torch.ops.aten.reflection_pad1d(y.flatten(2), [1, 2]).square().mean()
        + torch.ops.aten.replication_pad2d(y, [1, 0, 2, 1]).square().mean()
    ),
    "cropped": lambda y: fn.pad(y, (-1, 2, 1, -2)).square().mean() + fn.pad(y, (-1, -1)).mean(),
    "windows": lambda y: y.unfold(3, 2, 2).mean(-1).sum(3) + y.unfold(2, 3, 2)[:, :, 1].mean(-1),
    "pools of one axis": lambda y: (
        fn.avg_pool1d(y.flatten(2), 3, 2, 1).square().mean()
        + fn.max_pool1d(y.flatten(2), 3, padding=1).square().mean()
        + fn.max_pool1d(y.flatten(2), 2, 1).square().mean()
        + fn.max_pool2d(y, 2, return_indices=True)[0].square().mean()
    ),
    "columns, summed": lambda y: fn.fold(
        fn.unfold(y, (3, 2), padding=(1, 0), stride=2) * y[:, :1].flatten(2)[..., :9].sin(),
        (6, 6), (3, 2), padding=(1, 0), stride=2,
    ),
    "columns": lambda y: fn.unfold(y, (3, 2), dilation=(1, 2), padding=(1, 0), stride=2),
}  # fmt: skip

INDEXING: dict[str, Function] = {
    "assigned": lambda y: _assigned(y) + _zeroed(y),
    "by places": lambda y: (
        y[:, torch.tensor([0, 2, 1, -1])].square().mean((2, 3))
        + y[:, :, _places(3, 2, below=6), _places(2, below=6)].square().mean((2, 3))
        + y[:, _places(2, below=4), :, _places(2, below=6)].square().sum((1, 2)).mean()
    ),
    "by places that are computed": lambda y: (
        y[:, (y[0, :, 0, 0] > 0).long() - 1].square().mean((2, 3))
        + y[(y[:, 0, 0, 0] > 0).long(), :, (y[:, 1, 0, 0] > 0).long() * 3].mean()
    ),
    "flip": lambda y: y.flip(3) * 2 + y.flip((1, 2)),
    "gather": lambda y: (
        y.gather(1, _places(2, 2, 6, 6, below=4)).sum(1, keepdim=True)
        + y.gather(3, (y > 0).long() * 4)
    ),
    "one hot": lambda y: y * fn.one_hot(torch.arange(6), 6) * torch.arange(6).cumsum(0),
    "embedding of places that are computed": lambda y: fn.embedding(
        (y[:, 0, 0] > 0).long(), y[0, 0]
    ),
    "embedding whose row has no gradient": lambda y: fn.embedding(
        torch.arange(4) % 3, y.flatten(1)[:, :9].reshape(6, 3), padding_idx=1
    ),
    "select by places that are computed": lambda y: y.index_select(2, (y[0, 0, 0] > 0).long()),
    "parts that are nothing": lambda y: torch.cat([y[:, :0], y * 2, y[:, 4:]], 1),
    "repeated": lambda y: (
        y.repeat_interleave(2, 1)[:, 1:5]
        + torch.tile(y, (2, 1, 2))[:, 2:6, :, 3:9]
        + y.repeat_interleave(3)[:36].reshape(6, 6)
    ),
    "triangle": lambda y: y * torch.tril(torch.ones(6, 6, dtype=y.dtype)),
    "unshuffle": lambda y: fn.pixel_unshuffle(y, 2),
}


def _assigned(y: Tensor) -> Tensor:
    z = y.clone()
    z[:, 0] = 1.0
    z[:, 1:3, ::2] = y[:, :2, 1::2] * 3
    z[:, :, 2:4] = 2 * y[:, :, :2]
    return z


def _zeroed(y: Tensor) -> Tensor:
    z = y * 2
    z[:, 2:].zero_()
    return z


PRODUCTS: dict[str, Function] = {
    "autocast, off": lambda y: _without_autocast(y),
    "baddbmm": lambda y: torch.baddbmm(y[0], y[0], y[1], alpha=2, beta=3).square(),
    "einsum": lambda y: (
        torch.einsum("nchw,ndhw->ncd", y, y).mean()
        + torch.einsum("nchw,cw->nh", y, y[0, :, 0]).mean()
        + torch.einsum("...hw,...wv->...hv", y, y).mean((2, 3))
        + torch.einsum("nchw,nc,w", y, y[..., 0, 0], y[0, 0, 0]).mean()
        + torch.einsum("nchw->whc", y).square().mean()
    ),
    "masked attention": lambda y: (
        fn.scaled_dot_product_attention(y, y * 2, y + 1, is_causal=True)
        + fn.scaled_dot_product_attention(y, y, y, attn_mask=y.sin())
        + fn.scaled_dot_product_attention(
            y, y, y, attn_mask=torch.arange(36).reshape(6, 6) % 3 < 2, scale=0.3
        )
        + fn.scaled_dot_product_attention(y, y[:, :2], y[:, 2:], enable_gqa=True)
    ),
    "vectors": lambda y: (
        y * torch.dot(y[0, 0, 0], y[0, 1, 0]) + y * torch.vdot(y[0, 0, 0], y[1, 1, 0])
        + torch.mv(y[0, 0], y[0, 1, 0]) + torch.addmv(y[1, 0, 0], y[0, 0], y[0, 1, 0], alpha=2)
    ),
    # Rows of which nothing is kept are 0, by a constant, by what is computed, and by floats.
    "attention to nothing": lambda y: (
        fn.scaled_dot_product_attention(
            y, y * 2, y, attn_mask=torch.arange(6)[:, None].expand(6, 6) > 2
        )
        + fn.scaled_dot_product_attention(y, y, y + 1, attn_mask=y.mean(3, keepdim=True) > 0.1)
        + fn.scaled_dot_product_attention(
            y, y, y.sin(), attn_mask=y[0, 0].masked_fill(y[1, 1, :, :1] > 0, -torch.inf)
        )
    ),
    "rounded quotient": lambda y: (
        y + torch.div(y, 0.3, rounding_mode="floor")
        + torch.div(y, y * y + 1, rounding_mode="trunc")
        + torch.ops.aten.div.Scalar_mode(y, 3, rounding_mode="trunc")
        + torch.div(y, 3) * torch.div((y > 0).long() * 5, 3, rounding_mode="floor")
    ),
    "sums of products": lambda y: (
        torch.addcmul(y, y, y.sin(), value=2) + torch.addcdiv(y, y, y * y + 1)
    ),
    "erf": lambda y: torch.erf(y) * torch.clip(y, max=0.2) + torch.clip(y, -y.abs(), y * y),
    "instance norm": lambda y: fn.instance_norm(y, weight=y[0, :, 0, 0], bias=y[0, :, 0, 1]),
    "powers of a number, and one or the other": lambda y: (
        2.0**y + y * ((y > 0) ^ (y > 1)) + y * torch.logical_xor(y > 0, y < 1)
        + y * torch.bitwise_xor(y > 0.5, y < 1)
    ),
    "rms norm": lambda y: fn.rms_norm(y, (6,), y[0, 0, 0]) + fn.rms_norm(y, (6, 6), eps=1e-3),
    "type as": lambda y: (y > 0).type_as(y) * y,
}  # fmt: skip


def _without_autocast(y: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        z = y @ y
    return z * y
