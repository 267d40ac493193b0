"""PyTorch ops to import: each a function of images (2, 4, 6, 6); and autograd with given draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as fn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.records import BY_PYTORCH

from .curve_cases import COMPOSED, CURVES, ORDERS, PLACES
from .place_cases import INDEXING, PRODUCTS, RESIZING
from .volume_cases import VOLUMES

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]


def _positive(y: Tensor) -> Tensor:
    return y * y + 0.5


def _like(y: Tensor, *shape: int) -> Tensor:
    """Fixed numbers that depend on nothing."""
    count = int(np.prod(shape or y.shape))
    return torch.sin(torch.arange(count, dtype=y.dtype) + 1).reshape(shape or y.shape)


def _labels() -> Tensor:
    """Classes of pixels."""
    return torch.tensor([i * 7 % 11 % 4 for i in range(72)]).reshape(2, 6, 6)


MATH: dict[str, Function] = {
    "add alpha": lambda y: torch.add(y, y * y, alpha=3) + 2,
    "arithmetic": lambda y: (3 - y) / (y * y + 1) - y / 2 + 5 / _positive(y),
    "bool to float": lambda y: y * (y > 0.2).to(y.dtype),
    "clamp": lambda y: y.clamp(-0.5, 0.7) + y.clamp(min=-0.3) + y.clamp(max=0.3),
    "clamp min max": lambda y: torch.clamp_min(y, -0.2) * torch.clamp_max(y, 0.4),
    "clamp by tensors": lambda y: y.clamp(_like(y) - 1, _like(y) + 1),
    "clone": lambda y: y.clone().contiguous() * 2,
    "compare truths": lambda y: (
        y * ((y > 0) == (_like(y) > 0))
        + 2 * y * ((y > 0) != (_like(y) > 0))
        + 3 * y * ((y > 0) < (_like(y) > 0))
        + 4 * y * ((y > 0) >= (_like(y) > 0))
    ),
    "clamp integers": lambda y: (
        y * torch.arange(6).clamp(1, 3) * torch.arange(6).clamp(max=4) * torch.arange(6).clamp(3, 2)
        + y * torch.arange(6).clamp(0.5, 3.5)
    ),
    "elu": lambda y: fn.elu(y, 0.7),
    "equal to a number": lambda y: y + (y.round() == 1) * y,
    "gelu by tanh": lambda y: fn.gelu(y, approximate="tanh"),
    "hard": lambda y: fn.hardsigmoid(y) + fn.hardswish(y) + fn.hardtanh(y) + fn.relu6(4 * y),
    "integers": lambda y: y * torch.arange(6) + y * torch.arange(1, 7) / torch.arange(2, 14, 2),
    "leaky": lambda y: fn.leaky_relu(y, 0.2),
    "logic of numbers": lambda y: y * torch.logical_not(y.round()),
    "masked fill": lambda y: y.masked_fill(y > 0.5, -1.0) + y.masked_fill(y < 0, y.new_ones(())),
    "powers": lambda y: y**2 + y**3 + _positive(y) ** 0.5 + _positive(y) ** _like(y) + y.square(),
    "rsub": lambda y: torch.rsub(y, 2, alpha=3) + torch.ops.aten.sub.Scalar(y, 2, 3),
    "selu": fn.selu,
    "softmax": lambda y: y.softmax(1) + torch.log_softmax(y, -1),
    "through float32": lambda y: y * (y.float().double() > 0),
    "through an integer": lambda y: y * (3 * y).to(torch.int64).to(y.dtype),
    "where numbers": lambda y: (
        torch.where(y > 0, 1.0, 0.5) * torch.where(y < 1, y, 0.5) * torch.where(y < 1, 2.0, y)
    ),
}

ACTIVATIONS: dict[str, Function] = {
    "amax": lambda y: y.amax(1) + y.amin((2, 3), keepdim=True).sum() + y.max() * y.min(),
    "celu": lambda y: fn.celu(y, 0.6),
    "fmax": lambda y: torch.fmax(y, _like(y)) + torch.fmin(y, 0.5 * _like(y)),
    "gelu": fn.gelu,
    "glu": lambda y: fn.glu(y, 1),
    "log sigmoid": lambda y: fn.logsigmoid(y) + fn.mish(y) + fn.softplus(y, 2),
    "max by axis": lambda y: y.max(1)[0] + y.min(2, keepdim=True)[0][:, 0],
    "prelu": lambda y: fn.prelu(y, _like(y, 4)) + fn.rrelu(y),
    "shrink": lambda y: fn.hardshrink(y) + fn.softshrink(y) + fn.threshold(y, 0.1, 2.0),
}

SUMS: dict[str, Function] = {
    "attention": lambda y: fn.scaled_dot_product_attention(y, y * 2, y + 1),
    "cross entropy": lambda y: fn.cross_entropy(y.mean((2, 3)), torch.arange(2)),
    "cross entropy, ignored": lambda y: fn.cross_entropy(
        y.mean((2, 3)), torch.arange(2), ignore_index=1, reduction="sum"
    ),
    "distances": lambda y: (
        fn.mse_loss(y, _like(y)) + fn.l1_loss(y, _like(y), reduction="sum")
        + fn.mse_loss(y, 2 * y, reduction="none").mean()
    ),
    "cross entropy, of pixels": lambda y: (
        fn.cross_entropy(
            y, _labels(), weight=_like(y, 4) + 2, ignore_index=2, label_smoothing=0.2
        )
        + fn.cross_entropy(y, _labels(), reduction="none").mean()
        + fn.cross_entropy(y, _labels(), _like(y, 4) + 2, reduction="sum")
        + fn.cross_entropy(y[0, :, 0, 0], torch.tensor(3))
    ),
    "cross entropy, smoothed": lambda y: (
        fn.cross_entropy(y.mean((2, 3)), torch.arange(2), label_smoothing=0.1)
        + fn.cross_entropy(y.mean((2, 3)), torch.arange(2), weight=torch.arange(4) + y.new_ones(4))
    ),
    "cross entropy, of probabilities": lambda y: (
        fn.cross_entropy(y, torch.softmax(_like(y) + y, 1), _like(y, 4) + 2, label_smoothing=0.3)
        + fn.nll_loss(torch.log_softmax(y, 1), _labels(), ignore_index=1)
    ),
    "bce": lambda y: (
        fn.binary_cross_entropy_with_logits(40 * y, torch.sigmoid(_like(y)))
        + fn.binary_cross_entropy_with_logits(
            y, torch.sigmoid(y), _like(y, 4, 1, 1) + 1, reduction="sum", pos_weight=_like(y, 6) + 2
        )
    ),
    "linear": lambda y: fn.linear(y, _like(y, 5, 6), _like(y, 5)),
    "matmul": lambda y: y @ y.transpose(2, 3) + y.sum() + y.mean(),
    "matrices": lambda y: torch.mm(y[0, 0], y[1, 1].t()) + torch.bmm(y[0], y[1])[0],
    "addmm": lambda y: torch.addmm(y[0, 0, 0], y[0, 1], y[1, 0]),
    "mean": lambda y: y.mean((2, 3)) + y.mean(2, keepdim=True).sum((1, 3))[:, :1],
    "losses with rounded corners": lambda y: (
        fn.smooth_l1_loss(y, 2 * y, beta=0.5) + fn.huber_loss(y, 2 * y, "sum", 0.7)
        + fn.smooth_l1_loss(y, _like(y), reduction="none").mean()
    ),
    "norms": lambda y: y.norm() + fn.normalize(y, dim=1),
    "sum": lambda y: y.sum(1) * y.sum((0, 1), keepdim=True)[0],
    "variance": lambda y: (
        y.var() + y.std((2, 3)) + y.var(1, unbiased=False).sum() + y.std(2, correction=0).mean()
    ),
}  # fmt: skip

LAYERS: dict[str, Function] = {
    "batch norm": lambda y: fn.batch_norm(y, None, None, training=True),
    "conv1d": lambda y: fn.conv1d(y.flatten(2), _like(y, 2, 4, 3), padding=1),
    "conv1d same": lambda y: fn.conv1d(y.flatten(2), _like(y, 2, 4, 3), padding="same"),
    "conv2d": lambda y: fn.conv2d(y, _like(y, 6, 2, 3, 2), stride=(2, 1), padding=1, groups=2),
    "conv2d same": lambda y: fn.conv2d(y, _like(y, 2, 4, 3, 3), padding="same", dilation=2),
    "transposed": lambda y: fn.conv_transpose2d(y, _like(y, 4, 2, 3, 3), stride=2, padding=1),
    "transposed 1-D": lambda y: fn.conv_transpose1d(y.flatten(2), _like(y, 4, 2, 3), stride=2),
    "group norm": lambda y: fn.group_norm(y, 2, _like(y, 4), _like(y, 4)),
    "layer norm": lambda y: fn.layer_norm(y, (6, 6), _like(y, 6, 6)) + fn.layer_norm(y, (6,)),
    "weight norm": lambda y: (
        torch._weight_norm(y, y[:1].sin(), 1)[:, :, :1]
        + torch._weight_norm(y, y[:, :1, :1, :1], 0)
        + torch._weight_norm(y, y[0, 0, 0, 0], -1)
    ),
    "native norms": lambda y: (
        torch.native_layer_norm(y, (6,), None, None, 1e-5)[0]
        + torch.native_group_norm(y, _like(y, 4), None, 2, 4, 36, 2, 1e-5)[0]
    ),
    "average pool": lambda y: fn.avg_pool2d(y, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "adaptive pool": lambda y: fn.adaptive_avg_pool2d(y, (2, 3)) + y.mean((2, 3), keepdim=True),
    "max pool": lambda y: fn.max_pool2d(y, 3, 2, 1),
    "pools": lambda y: (
        fn.avg_pool2d(y, 3, 2, 1).sum((2, 3)) * fn.max_pool2d(y, 4, 3, ceil_mode=True).sum((2, 3))
    ),
    "pad": lambda y: fn.pad(y, (1, 0, 2, 1), value=0.5) + torch.constant_pad_nd(y, (0, 1, 3, 0)),
}

SHAPES: dict[str, Function] = {
    "broadcast": lambda y: torch.broadcast_tensors(y, _like(y, 6))[1] * y + y[:, :1].expand_as(y),
    "cat": lambda y: torch.cat([y, 2 * y, torch.arange(6).expand(2, 1, 6, 6)], 1),
    "cat one": lambda y: torch.cat([y], 1) * 2,
    "chunk": lambda y: torch.mul(*y.chunk(2, 1)),
    "embedding": lambda y: fn.embedding(1 - torch.arange(2), y.flatten(1)),
    "filled": lambda y: (
        y * torch.full_like(y, 0.3) + torch.zeros_like(y) + torch.ones(6) * torch.full((6,), 2)
        + y.new_full((6,), 0.5) + y.new_zeros(6) + torch.ones_like(y) * torch.zeros(6)
        + torch.empty_like(y).fill_(2) + torch.scalar_tensor(2.0)
    ),
    "filled by a tensor": lambda y: y * torch.fill(torch.empty(6), torch.ones(())),
    "flatten": lambda y: y.flatten(1).unflatten(1, (4, 36)),
    "index select": lambda y: y.index_select(2, torch.arange(3)),
    "permute": lambda y: y.permute(0, 2, 3, 1).reshape(2, -1, 4).transpose(0, 1),
    "pixel shuffle": lambda y: fn.pixel_shuffle(y, 2),
    "repeat": lambda y: y.repeat(2, 1, 1, 2, 1),
    "roll": lambda y: torch.roll(y, (2, -1), (2, 3)) + torch.roll(y, 5),
    "select": lambda y: y[:, 0] * y[..., -1, :, None].sum(1) + y[1, 2],
    "slice": lambda y: y[:, 1:3, ::2, :-1] * y[:, 2:, 1::2, 1:],
    "split": lambda y: torch.split(y, [1, 3], 1)[1] * torch.split(y, 3, 2)[0].sum(),
    "squeeze": lambda y: (
        y.mean((2, 3), keepdim=True).squeeze(-1).unsqueeze(1).squeeze()
        + y[:, :, :1, :1].squeeze((2, 3))
    ),
    "stack": lambda y: torch.stack([y, 3 * y], 2),
    "unbind": lambda y: torch.mul(*y.unbind(0)),
    "unsafe view": lambda y: torch.ops.aten._unsafe_view(y, (2, -1)),
    "view": lambda y: y.view(2, -1)[:, None].mT @ y.view(2, 1, -1)[..., :4],
}  # fmt: skip


def _straight(y: Tensor) -> Tensor:
    return y + (torch.round(y) - y).detach()


def _nested(y: Tensor) -> Tensor:
    with torch.no_grad():
        a = y * 2
        with torch.enable_grad():
            b = a * y
            with torch.no_grad():
                c = torch.relu(b)
        d = c + b
    return y * a + b * c + d


def _frozen(y: Tensor) -> Tensor:
    with torch.no_grad():
        scale = y.abs().mean()
        shift = torch.tanh(y)
    return y / scale + shift


def _filled_region(y: Tensor) -> Tensor:
    with torch.no_grad():
        mask = torch.zeros_like(y)
        mask.add_(1).mul_(y > 0)
    return y * mask


def _in_place(y: Tensor) -> Tensor:
    z = y * 1
    z += y
    z.mul_(2)
    return z.relu_()


def _through_no_grad(y: Tensor) -> Tensor:
    @torch.no_grad()
    def quantized(z: Tensor) -> Tensor:
        return torch.round(z * 4) / 4

    return y * quantized(y)


def _given_back(y: Tensor) -> Tensor:
    """Ops that give their operand back as it is: y itself, whose gradient is not stopped."""
    with torch.no_grad():
        same = fn.dropout(y.to(y.dtype).contiguous(), 0.3, False)
        whole = torch.broadcast_tensors(y, y[:1])[0]
        scale = y.to(y.dtype).abs() + y.view(y.shape)
    return y * scale + same * whole.sin()


STOPS: dict[str, Function] = {
    "detach": lambda y: y * y.detach(),
    "detach all": lambda y: torch.sigmoid(y).detach() + 0.1 * y,
    "straight through": _straight,
    "no_grad": _frozen,
    "no_grad, decorated": _through_no_grad,
    "no_grad and enable_grad": _nested,
    "no_grad, filled in place": _filled_region,
    "no_grad, given back": _given_back,
    "in place": _in_place,
}


def _drop_path(y: Tensor) -> Tensor:
    """As timm's, and torchvision's StochasticDepth."""
    return y + y.sin() * y.new_empty((2, 1, 1, 1)).bernoulli_(0.7).div_(0.7)


class Drop(nn.Module):
    """torchvision's StochasticDepth, with a branch."""

    def forward(self, y: Tensor) -> Tensor:
        """y, and its sine or not."""
        if not self.training:
            return y + y.sin()
        kept = torch.empty([y.shape[0], 1, 1, 1], dtype=y.dtype)
        return y + y.sin() * kept.bernoulli_(0.8).div_(0.8)


