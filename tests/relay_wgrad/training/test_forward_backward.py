"""A training graph cut in two: what is kept between the parts, and how precise types cross."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from relay_wgrad.frontend import from_torch
from relay_wgrad.ir import bytes_of, op_name
from relay_wgrad.training.forward_backward import BACKWARD, DIRECTION, FORWARD, TwoParts, two_parts
from relay_wgrad.training.libraries import partitioned
from relay_wgrad.training.options import Options

pytestmark = pytest.mark.usefixtures("registered")

SIDE, WIDTH = 12, 8
TENSOR = 4 * 2 * WIDTH * SIDE * SIDE  # bytes of an activation


def graph() -> Any:
    layers: list[nn.Module] = []
    for inside in (3, WIDTH, WIDTH):
        layers += [
            nn.Conv2d(inside, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU()
        ]  # fmt: skip
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 3))
    return from_torch(network, (torch.zeros(2, 3, SIDE, SIDE),), loss="none")


def kept(parts: TwoParts) -> list[Any]:
    return list(parts.module[FORWARD].body.body.fields)[parts.outputs :]


def ops(parts: TwoParts, name: str) -> list[str]:
    return [op_name(b.value) for block in parts.module[name].body.blocks for b in block.bindings]


def test_what_is_kept() -> None:
    """Of a block what normalization's gradient reads and what the next convolution does."""
    one = graph()
    parts = two_parts(one, wrt=one.trainable)
    large = [v for v in kept(parts) if bytes_of(v.ty) >= TENSOR]
    assert len(large) <= 6
    assert {str(v.ty.dtype) for v in kept(parts)} == {"float32"}
    assert ops(parts, FORWARD).count("relax.nn.conv2d") == 3
    backward = ops(parts, BACKWARD)
    assert "relax.nn.conv2d" not in backward
    assert backward.count("relax.nn.conv2d_backward_weight") == 3
    assert backward.count("relax.nn.conv2d_backward_data") == 2
    assert parts.module[BACKWARD].params[-1].name == DIRECTION
    assert parts.wrt == one.trainable


def test_checkpoints_keep_less() -> None:
    one = graph()
    sizes = []
    for checkpoint in (None, "auto"):
        parts = two_parts(one, wrt=one.trainable, checkpoint=checkpoint)
        sizes.append(sum(bytes_of(v.ty) for v in kept(parts)))
    assert sizes[1] < 0.7 * sizes[0]


def test_a_cut_stays_where_norms_are_raised() -> None:
    """A normalization that a checkpoint names is not raised with what follows it, as in a
    whole step."""
    one = graph()
    (cut, *_) = [name for name in one.tensors if name.startswith("getitem")]
    parts = two_parts(one, wrt=one.trainable, checkpoint=[cut], raise_norms=True)
    assert parts.wrt == one.trainable


def test_half_precision_keeps_half() -> None:
    """The direction is float32, as the output is, and meets half gradients in the backward part."""
    one = graph()
    parts = two_parts(one, wrt=one.trainable, dtype="float16")
    assert str(parts.module[BACKWARD].params[-1].ty.dtype) == "float32"
    assert "float16" in {str(v.ty.dtype) for v in kept(parts)}
    gradients = parts.module[BACKWARD].body.body.fields
    assert {str(g.ty.dtype) for g in gradients} == {"float32"}


def test_forward_alone() -> None:
    one = graph()
    parts = two_parts(one, wrt=())
    assert not parts.sources
    assert [v.name_hint for v, _ in parts.module.functions_items()] == [BACKWARD]
    assert len(parts.module[BACKWARD].body.body.fields) == parts.outputs == 1 + 6


def test_both_parts_go_to_libraries() -> None:
    """What a GPU's place does with the module before it compiles it; each call has its library."""
    one = graph()
    parts = two_parts(one, wrt=one.trainable, layout="NHWC", raise_norms=True)
    _, found = partitioned(parts.module, ["cudnn"], Options(), [])
    kinds = sorted(one.op for one in found if one.op.startswith("conv"))
    assert len(kinds) == 8
    assert all(one.source.startswith("cudnn.") for one in found)
    assert all(one.kernel for one in found)
