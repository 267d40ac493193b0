"""Gradients of resizes against PyTorch: TVM resizes in float32, so no slope is exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from relay_wgrad import relay

# name, shape, size, attributes, mode of PyTorch, its align_corners, whether channels are last
CASES: tuple[tuple[str, Any, Any, dict[str, Any], str, bool | None, bool], ...] = (
    ("resize1d", (2, 3, 5), [7], {}, "linear", False, False),
    ("resize2d", (1, 2, 4, 5), [7, 3], {"coordinate_transformation_mode": "align_corners"},
     "bilinear", True, False),
    ("resize2d", (1, 4, 5, 2), [3, 8], {"method": "cubic", "cubic_alpha": -0.75, "layout": "NHWC"},
     "bicubic", False, True),
    ("resize3d", (1, 2, 3, 4, 2), [5, 3, 4],
     {"method": "nearest_neighbor", "coordinate_transformation_mode": "asymmetric"},
     "nearest", None, False),
    ("upsampling3d", (1, 2, 3, 4, 2), [6, 4, 6],
     {"method": "trilinear", "coordinate_transformation_mode": "align_corners"},
     "trilinear", True, False),
)  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[4]}")
def test_gradient_is_pytorchs(case: Any) -> None:
    name, shape, size, attrs, mode, corners, last = case
    rng = np.random.default_rng(3)
    data = rng.standard_normal(shape).astype("float32")
    x = relay.var("x", shape=shape)
    if name == "upsampling3d":
        factors = [m / n for m, n in zip(size, shape[2:], strict=True)]
        y = relay.nn.upsampling3d(x, *factors, **attrs)
    else:
        y = getattr(relay.image, name)(x, size, **attrs)
    mod = relay.transform.InferType()(relay.IRModule.from_expr(relay.Function([x], y * y)))
    made = relay.transform.gradient(mod["main"], mode="first_order")
    _, (got,) = relay.create_executor().evaluate(made)(data)

    leaf = torch.from_numpy(data).requires_grad_()
    moved = leaf.movedim(-1, 1) if last else leaf
    (F.interpolate(moved, size=tuple(size), mode=mode, align_corners=corners) ** 2).sum().backward()
    assert leaf.grad is not None
    want = leaf.grad.numpy()
    assert np.linalg.norm(got.numpy() - want) < 1e-5 * np.linalg.norm(want)


def test_refused_with_a_reason() -> None:
    x = relay.var("x", shape=(1, 2, 4, 5))
    y = relay.image.resize2d(x, [3, 3], coordinate_transformation_mode="tf_crop_and_resize")
    mod = relay.transform.InferType()(relay.IRModule.from_expr(relay.Function([x], y)))
    with pytest.raises(ValueError, match=r"image\.resize2d: only without a region"):
        relay.transform.gradient(mod["main"], mode="first_order")