RANDOM: dict[str, Function] = {
    "alpha dropout": lambda y: fn.alpha_dropout(y, 0.3, True),
    "bernoulli": lambda y: y * torch.bernoulli(torch.sigmoid(y)),
    "bernoulli by a tensor": lambda y: y * torch.empty_like(y).bernoulli_(torch.sigmoid(y)),
    "drop path": _drop_path,
    "dropout": lambda y: fn.dropout(y, 0.3, True),
    "dropout of attention": lambda y: fn.scaled_dot_product_attention(y, 2 * y, y, dropout_p=0.3),
    "dropout 2d": lambda y: fn.dropout2d(y, 0.3, True),
    "dropout in place": lambda y: fn.dropout(y * 2, 0.3, True, inplace=True),
    "normal": lambda y: y + torch.normal(y, 0.5) + y * torch.normal(1.0, 2.0, (6,)),
    "normal_": lambda y: y * torch.empty_like(y).normal_(1, 2),
    "rand": lambda y: y * torch.rand(6) + y * torch.rand_like(y),
    "rand compared": lambda y: y * (torch.rand_like(y) < 0.3),
    "randint": lambda y: (
        y * torch.randint(3, (6,)) + y * torch.randint(1, 3, (6,)) + y * torch.randint_like(y, 5)
        + y * torch.randint_like(y, 2, 5)
    ),
    "randn": lambda y: y + torch.randn_like(y) * torch.randn(6),
    "uniform_": lambda y: y * torch.empty(6).uniform_(1, 2),
}  # fmt: skip

