"""Functions of numbers, orders, places and what PyTorch makes of others: for `op_cases`.

`COMPOSED` has a case for each op of `relay_wgrad.frontend.torch.composed`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as fn
from torch.utils._pytree import tree_leaves

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


def _with_zeros(y: Tensor) -> Tensor:
    return torch.where(y > 0.3, y, 0.0)


CURVES: dict[str, Function] = {
    "angle": lambda y: torch.atan2(y, 2 - y) + torch.atan2(y[:, :1], y[:1]),
    "near nothing": lambda y: (
        1e9 * torch.expm1(1e-9 * y) + 1e9 * torch.log1p(1e-9 * y)
        + torch.expm1(y) + torch.log1p(y * y) + torch.exp2(y)
    ),
    "remainders": lambda y: (
        torch.fmod(y, 0.7) * y + torch.remainder(y, -0.7) * y + torch.remainder(y, y * y + 0.3)
        + torch.fmod(y, y * y + 0.3) + y * (torch.arange(6) % 4)
        + y * ((y > 0).long() * 5 % 3)
    ),
    "what is no number": lambda y: (
        torch.where(torch.isnan(y), 0.0, y) * torch.isfinite(y)
        + torch.where(torch.isinf(y / (y > 0)), y, 2 * y)
    ),
    "products": lambda y: (
        y.prod(1, keepdim=True) + _with_zeros(y).prod(3)[:, :, None] + _with_zeros(y[0, 0]).prod()
        + (1 + y / 9).prod()
    ),
    "running sum": lambda y: y.cumsum(1) * y.cumsum(-1) + y * (y > 0).cumsum(2),
    "x log y": lambda y: torch.xlogy(_with_zeros(y), y * y) + torch.xlogy((y > 0).long(), y * y),
    "norms of other orders": lambda y: (
        y.norm(p=1) + torch.linalg.vector_norm(y, float("inf"), 1).mean()
        + torch.linalg.vector_norm(y, -float("inf"), (2, 3), keepdim=True)
    ),
    "variance and mean": lambda y: (
        torch.std_mean(y, 1)[0] * torch.std_mean(y, 1)[1]
        + torch.var_mean(y, (2, 3), correction=0, keepdim=True)[1][:, 0]
        + torch.var_mean(y)[0] + torch.std_mean(y)[1]
    ),
    "variances by a flag": lambda y: (
        torch.var_mean(y, dim=[1, 2], keepdim=True, unbiased=False)[0]
        * torch.std_mean(y, (3,), True, True)[1]
        + torch.var_mean(y, False)[0] + torch.std_mean(y, unbiased=True)[0] * y.var(False)
        + y.std(unbiased=False) + y.var((0, 1), False, True) * y.std(0)
    ),
    "bounds by tensors": lambda y: (
        torch.clamp_min(y, y.sin()) * torch.clamp_max(y, y.roll(1))
    ),
}  # fmt: skip

ORDERS: dict[str, Function] = {
    "place of the largest": lambda y: (
        y * y.argmax(1, keepdim=True) + y * y.argmin() + y.argmin(2)[:, :, None] * y
        + y * y.argmax()
    ),
    "sorted": lambda y: (
        y.sort(1)[0] * y + y.sort(-1, descending=True)[0].sin() + y.sort(stable=True, dim=2)[1] * y
    ),
    "sorted by another": lambda y: y.gather(3, y.sin().argsort(3)) * y + y * y.argsort(1),
    "the largest few": lambda y: (
        y.topk(2, 1)[0].square().sum((1, 2)) + y.topk(3, -1, largest=False)[0].sum((1, 3))
        + (y.topk(1, 2)[1] * y).sum((1, 2))
    ),
}  # fmt: skip


def _grids(y: Tensor) -> Tensor:
    grid = torch.tanh(y.permute(0, 2, 3, 1)[..., :2]) * 1.2
    kinds = [
        ("bilinear", "zeros", False), ("bilinear", "border", True), ("bilinear", "border", False),
        ("nearest", "zeros", True), ("bilinear", "reflection", True),
        ("bilinear", "reflection", False),
    ]  # fmt: skip
    read = [fn.grid_sample(y, 2 * grid, *kind, align_corners=to) for *kind, to in kinds]
    return torch.cat(read, 1).sum(1)


def _volume_grids(y: Tensor) -> Tensor:
    volume = y.unflatten(1, (2, 2))
    grid = 1.2 * torch.tanh(torch.stack([volume[:, 0], 2 * volume[:, 1], volume.sum(1)], -1))
    kinds = (("bilinear", "zeros"), ("bilinear", "reflection"), ("nearest", "border"))
    read = [fn.grid_sample(volume, grid, *kind, align_corners=False) for kind in kinds]
    return torch.cat(read, 1).sum(1)


_TWICE = torch.tensor([2, 0, 2])


def _put(y: Tensor) -> Tensor:
    z = y * 2
    z[:, torch.tensor([0, 3])] = y[:, :2].sin()
    z[torch.tensor([1, 0]), torch.tensor([1, 2])] = y[0, 0]
    z[..., torch.tensor([[1], [4]])] = 0.5
    return z


def _masked(y: Tensor) -> Tensor:
    z = y * 2
    z[z > 1] = 0.0
    z[y < -1] = y.mean()
    z[y[..., 0] > 0.5] = y[0, 0, 0]
    return z


PLACES: dict[str, Function] = {
    "added at places": lambda y: (
        y.index_add(1, _TWICE, y[:, 1:].sin(), alpha=2)
        + y.index_put((_TWICE % 2, _TWICE), y[0, 0], accumulate=True)
        + torch.zeros_like(y).scatter_add(2, _TWICE[:, None].expand(2, 4, 3, 6), y[:, :, :3].sin())
    ),
    "grids": _grids,
    "grids of volumes": _volume_grids,
    "put at places": _put,
    "put where a mask holds": _masked,
    "scattered": lambda y: (
        torch.zeros_like(y).scatter(1, _TWICE[:2, None, None].expand(2, 2, 6, 6), y[:, 1:3])
        + y.scatter(3, torch.tensor([5, 1]).expand(2, 4, 6, 2), 0.25)
    ),
    "scattered by classes": lambda y: (
        y.scatter(1, y.argmax(1, keepdim=True), 0.5)
        + y.scatter_add(2, y.argmin(2, keepdim=True), y[:, :, :1].sin())
        + y * torch.zeros(y.shape, dtype=torch.bool).scatter(3, y.argmax(3, keepdim=True), 1)
    ),
}  # fmt: skip


class Recurrent(nn.Module):
    """LSTM, GRU and both RNNs of an image's rows, with dropout between the layers of two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        kinds = [
            nn.LSTM(6, 3, batch_first=True, bidirectional=True),
            nn.LSTM(6, 3, 2, proj_size=2, dropout=0.3),
            nn.GRU(6, 3, 2, batch_first=True, dropout=0.4),
            nn.RNN(6, 3), nn.RNN(6, 3, nonlinearity="relu"),
        ]  # fmt: skip
        self.layers = nn.ModuleList(kinds).double()

    def forward(self, y: Tensor) -> Tensor:
        """The mean square of all their results, last states too."""
        made = [x for layer in self.layers for x in tree_leaves(layer(y[:, 0]))]
        return torch.cat([x.flatten() for x in made]).square().mean()


