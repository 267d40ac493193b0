"""Networks for any number of images, and autograd's answer for some numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import tvm
from torch import nn
from torch.nn import functional as fn
from tvm import relax

from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training.step import ADJOINT, step_module
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST

from .op_cases import Given

Tensor = torch.Tensor
BATCHES = (1, 2, 3, 7)
CHANNELS, SIDE, CLASSES = 4, 6, 5
IMAGE = (3, SIDE, SIDE)


class Step(nn.Module):
    """A function of images behind a layer of its own."""

    def __init__(self, function: Callable[[Tensor], Tensor], layer: nn.Module | None = None):
        super().__init__()
        self.layer = nn.Identity() if layer is None else layer
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))


def _attention(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    rows = x.reshape(n, c, h * w).transpose(1, 2).reshape(n, h * w, 2, c // 2).transpose(1, 2)
    out = fn.scaled_dot_product_attention(rows, rows * 0.5, rows)
    return out.transpose(1, 2).reshape(x.shape[0], -1, c).transpose(1, 2).reshape(n, c, h, w)


def _windows(x: Tensor) -> Tensor:
    """Windows as a batch of their own, and back."""
    n, c, h, w = x.shape
    parts = x.view(n, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 3, 5, 1)
    rows = parts.reshape(-1, h * w // 4, c)
    rows = rows.softmax(1) + fn.dropout(rows, 0.2) * 0.5
    back = rows.reshape(n, 2, 2, h // 2, w // 2, c).permute(0, 5, 1, 3, 2, 4)
    return back.reshape(n, c, h, w)


def _token(x: Tensor) -> Tensor:
    rows = x.flatten(2).transpose(1, 2)
    first = torch.ones(1, 1, 1, dtype=x.dtype).expand(x.shape[0], 1, x.shape[1])
    both = torch.cat([first * rows.mean(1, keepdim=True), rows], 1)
    return both[:, 1:].transpose(1, 2).reshape(x.shape) + both[:, :1].transpose(1, 2)[..., None]


def _path(x: Tensor) -> Tensor:
    keep = x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.7)
    return x + x.sin() * keep.div_(0.7)


def _scaled(x: Tensor) -> Tensor:
    return x - x.sum(0, keepdim=True) / x.shape[0] + x.var(0, unbiased=False, keepdim=True)


STEPS: dict[str, Callable[[], nn.Module]] = {
    "attention": lambda: Step(_attention),
    "average": lambda: Step(lambda x: fn.interpolate(fn.avg_pool2d(x, 2), scale_factor=2)),
    "batch mean": lambda: Step(_scaled),
    "bilinear": lambda: Step(
        lambda x: fn.interpolate(fn.adaptive_avg_pool2d(x, 4), size=(6, 6), mode="bilinear")
    ),
    "bn": lambda: nn.BatchNorm2d(CHANNELS),
    "channels": lambda: Step(lambda x: torch.cat([x[:, 2:], x[:, :2].relu()], 1)),
    "conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "conv transpose": lambda: Step(
        lambda x: x[..., ::2, ::2], nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, stride=2)
    ),
    "depthwise": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    "drop path": lambda: Step(_path),
    "dropout": lambda: nn.Dropout(0.3),
    "dropout of maps": lambda: nn.Dropout2d(0.3),
    "gelu": lambda: Step(fn.gelu),
    "grouped": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=2),
    "group norm": lambda: nn.GroupNorm(2, CHANNELS),
    "layer norm": lambda: nn.LayerNorm([CHANNELS, SIDE, SIDE]),
    "max": lambda: Step(lambda x: fn.max_pool2d(x, 3, 1, 1)),
    "noise": lambda: Step(lambda x: x + torch.randn_like(x) * 0.1),
    "padded": lambda: Step(lambda x: fn.pad(x, (1, 0, 0, 1))[..., 1:, :6].contiguous()),
    "product": lambda: Step(lambda x: torch.einsum("nchw,ncvw->nchv", x, x.tanh())),
    "reflected": lambda: Step(lambda x: fn.pad(x, (1, 1, 1, 1), mode="reflect")[..., 1:-1, 2:]),
    "relu": nn.ReLU,
    "rows": lambda: Step(lambda x: x.view(x.size(0), -1).softmax(-1).view_as(x) * 10),
    "strided": lambda: Step(
        lambda x: fn.interpolate(x, scale_factor=2),
        nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1),
    ),
    "token": lambda: Step(_token),
    "windows": lambda: Step(_windows),
}
"""Each gives images of the shape that it takes."""

LOSSES: dict[str, Callable[[Tensor, dict[str, Tensor]], Tensor]] = {
    "cross_entropy": lambda y, b: fn.cross_entropy(y, b["labels"]),
    "cross_entropy(reduction='sum')": lambda y, b: fn.cross_entropy(
        y, b["labels"], reduction="sum"
    ),
    "cross_entropy(label_smoothing=0.1)": lambda y, b: fn.cross_entropy(
        y, b["labels"], label_smoothing=0.1
    ),
    "mse": lambda y, b: fn.mse_loss(y, b["target"]),
    "huber(delta=0.5)": lambda y, b: fn.huber_loss(y, b["target"], delta=0.5),
    "bce_with_logits": lambda y, b: fn.binary_cross_entropy_with_logits(y, b["target"]),
}


def _branch(holds: Callable[[int], Any]) -> Callable[[], nn.Module]:
    """Other numbers where something holds of the number of images."""
    return lambda: Step(lambda x: x.sin() * 3 if holds(x.shape[0]) else x)


BRANCHES: dict[str, Callable[[], nn.Module]] = {
    "if one": _branch(lambda n: n == 1),
    "if several": _branch(lambda n: n > 1),
    "if half": _branch(lambda n: n // 2),
    "if others": _branch(lambda n: n - 1),
    "if any": _branch(lambda n: n >= 1),
    "if few": _branch(lambda n: n < 4),
    "if odd": _branch(lambda n: n % 2),
    "if not seven": _branch(lambda n: n != 7),
    "squeezed": lambda: Step(lambda x: x.squeeze(0).softmax(0).view_as(x)),
    "by rank": lambda: Step(lambda x: x * x.squeeze().ndim),
    "at most": lambda: Step(lambda x: x / min(x.shape[0], 3)),
    "at least": lambda: Step(lambda x: x.sin() * max(x.shape[0] - 1, 1)),
}
"""Steps that are others for some numbers of images: of one, perhaps, and refused for it."""
WITHOUT_ONE = frozenset(
    ("if one", "if several", "if half", "if others", "squeezed", "by rank", "if few", "if odd",
     "if not seven")
)  # fmt: skip
"""Of these, those that may be refused: for one image, or altogether."""

# Ways to one batch of two views, and back: (joined, apart), of which either may be with any.
_JOINED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat": lambda a, b: torch.cat([a, b]),
    "stack": lambda a, b: torch.stack([a, b]).flatten(0, 1),
    "set": lambda a, b: torch.stack([a, b], 1).transpose(0, 1).reshape(-1, *a.shape[1:]),
    "padded": lambda a, b: torch.cat([a, torch.zeros_like(a)]) + torch.cat([0 * a, b]),
}
_APART: dict[str, Callable[[Tensor, int], Sequence[Tensor]]] = {
    "chunk": lambda z, n: z.chunk(2),
    "list": lambda z, n: z.split([n, n]),
    "narrow": lambda z, n: (z.narrow(0, 0, n), z.narrow(0, n, n)),
    "negative": lambda z, n: (z[:-n], z[-n:]),
    "slices": lambda z, n: (z[:n], z[n:]),
    "halves": lambda z, n: (z[: z.shape[0] // 2], z[z.shape[0] // 2 :]),
    "split": lambda z, n: torch.split(z, n),
    "tensor split": lambda z, n: z.tensor_split(2),
    "unbind": lambda z, n: z.view(2, -1, *z.shape[1:]).unbind(0),
    "unflatten": lambda z, n: [z.unflatten(0, (2, n))[i] for i in range(2)],
}


def _views(joined: str, apart: str) -> Callable[[], nn.Module]:
    """Two views as one batch through a layer, and their parts compared."""

    def both(x: Tensor) -> Tensor:
        z = _JOINED[joined](x, x.flip(3).tanh())
        first, second = _APART[apart](z * z.mean(0, keepdim=True), x.shape[0])
        return first - 0.5 * second.cos()

    return lambda: Step(both, nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1))


def _triplets(x: Tensor) -> Tensor:
    n, z = x.shape[0], torch.cat([x, x.flip(2), x.flip(3).sin()]).tanh()
    return z[:n] * z[n : 2 * n] - z[2 * n :] * z.split([n, 2 * n])[1][:n]


def _other_images(x: Tensor) -> Tensor:
    """Of each image's neighbours in its batch."""
    return 0.7 * x + 0.2 * x.roll(1, 0).sin() - 0.1 * x.roll(-3, 0) + 0.3 * x.flip(0).tanh()


