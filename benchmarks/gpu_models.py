"""The networks of `benchmarks gpu steps`, as PyTorch modules with seeded weights.

A name is one of torchvision's (`resnet50`, `mobilenet_v2`, …) or timm's (`timm/…` where both have
one), imported when it is asked for; `unet`, ours, or `unet3d`, `unet3d_instance` and `resenc_m`, of
volumes, the last nnU-Net's plan ResEnc M for patches of 128³; or `onnx:` and a bundled network,
whose weights are then those that `from_onnx` gives it.  Dropout and stochastic depth are left out,
so that all sides compute the same.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.network_zoo import torchvision_models
from relay_wgrad.frontend import BUNDLED, from_onnx
from tests.support.torch.onnx_module import OnnxModule
from tests.support.torch.plain_networks import CLASSES, UNet, VolumeUNet

TORCHVISION = (
    "resnet50", "mobilenet_v2", "efficientnet_b0", "vgg16", "densenet121", "squeezenet1_1",
)  # fmt: skip
SUITES = {
    "known": (*TORCHVISION, "unet", "onnx:inception_v1"),
    "held": ("wide_resnet50_2", "resnext50_32x4d", "regnet_x_400mf", "mobilenet_v3_large",
             "mnasnet1_0", "shufflenet_v2_x1_0", "vgg11_bn", "efficientnet_v2_s"),
    "others": ("regnety_016", "mobilenetv4_conv_medium", "efficientnet_v2_s", "resnext50_32x4d",
               "mobilenetv3_large_100", "wide_resnet50_2", "repvgg_b0", "seresnet50"),
    "others_half": ("xception41", "ghostnet_100", "dla34", "res2net50_26w_4s", "convnextv2_nano"),
    "drawn": ("resnet50d", "regnetx_032", "timm/efficientnet_b3", "mobilenetv2_140",
              "seresnext50_32x4d", "convnext_nano", "hrnet_w18", "vovnet39a", "cspresnet50",
              "nfnet_l0", "repvit_m1_1", "dpn68"),
}  # fmt: skip
"""`known`: those that kernels and rules were chosen by.  `held`: others.  `others`, in bf16 at
batch 128, and `others_half`, in f16 at batch 64: the table of networks that nobody tuned here.
`drawn`: twelve of timm's that were drawn once, in f16 at batch 64."""
_VOLUMES: dict[str, dict[str, Any]] = {
    "unet3d": {"instance": False},
    "unet3d_instance": {"instance": True},
    "resenc_m": {
        "instance": True, "widths": (32, 64, 128, 256, 320, 320), "blocks": (1, 3, 4, 6, 6, 6),
        "bias": True,
    },
}  # fmt: skip
_RANDOM = ("Dropout", "Dropout2d", "StochasticDepth", "DropPath")


class Built(NamedTuple):
    """A network in training mode on the CPU, its size of image, a bundled one's graph, classes.

    shape : of what it takes, after the batch.
    """

    module: nn.Module
    image: int
    graph: Any
    classes: int
    volume: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, *[self.image] * 3) if self.volume else (3, self.image, self.image)


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
    if name in _VOLUMES:
        return Built(VolumeUNet(**_VOLUMES[name]).train(), image or 128, None, 4, volume=True)
    return Built(still(_module(name)).train(), image or 224, None, CLASSES)


def _module(name: str) -> nn.Module:
    if name == "unet":
        return UNet()
    package, _, own = name.rpartition("/")
    torchvision = torchvision_models()
    if not package and hasattr(torchvision, name):
        return getattr(torchvision, name)(weights=None)
    timm, name = importlib.import_module("timm"), own
    if not timm.is_model(name):
        raise ValueError(f"{name!r} is a model neither of torchvision nor of timm")
    return timm.create_model(name, pretrained=False)


class Still(nn.Identity):
    """In the place of a dropout, whose rate some networks hand to an attention of PyTorch's."""

    p = 0.0


def still(module: nn.Module) -> nn.Module:
    """The module, with the identity in place of layers that draw random numbers."""
    for part in module.modules():
        for name, child in part.named_children():
            if type(child).__name__ in _RANDOM:
                setattr(part, name, Still())
    return module