def _labels(y: Tensor) -> Tensor:
    return (y[:, 0, 0, 0] > 0).long()


COMPOSED: dict[str, Function] = {
    "channels": lambda y: fn.channel_shuffle(y, 2) * torch.rot90(y, 1, (2, 3)),
    "counted": lambda y: (
        y * (y > 0).any() + y * (y > 0).any(1, keepdim=True)
        + y * (y > -1).all() + y * (y > -1).all(1, keepdim=True) + y * (y > 1).any((2, 3))[0, 0]
        + y * torch.bucketize(y.detach(), torch.arange(-1.0, 2.0))
    ),
    "differences": lambda y: (
        y.diff(dim=2).square().mean() + y.diff(2, 3, prepend=y[..., :1]).sin().mean()
    ),
    "extremes": lambda y: torch.aminmax(y, dim=1)[0] * torch.aminmax(y, dim=2)[1][:, :1],
    "grids of matrices": lambda y: fn.grid_sample(
        y, fn.affine_grid(y[:, :2, :2, :3].mean(1), [2, 4, 5, 3], align_corners=False),
        align_corners=False,
    ),
    "kinds of logarithm": lambda y: (
        torch.logaddexp(y, 2 * y.sin()) + y.logsumexp(1, keepdim=True) + y.logsumexp((2, 3)).mean()
        + torch.logit(torch.sigmoid(y))
    ),
    "losses": lambda y: (
        fn.kl_div(torch.log_softmax(y, 1), torch.softmax(2 * y, 1), reduction="batchmean")
        + fn.kl_div(torch.log_softmax(y, 1), torch.log_softmax(2 * y, 1), None, None, "sum", True)
        + fn.poisson_nll_loss(y, y * y) + fn.soft_margin_loss(y, torch.sign(y.detach()))
        + fn.triplet_margin_loss(y, 2 * y.sin(), 3 * y.cos())
        + fn.cosine_embedding_loss(y[0, 0], y[1, 1], torch.tensor([1, -1, 1, -1, 1, 1]), margin=0.1)
        + fn.margin_ranking_loss(y[0], y[1], torch.sign(y[0].detach()), margin=0.2)
    ),
    "made of nothing": lambda y: (
        y @ torch.eye(6, dtype=y.dtype) * torch.linspace(0, 1, 6)
        + torch.meshgrid(y[0, 0, 0], y[0, 0, 1], indexing="ij")[0]
        + torch.ops.aten.meshgrid.default([y[0, 0, 0], y[0, 0, 1]])[1]
    ),
    "matrices": lambda y: (
        torch.outer(y[0, 0, 0], y[0, 0, 1]) + torch.tril(y) * torch.triu(y, -1)
        + torch.diag(y[0, 0, 0]) + torch.diag_embed(y[:, :, 0]) + torch.tril(y, 2)
        + torch.kron(y[0, 0, :2, :2], y[0, 0, :3, :3])
        + torch.tensordot(y, y, dims=([0, 1], [0, 1]))[0, :, 0]
        + torch.linalg.cross(y[..., :3], 2 * y[..., 3:].sin()).mean()
    ),
    "one hot of labels": lambda y: y[:, :, 0] * fn.one_hot(_labels(y), 6)[:, None],
    "pools": lambda y: fn.adaptive_max_pool2d(y, 3) * fn.adaptive_max_pool1d(y[:, 0], 3)[0, 0],
    "similar": lambda y: (
        fn.cosine_similarity(y, 2 * y + 1) + fn.pairwise_distance(y[:, 0], y[:, 1])[:, None]
        + torch.lerp(y, y * y, 0.3).mean(1) + torch.lerp(y, y.sin(), torch.sigmoid(y)).sum(1)
    ),
    "small ones": lambda y: (
        torch.frac(3 * y) + torch.sgn(y) * y + torch.deg2rad(y) + torch.rad2deg(y) / 50
        + y * (y.detach() // 0.3)
    ),
    "taken along": lambda y: (
        y.take_along_dim(y.argmax(1, keepdim=True), 1) + torch.true_divide(y, y * y + 1)
    ),
}  # fmt: skip