def _repeated(x: Tensor) -> Tensor:
    twice = x.repeat(2, 1, 1, 1).view(2, *x.shape) * x.repeat_interleave(2, 0).view(2, *x.shape)
    return twice.cos().sum(0)


def _similar(x: Tensor) -> Tensor:
    """By each image's likeness to all views but itself."""
    z = fn.normalize(torch.cat([x, x.flip(3)]).mean((2, 3)))
    n = x.shape[0]
    rows = (z @ z.T).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9).log_softmax(1)
    places = torch.cat([torch.arange(n) + n, torch.arange(n)])
    loss = fn.cross_entropy(rows, places) + fn.cross_entropy(z[:n] @ z[n:].T, torch.arange(n))
    return x * loss


VIEWS: dict[str, Callable[[], nn.Module]] = {
    **{f"{a} and {b}": _views(a, b) for a in _JOINED for b in _APART},
    "other images": lambda: Step(_other_images),
    "repeated": lambda: Step(_repeated),
    "similar": lambda: Step(_similar),
    "triplets": lambda: Step(_triplets),
}
"""Steps that join batches, or change the order of images."""
ALL = {**STEPS, **BRANCHES, **VIEWS}


def network(steps: Sequence[str], seed: int = 0, train: bool = True) -> nn.Module:
    """A convolution, the steps, and a classifier, in float64."""
    torch.manual_seed(seed)
    parts = [nn.Conv2d(3, CHANNELS, 3, padding=1), *(ALL[name]() for name in steps)]
    tail = [nn.Flatten(), nn.Linear(CHANNELS * SIDE * SIDE, CLASSES)]
    return nn.Sequential(*parts, *tail).double().train(train)