GROUPS: dict[str, dict[str, Function]] = {
    "records": BY_PYTORCH, "math": MATH, "activations": ACTIVATIONS, "sums": SUMS,
    "layers": LAYERS, "shapes": SHAPES, "stops": STOPS, "random": RANDOM, "resizing": RESIZING,
    "indexing": INDEXING, "products": PRODUCTS, "volumes": VOLUMES, "curves": CURVES,
    "orders": ORDERS, "places": PLACES, "composed": COMPOSED,
}  # fmt: skip
TAKEN: dict[str, Function] = {name: f for some in GROUPS.values() for name, f in some.items()}
"""All that is imported."""


class Given(TorchDispatchMode):
    """Eager PyTorch with given numbers in the place of random ones, below autograd, in order."""

    def __init__(self, draws: list[tuple[Any, np.ndarray[Any, Any]]]) -> None:
        super().__init__()
        self.draws = list(draws)

    def next(self, p: float = 1.0) -> Tensor:
        if not self.draws:
            raise LookupError("PyTorch draws more random numbers than the graph has inputs")
        spec, value = self.draws.pop(0)
        return torch.tensor(np.rint(value * p) if spec.kind == "mask" else value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.partition(".")[0]
        if name == "bernoulli_":
            p = args[1] if len(args) > 1 else 0.5  # PyTorch leaves out what is the default
            made = self.next(1.0 if isinstance(p, Tensor) else p)
            return args[0].copy_(made < p if isinstance(p, Tensor) else made)
        if name == "bernoulli":
            return (self.next() < args[0]).to(args[0].dtype)
        if name == "native_dropout":
            made = self.next(1 - args[1]).to(args[0].dtype)
            return args[0] * made / (1 - args[1]), made > 0
        if name in ("uniform_", "normal_"):
            return args[0].copy_(self.next())
        if func.__name__ == "normal.Tensor_float":
            return args[0] + self.next()
        if name in (
            "rand",
            "rand_like",
            "randn",
            "randn_like",
            "randint",
            "randint_like",
            "normal",
        ):
            dtype = func(*args, **(kwargs or {})).dtype
            return self.next().to(dtype)
        return func(*args, **(kwargs or {}))


class Chain(nn.Module):
    """Functions one after another, each behind a convolution of its own.

    One that keeps the shape is the next one's input, another scales it by its mean.
    """

    def __init__(self, functions: list[Function], dtype: torch.dtype, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.convs = nn.ModuleList([nn.Conv2d(4, 4, 1) for _ in functions])
        self.functions = functions
        self.register_buffer("fixed", _like(torch.zeros(2, 4, 6, 6)))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        for conv, function in zip(self.convs, self.functions, strict=True):
            out = function(conv(x)).to(x.dtype)
            x = out if out.shape == x.shape else x * (1 + out.mean())
        return ((x * self.fixed) ** 2).mean() + x.mean()


class Side(Chain):
    """The same functions side by side, so that none hides another."""

    def forward(self, x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for conv, function in zip(self.convs, self.functions, strict=True):
            out = function(conv(x)).to(x.dtype)
            total = total + (out * _like(out)).mean() + (out * out).mean()
        return total


def autograd(module: nn.Module, graph: Any, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """(the loss, every trained parameter's gradient by name) with the batch's numbers drawn."""
    drawn = [(s, batch[s.name]) for s in graph.inputs if s.kind in ("mask", "random")]
    data = [torch.tensor(batch[s.name]) for s in graph.inputs if s.kind == "data"]
    with Given(drawn) as given:
        loss = module(*data)
    if given.draws:
        raise LookupError(f"the graph has {len(given.draws)} more random inputs than PyTorch draws")
    named = dict(module.named_parameters())
    wanted = [named[graph.onnx_names[name]] for name in graph.trainable]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return loss.detach(), {
        name: (torch.zeros_like(p) if g is None else g).numpy()
        for name, p, g in zip(graph.trainable, wanted, found, strict=True)
    }
