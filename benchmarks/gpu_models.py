"""The networks of `benchmarks.gpu_training --against`, as PyTorch modules with seeded weights.

A name is one of torchvision's (`resnet50`, `mobilenet_v2`, …) or timm's, imported when it is asked
for; `unet`, ours; or `onnx:` and a bundled network, whose weights are then those that `from_onnx`
gives it.  Dropout and stochastic depth are left out, so that all sides compute the same.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.network_zoo import torchvision_models
from relay_wgrad.frontend import BUNDLED, from_onnx
from tests.support.torch.onnx_module import OnnxModule

TORCHVISION = (
    "resnet50", "mobilenet_v2", "efficientnet_b0", "vgg16", "densenet121", "squeezenet1_1",
)  # fmt: skip
DEFAULT = (*TORCHVISION, "unet", "onnx:inception_v1")
_SYNONYMS = {"squeezenet": "squeezenet1_1"}
_RANDOM = ("Dropout", "Dropout2d", "StochasticDepth", "DropPath")
CLASSES = 1000


class Block(nn.Sequential):
    """Two convolutions with batch normalization and ReLU."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(*(
            layer
            for c in (inside, outside)
            for layer in (
                nn.Conv2d(c, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()
            )
        ))  # fmt: skip


class UNet(nn.Module):
    """Ronneberger's, padded, with batch normalization and transposed convolutions.

    Its logits are averaged over the pixels, so that all networks here have one loss.
    """

    def __init__(self, classes: int = CLASSES, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(map(Block, [3, *widths], widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * c, c, 2, stride=2) for c in reversed(widths[:-1])
        )
        self.join = nn.ModuleList(Block(2 * c, c) for c in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        """Logits (N, classes) of images whose height and width 2**depth divides."""
        kept = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, left in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([left, up(x)], 1))
        return self.head(x.mean((2, 3), keepdim=True)).flatten(1)


class Built(NamedTuple):
    """A network in training mode on the CPU, its size of image, a bundled one's graph, classes."""

    module: nn.Module
    image: int
    graph: Any
    classes: int


def build(name: str, batch: int, image: int | None) -> Built:
    """The network of a name, the same at each call.

    Raises ValueError for an unknown name, ModuleNotFoundError naming the package that it needs.
    """
    torch.manual_seed(0)
    kind, _, bundled = name.partition(":")
    if kind == "onnx":
        if bundled not in BUNDLED:
            raise ValueError(f"no bundled network {bundled!r}; there are {', '.join(BUNDLED)}")
        graph = from_onnx(bundled, batch=batch, image_size=image)
        module = OnnxModule(bundled, graph).train()
        return Built(module, graph.inputs[0].shape[2], graph, int(graph.classes or CLASSES))
    return Built(still(_module(name)).train(), image or 224, None, CLASSES)


def _module(name: str) -> nn.Module:
    if name == "unet":
        return UNet()
    wanted = _SYNONYMS.get(name, name)
    torchvision = torchvision_models()
    if hasattr(torchvision, wanted):
        return getattr(torchvision, wanted)(weights=None)
    timm = importlib.import_module("timm")
    if not timm.is_model(wanted):
        raise ValueError(f"{name!r} is a model neither of torchvision nor of timm")
    return timm.create_model(wanted, pretrained=False)


def still(module: nn.Module) -> nn.Module:
    """The module, with the identity in place of layers that draw random numbers."""
    for part in module.modules():
        for name, child in part.named_children():
            if type(child).__name__ in _RANDOM:
                setattr(part, name, nn.Identity())
    return module
