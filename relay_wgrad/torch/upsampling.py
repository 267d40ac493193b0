"""`relay_wgrad::upsample` and its gradient: interpolation that PyTorch's tracing leaves whole.

Within Dynamo PyTorch takes its upsampling ops apart before any backend is asked, into reads by
index, whose gradient adds up element by element where several come together.  By an axis at a time,
each result is the sum of a few terms, forward and backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import library as torch_library
from torch.nn import functional as F

from .whole import Whole, Writer

_LINEAR = {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}
_library = torch_library.Library("relay_wgrad", "FRAGMENT")
_library.define(
    "upsample(Tensor x, str name, int[] size, bool align_corners, float[] scales) -> Tensor"
)
_library.define(
    "upsample_backward(Tensor grad, str name, int[] size, int[] shape, bool align_corners,"
    " float[] scales) -> Tensor"
)


def _settings(name: str, align_corners: bool, scales: Sequence[float], rank: int) -> list[Any]:
    """What ATen's op of that name is given behind sizes; no scales: those that the sizes have."""
    flags = [align_corners] if name in _LINEAR.values() else []
    return [*flags, *(scales or (None,) * rank)]


def _in_order(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch._prims_common.suggest_memory_format(like))


def _upsample(x: Any, name: str, size: Any, align_corners: bool, scales: Any) -> torch.Tensor:
    op = getattr(torch.ops.aten, name).default
    return _in_order(op(x, size, *_settings(name, align_corners, scales, len(size))), x)


def _upsample_backward(
    grad: Any, name: str, size: Any, shape: Any, align_corners: bool, scales: Any
) -> torch.Tensor:
    op = getattr(torch.ops.aten, f"{name}_backward").default
    made = op(grad, size, shape, *_settings(name, align_corners, scales, len(size)))
    return _in_order(made, grad)


def _upsample_fake(x: Any, name: str, size: Any, *_: Any) -> torch.Tensor:
    return _in_order(x.new_empty([*x.shape[:2], *size]), x)


def _upsample_backward_fake(grad: Any, name: str, size: Any, shape: Any, *_: Any) -> torch.Tensor:
    return _in_order(grad.new_empty(shape), grad)


for _name, _run, _fake in (
    ("upsample", _upsample, _upsample_fake),
    ("upsample_backward", _upsample_backward, _upsample_backward_fake),
):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch_library.register_fake(f"relay_wgrad::{_name}", _fake, lib=_library)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, *ctx.rest = inputs
    ctx.shape = x.shape


def _gradient(ctx: Any, grad: Any) -> tuple[Any, ...]:
    name, size, *rest = ctx.rest
    made = torch.ops.relay_wgrad.upsample_backward(grad, name, size, ctx.shape, *rest)
    return (made, None, None, None, None)


torch_library.register_autograd(
    "relay_wgrad::upsample", _gradient, setup_context=_keep, lib=_library
)


def _whole(given: Mapping[str, Any], said: Any, made: Any) -> Whole | str:
    """By cubics, with antialiasing or of sizes unknown it is left to PyTorch."""
    factor, mode = given["scale_factor"], given["mode"]
    known = isinstance(said, torch.Tensor) and isinstance(made, torch.Tensor)
    if not known or given["antialias"] or given["recompute_scale_factor"]:
        return ""
    rank, shape = said.dim() - 2, [*said.shape, *made.shape]
    name = {
        "nearest": f"upsample_nearest{rank}d",
        "nearest-exact": f"_upsample_nearest_exact{rank}d",
        **{how.removeprefix("upsample_")[:-2]: how for how in _LINEAR.values()},
    }.get(mode)
    factors = factor if isinstance(factor, (list, tuple)) else [factor] * rank
    numbers = [f for f in factors if f is not None]
    if name is None or not all(isinstance(n, int) for n in shape):
        return ""
    if not all(isinstance(f, (int, float)) for f in numbers) or len(numbers) not in (0, rank):
        return ""
    rest = (name, [*made.shape[2:]], bool(given["align_corners"]), [*map(float, numbers)])
    return Whole(torch.ops.relay_wgrad.upsample.default, rest)


UPSAMPLING: dict[Any, Writer] = {F.interpolate: _whole}
