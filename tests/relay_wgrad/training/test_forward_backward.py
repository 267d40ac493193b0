"""A training graph cut in two: what is kept between the parts, and how precise types cross."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import tvm
from torch import nn
from tvm import relax

import byoc_cudnn
from relay_wgrad.facts import chain_link
from relay_wgrad.frontend import from_torch
from relay_wgrad.graph.walk import bindings_of, functions_in
from relay_wgrad.ir import bytes_of, op_name
from relay_wgrad.pipeline import fused_kernels
from relay_wgrad.pipeline.arena import NAME
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.training.compiled import planned_memory
from relay_wgrad.training.forward_backward import (
    BACKWARD,
    DIRECTION,
    FORWARD,
    Source,
    TwoParts,
    to_part,
    two_parts,
)
from relay_wgrad.training.libraries import partitioned
from relay_wgrad.training.options import Options
from relay_wgrad.training.step import converted, step_module

pytestmark = pytest.mark.usefixtures("registered")

SIDE, WIDTH = 12, 8
TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip
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


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gate, self.head = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        x = x * torch.sigmoid(self.gate(x.mean((2, 3), keepdim=True)).float())
        return self.head(x.mean((2, 3)))


def test_a_half_operand_is_kept_and_not_what_is_made_of_it() -> None:
    """A sigmoid is float32 and made again of what a convolution gives, which is half as large."""
    one = from_torch(Gated(), (torch.zeros(2, 3, SIDE, SIDE),), loss="none")
    found = kept(two_parts(one, wrt=one.trainable, dtype="bfloat16", layout="NHWC"))
    gates = [v for v in found if sorted(map(int, v.ty.shape.values)) == [1, 1, 2, 8]]
    assert gates
    assert {str(v.ty.dtype) for v in gates} == {"bfloat16"}


class Wide(nn.Module):
    """Much of what it reads, and little that it makes of that."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))

    def forward(self, x: Any) -> Any:
        for conv in self.convs:
            x = torch.relu(conv(x))
        return x.mean((2, 3))


@pytest.mark.parametrize("pieces", [None, (1, 1)])
def test_a_cast_batch_is_cast_again_and_not_kept(pieces: tuple[int, int] | None) -> None:
    """The first convolution's gradient reads it last, when least is alive."""
    x = torch.zeros(2, 4, SIDE, SIDE)
    one = from_torch(Wide(), (x,), loss="none")
    parts = two_parts(one, wrt=one.trainable, dtype="bfloat16", layout="NHWC", pieces=pieces)
    shapes = [(*map(int, v.ty.shape.values),) for v in kept(parts)]
    assert shapes.count((2, SIDE, SIDE, 4)) == 4  # what the other convolutions read, and the last
    assert Source("argument", 0) in parts.sources
    last = parts.module[parts.pieces[-1].name]
    values = {b.var: b.value for b in bindings_of(last)}
    gradient = [v for v in values.values() if op_name(v) == "relax.nn.conv2d_backward_weight"][-1]
    cast = values[gradient.args[1]]
    assert op_name(cast) == "relax.astype"
    assert values[cast.args[0]].args[0].same_as(last.params[0])


def test_forward_alone() -> None:
    one = graph()
    parts = two_parts(one, wrt=())
    assert not parts.sources
    assert [v.name_hint for v, _ in parts.module.functions_items()] == [BACKWARD]
    assert len(parts.module[BACKWARD].body.body.fields) == parts.outputs == 1 + 6


class Stem(nn.Module):
    """A ResNet's first layers: a pooled normalization, and a residual that is a normalization's."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 1, bias=False) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))
        self.head = nn.Linear(8, 16)

    def forward(self, x: Any) -> Any:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        y = torch.relu(self.norms[0](self.convs[0](x)))
        x = torch.relu(self.norms[1](self.convs[1](y)) + self.norms[2](self.convs[2](x)))
        return self.head(x.mean((2, 3)))


def _calls(parted: bool) -> tuple[Counter[str], int]:
    """(calls of kernels by their families, bytes of the plan) of a step for a GPU, compiled without
    one: whole, or of both parts in one memory."""
    graph = from_torch(Stem(), (torch.zeros(2, 3, 16, 16),))
    how: dict[str, Any] = {"dtype": "bfloat16", "raise_norms": True, "wide_weight_gradients": False}
    if parted:
        module, cut = to_part(graph, wrt=graph.trainable, layout="NHWC", **how)
    else:
        module, cut = converted(step_module(graph, **how), "NHWC"), None
    module, _ = partitioned(module, ["cudnn"], Options(), [])
    calls: Counter[str] = Counter()

    @tvm.instrument.pass_instrument
    class Watch:
        def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
            if str(info.name) == NAME:
                for _, func in functions_in(mod):
                    if chain_link(func) is not None or not parted:
                        called = (getattr(b.value, "op", None) for b in bindings_of(func))
                        names = [str(op.global_symbol) for op in called if _is_extern(op)]
                        calls.update(name.rstrip("_0123456789") for name in names)

    with planned_memory() as plan, tvm.transform.PassContext(instruments=[Watch(), plan]):
        pipeline = cuda_pipeline(keep_memory=True)
        byoc_cudnn.build(module, tvm.target.Target(TARGET), pipeline=pipeline, direct=True, cut=cut)
    return calls, sum(plan.bytes[name] for name in (["chain_joined"] if parted else [BACKWARD]))


def _is_extern(op: Any) -> bool:
    return isinstance(op, relax.ExternFunc) and not str(op.global_symbol).startswith("vm.")


def test_parts_have_the_whole_steps_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a forward call of a normalization or a pooling hands its backward call crosses the cut,
    and all weights are cast at once: the calls are the same, and so, but for what crosses, is the
    memory, with the gradients in it.  Casts run again within a function alone, so not here."""
    monkeypatch.setattr(fused_kernels, "Again", lambda: tvm.transform.Sequential([]))
    (whole, planned), (parts, joined) = _calls(False), _calls(True)
    assert whole == parts
    assert whole["relay_wgrad_norm"] == 6
    assert whole["relay_wgrad_cast_transpose"] == 2
    assert whole["relay_wgrad_pool"] == 0
    assert joined <= 1.1 * planned


def test_both_parts_go_to_libraries() -> None:
    """What a GPU's place does with the module before it compiles it; each call has its library."""
    one = graph()
    parts = two_parts(one, wrt=one.trainable, layout="NHWC", raise_norms=True)
    _, found = partitioned(parts.module, ["cudnn"], Options(), [])
    kinds = sorted(one.op for one in found if one.op.startswith("conv"))
    assert len(kinds) == 8
    assert all(one.source.startswith("cudnn.") for one in found)
    assert all(one.kernel for one in found)
