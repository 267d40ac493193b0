"""The networks of torchvision and timm, as PyTorch modules without downloaded weights.

A network goes by its package and name there, `torchvision/resnet50` or `timm/convnext_tiny`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import library, nn

BATCH = 2
CLASSES = 10
NAMES = Path(__file__).with_name("network_names.txt")
_SIDES = (64, 96, 128)  # pixels


def torchvision_models() -> Any:
    """`torchvision.models`, also where torchvision's compiled operators cannot be loaded.

    Its wheel on the package index is made for one PyTorch with CUDA; beside another its operators
    are missing, and importing it fails where it registers shapes for them.  No network here has one
    of them, so what is missing is left out.
    """

    real = library.register_fake

    def where_loaded(*args: Any, **kwargs: Any) -> Any:
        register = real(*args, **kwargs)

        def lenient(function: Any) -> Any:
            try:
                return register(function)
            except RuntimeError:  # the operator does not exist
                return function

        return lenient

    with mock.patch.object(library, "register_fake", where_loaded):
        return importlib.import_module("torchvision.models")


def networks() -> list[str]:
    """All of torchvision's classifying and segmenting networks, and timm's in `NAMES`."""
    own: list[str] = []
    if importlib.util.find_spec("torchvision") is not None:
        models = torchvision_models()
        own = [*models.list_models(module=models), *models.list_models(module=models.segmentation)]
    return [f"torchvision/{name}" for name in own] + [f"timm/{name}" for name in timm_names()]


def timm_names() -> list[str]:
    """timm's networks of the table: of each of its modules some, of different kinds and sizes.

    The first of each module come first, so that a run that is cut short has seen each kind.
    """
    lines = NAMES.read_text(encoding="utf-8").splitlines()
    families = [line.partition(":")[2].split() for line in lines]
    return [name for turn in zip_longest(*families) for name in turn if name is not None]


def build(
    name: str, *, sides: Sequence[int] = _SIDES, classes: int = CLASSES
) -> tuple[nn.Module, int]:
    """(a network in training mode, with seeded weights, the side of a square image that it takes).

    sides : tried in this order before the network's own.

    Raises ValueError for a name of neither package.
    """
    package, _, short = name.partition("/")
    if package not in ("torchvision", "timm"):
        raise ValueError(f"{name!r}: expected torchvision/NAME or timm/NAME")
    make = _of_torchvision if package == "torchvision" else _of_timm
    error: Exception | None = None
    for side in (*sides, None):
        torch.manual_seed(0)
        try:
            module, own = make(short, side, classes)
            module.train()
            if side is not None:
                _tried(module, side)
            return module, own
        except Exception as raised:  # of many kinds: an image too small for it
            error = raised
    assert error is not None
    raise error


def _tried(module: nn.Module, side: int) -> None:
    """Raises what the network does for an image of this size; its statistics stay."""
    states = {name: buffer.clone() for name, buffer in module.named_buffers()}
    with torch.no_grad():
        module(torch.rand(BATCH, 3, side, side))
    for name, buffer in module.named_buffers():
        if name in states:
            buffer.copy_(states[name])


def _of_torchvision(name: str, side: int | None, classes: int) -> tuple[nn.Module, int]:
    models = torchvision_models()
    segments = name in models.list_models(module=models.segmentation)
    options: dict[str, Any] = {"weights": None, "num_classes": classes}
    if segments:
        options |= {"weights_backbone": None, "aux_loss": True if "lraspp" not in name else None}
    options = {key: value for key, value in options.items() if value is not None or "w" in key}
    if name.startswith("vit") and side is not None:
        options["image_size"] = side
    if name.startswith("maxvit"):
        options["input_size"] = (side or 224, side or 224)
    return models.get_model(name, **options), side or 299 if "inception" in name else side or 224


def _of_timm(name: str, side: int | None, classes: int) -> tuple[nn.Module, int]:
    if importlib.util.find_spec("torchvision") is not None:
        torchvision_models()  # which timm imports
    timm = importlib.import_module("timm")
    if side is None:
        module = timm.create_model(name, pretrained=False, num_classes=classes)
        return module, int(module.pretrained_cfg["input_size"][-1])
    try:
        module = timm.create_model(name, pretrained=False, num_classes=classes, img_size=side)
    except TypeError:  # most take any image
        module = timm.create_model(name, pretrained=False, num_classes=classes)
    return module, side


class Loss(nn.Module):
    """A network with a scalar loss of all that it returns: logits, auxiliary ones, maps of pixels.

    With labels it is cross-entropy, auxiliary classifiers' too.  Without, the mean of each result's
    square and of its product with fixed numbers, so that each element has a gradient of its own.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Any, labels: Any = None) -> Any:
        """The loss of images (N, 3, H, W) and labels (N,)."""
        results = tensors_of(self.network(x))
        if labels is not None:
            scores = [y for y in results if y.shape == results[0].shape]
            return sum(nn.functional.cross_entropy(y, labels) for y in scores)
        total = x.new_zeros(())
        for y in results:
            fixed = torch.sin(torch.arange(y.numel(), dtype=y.dtype) + 1).reshape(y.shape)
            total = total + (y * fixed).mean() + (y * y).mean()
        return total


def tensors_of(results: Any) -> list[Any]:
    """All tensors of what a network returns: a tensor, or a dictionary or list of such."""
    if isinstance(results, torch.Tensor):
        return [results]
    parts = results.values() if hasattr(results, "values") else results
    return [y for part in parts if part is not None for y in tensors_of(part)]