def open_graph(module: nn.Module, loss: str = "cross_entropy", batch: int = 2) -> TrainingGraph:
    """Its graph for any number of images, by an example of `batch`."""
    x = torch.zeros(batch, *IMAGE, dtype=torch.float64)
    return from_torch(module, (x,), batch="N", loss=loss, dropout="mask")


def compiled(graph: TrainingGraph) -> relax.VirtualMachine:
    """The graph's step, once for all batches."""
    return virtual_machine(step_module(graph), FAST)


class _InOrder(torch.autograd.Function):
    """The same, whose gradient lies in memory in the order of its axes.

    PyTorch's batch normalization (2.11, 2.13) is wrong for the gradient of one image that does not:
    `gradcheck` finds it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return torch.empty(grads[0].shape, dtype=grads[0].dtype).copy_(grads[0])


def difference(
    module: nn.Module, graph: TrainingGraph, vm: Any, count: int, loss: str = "cross_entropy"
) -> float:
    """The largest relative difference from autograd's, for a batch of `count` images: of the loss,
    of all gradients as one vector, and of each running statistic."""
    batch = graph.random_batch(count, count)
    arguments = [tvm.runtime.tensor(np.asarray(a, order="C")) for a in graph.arguments(batch)]
    outputs, gradients = vm[ADJOINT](*arguments)

    twin = copy.deepcopy(module)
    for part in twin.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.register_forward_hook(lambda _, inputs, y: _InOrder.apply(y))
    given = {name: torch.tensor(value) for name, value in batch.items()}
    drawn = [(s, batch[s.name]) for s in graph.inputs if s.kind in ("mask", "random")]
    with Given(drawn):
        wanted = LOSSES[loss](twin(given[graph.inputs[0].name]), given)
    named = dict(twin.named_parameters())
    found = torch.autograd.grad(wanted, [named[graph.onnx_names[n]] for n in graph.trainable])
    pairs = [(np.float64(outputs[0].numpy()), wanted.detach().numpy())]
    got = [np.ravel(g.numpy()) for g in gradients]
    pairs.append((np.concatenate(got), np.concatenate([np.ravel(g.numpy()) for g in found])))
    buffers = dict(twin.named_buffers())
    for name, output in zip(graph.outputs, outputs, strict=True):
        if name in graph.updates:
            buffer = buffers[graph.onnx_names[graph.updates[name]]]
            pairs.append((output.numpy(), buffer.numpy()))
    return max(float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-12)) for a, b in pairs)


def refusal(graph: TrainingGraph, vm: Any, count: int) -> str:
    """What the compiled step says of a batch that it does not take; "" where it takes it."""
    batch = {
        spec.name: spec.random(np.random.default_rng(0), graph.classes, count)
        for spec in graph.inputs
    }
    values = [*batch.values(), *graph.params.values()]
    try:
        vm[ADJOINT](*(tvm.runtime.tensor(np.asarray(a, order="C")) for a in values))
    except ValueError as error:
        return str(error)
    return ""
