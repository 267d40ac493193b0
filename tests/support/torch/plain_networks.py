"""Networks of PyTorch's own layers: ResNet-50, MobileNetV2, where there is no torchvision; U-Nets.

The first two have torchvision's layers and names, without dropout: He and others, "Deep Residual
Learning" (stride in the 3×3 convolution); Sandler and others, "MobileNetV2".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

CLASSES = 1000
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # filters, blocks, stride
# Factor of the channels within, filters, blocks, stride.
_INVERTED = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


def _convolution(c: int, k: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c, k, size, stride, size // 2, groups=groups, bias=False)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, c: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = _convolution(c, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _convolution(width, out, 1), nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or c != out:
            self.downsample = nn.Sequential(_convolution(c, out, 1, stride), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """161 parameters, 25,557,032 numbers; fewer where the first layer has other than 64 filters."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(3, width, 7, 2), nn.BatchNorm2d(width)
        c = width
        for i, (filters, blocks, stride) in enumerate(_STAGES, 1):
            layers, inner = [], filters * width // 64
            for block in range(blocks):
                layers.append(Bottleneck(c, inner, stride if block == 0 else 1))
                c = 4 * inner
            self.add_module(f"layer{i}", nn.Sequential(*layers))
        self.fc = nn.Linear(c, CLASSES)

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        for i in range(len(_STAGES)):
            x = self.get_submodule(f"layer{i + 1}")(x)
        return self.fc(x.mean((2, 3)))


def _normed(c: int, k: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(_convolution(c, k, size, stride, groups), nn.BatchNorm2d(k), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Many channels within, few without, and a shortcut where it fits."""

    def __init__(self, c: int, k: int, stride: int, factor: int) -> None:
        super().__init__()
        inner = c * factor
        layers = [] if factor == 1 else [_normed(c, inner, 1)]
        layers += [_normed(inner, inner, 3, stride, inner), _convolution(inner, k, 1),
                   nn.BatchNorm2d(k)]  # fmt: skip
        self.conv = nn.Sequential(*layers)
        self.is_added = stride == 1 and c == k

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.conv(x) if self.is_added else self.conv(x)


class MobileNetV2(nn.Module):
    """158 parameters, 3,504,872 numbers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_normed(3, 32, 3, 2)]
        c = 32
        for factor, k, blocks, stride in _INVERTED:
            for block in range(blocks):
                layers.append(InvertedResidual(c, k, stride if block == 0 else 1, factor))
                c = k
        self.features = nn.Sequential(*layers, _normed(c, 1280, 1))
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(1280, CLASSES))

    def forward(self, x: torch.Tensor) -> Any:
        return self.classifier(self.features(x).mean((2, 3)))


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


class Kind(NamedTuple):
    """Whether normalizations are of instances, with LeakyReLU behind, and convolutions biased."""

    instance: bool
    bias: bool = False


def _of_volumes(
    inside: int, outside: int, size: int, stride: int, kind: Kind, act: bool = True
) -> list[nn.Module]:
    """A convolution with its normalization and, if asked for, the activation."""
    norm: nn.Module = nn.BatchNorm3d(outside)
    after: nn.Module = nn.ReLU(inplace=True)
    if kind.instance:
        norm, after = nn.InstanceNorm3d(outside, affine=True), nn.LeakyReLU(0.01, inplace=True)
    convolution = nn.Conv3d(inside, outside, size, stride, padding=size // 2, bias=kind.bias)
    return [convolution, norm, *[after] * act]


class VolumeBlock(nn.Module):
    """Convolutions of volumes, each with a normalization and its activation."""

    def __init__(self, inside: int, outside: int, stride: int, kind: Kind, count: int = 2) -> None:
        super().__init__()
        parts = _of_volumes(inside, outside, 3, stride, kind)
        for _ in range(count - 1):
            parts += _of_volumes(outside, outside, 3, 1, kind)
        self.parts = nn.Sequential(*parts)

    def forward(self, x: Any) -> Any:
        return self.parts(x)


class ResidualVolumeBlock(nn.Module):
    """Two convolutions beside a shortcut, which is averaged where there are strides (ResNet-D)."""

    def __init__(self, inside: int, outside: int, stride: int, kind: Kind) -> None:
        super().__init__()
        self.parts = nn.Sequential(
            *_of_volumes(inside, outside, 3, stride, kind),
            *_of_volumes(outside, outside, 3, 1, kind, act=False),
        )
        shortcut: list[nn.Module] = [nn.AvgPool3d(stride, stride)] if stride > 1 else []
        if inside != outside:
            shortcut += _of_volumes(inside, outside, 1, 1, kind._replace(bias=False), act=False)
        self.shortcut = nn.Sequential(*shortcut)
        self.after = nn.LeakyReLU(0.01, inplace=True) if kind.instance else nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        return self.after(self.parts(x) + self.shortcut(x))


class VolumeUNet(nn.Module):
    """nnU-Net's: strided convolutions down, transposed ones up.

    instance : instance normalization and LeakyReLU, as it has them; else batch normalization and
        ReLU.
    blocks : of each level, of its residual encoder, whose decoder has one convolution a level;
        else its plain one, two convolutions everywhere.
    levels : logits of each level but the lowest, the finest first, as its deep supervision takes
        them; else those of the finest, averaged, as `UNet`'s.
    bias : of the convolutions that a normalization follows, as its plans have it.
    """

    def __init__(
        self,
        instance: bool,
        classes: int = 4,
        widths: Sequence[int] = (32, 64, 128, 256, 320),
        blocks: Sequence[int] = (),
        levels: bool = False,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.levels, kind = levels, Kind(instance, bias)
        outer = list(reversed(widths[:-1]))
        first = widths[0] if blocks else 1
        stem = _of_volumes(1, first, 3, 1, kind) if blocks else []
        self.stem = nn.Sequential(*stem)
        self.down = nn.ModuleList()
        for i, (inside, c) in enumerate(zip([first, *widths], widths, strict=False)):
            stride = 1 if i == 0 else 2
            stage: list[nn.Module] = [] if blocks else [VolumeBlock(inside, c, stride, kind)]
            for j in range(blocks[i] if blocks else 0):
                shape = (c, c, 1) if j else (inside, c, stride)
                stage.append(ResidualVolumeBlock(*shape, kind))
            self.down.append(nn.Sequential(*stage))
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(inside, c, 2, 2)
            for inside, c in zip(reversed(widths), outer, strict=False)
        )
        count = 1 if blocks else 2
        self.join = nn.ModuleList(VolumeBlock(2 * c, c, 1, kind, count) for c in outer)
        headed = outer if levels else outer[-1:]
        self.heads = nn.ModuleList(nn.Conv3d(c, classes, 1) for c in headed)

    def forward(self, x: Any) -> Any:
        """Logits of volumes (N, 1, D, H, W), whose sizes 2**levels divides: (N, classes), or a list
        of (N, classes, D >> i, H >> i, W >> i)."""
        x = self.stem(x)
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
        made = []
        for up, join, left in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), left], 1))
            made.append(x)
        if self.levels:
            logits = [head(each) for head, each in zip(self.heads, made, strict=True)]
            return logits[::-1]
        return self.heads[0](x).mean((2, 3, 4))


NETWORKS: dict[str, type[nn.Module]] = {"resnet50": ResNet50, "mobilenet_v2": MobileNetV2}


def build(name: str) -> nn.Module:
    """A network in training mode, the same at each call."""
    torch.manual_seed(0)
    return NETWORKS[name]().train()
