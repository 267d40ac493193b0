"""`relay.image`: operators on images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ast import Call, Expr
from ..make import as_argument, call, of_run
from .transform import Sizes


def _resize(axes: int, data: Expr, size: Sizes, roi: Any, **attrs: Any) -> Call:
    roi = [0.0] * (2 * axes) if roi is None else roi
    if axes == 2 and of_run(size, roi):
        given = as_argument(size, "int64"), as_argument(roi, "float32")
        return call("dyn.image.resize2d", data, *given, **attrs)
    return call(f"image.resize{axes}d", data, size=size, roi=roi, **attrs)


def resize1d(
    data: Expr,
    size: Sizes,
    roi: Sequence[float] | Expr | None = None,
    layout: str = "NCW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str | None = None,
) -> Call:
    """Interpolation along W to `size` elements.

    `method` is nearest_neighbor, linear or cubic; `coordinate_transformation_mode` is ONNX's;
    `roi`, (begin, end), counts with "tf_crop_and_resize".
    """
    return _resize(
        1, data, size, roi, layout=layout, method=method,
        coordinate_transformation_mode=coordinate_transformation_mode,
        rounding_method=rounding_method, cubic_alpha=cubic_alpha, cubic_exclude=cubic_exclude,
        extrapolation_value=extrapolation_value, out_dtype=out_dtype,
    )  # fmt: skip


def resize2d(
    data: Expr,
    size: Sizes,
    roi: Sequence[float] | Expr | None = None,
    layout: str = "NCHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str | None = None,
) -> Call:
    """As `resize1d`, along H and W."""
    return _resize(
        2, data, size, roi, layout=layout, method=method,
        coordinate_transformation_mode=coordinate_transformation_mode,
        rounding_method=rounding_method, cubic_alpha=cubic_alpha, cubic_exclude=cubic_exclude,
        extrapolation_value=extrapolation_value, out_dtype=out_dtype,
    )  # fmt: skip


def resize3d(
    data: Expr,
    size: Sizes,
    roi: Sequence[float] | Expr | None = None,
    layout: str = "NCDHW",
    method: str = "linear",
    coordinate_transformation_mode: str = "half_pixel",
    rounding_method: str = "",
    cubic_alpha: float = -0.5,
    cubic_exclude: int = 0,
    extrapolation_value: float = 0.0,
    out_dtype: str | None = None,
) -> Call:
    """As `resize1d`, along D, H and W."""
    return _resize(
        3, data, size, roi, layout=layout, method=method,
        coordinate_transformation_mode=coordinate_transformation_mode,
        rounding_method=rounding_method, cubic_alpha=cubic_alpha, cubic_exclude=cubic_exclude,
        extrapolation_value=extrapolation_value, out_dtype=out_dtype,
    )  # fmt: skip


def crop_and_resize(
    data: Expr,
    boxes: Expr,
    box_indices: Expr,
    crop_size: Sizes,
    layout: str,
    method: str = "bilinear",
    extrapolation_value: float = 0,
    out_dtype: str | None = None,
) -> Call:
    """Boxes (n, 4), as (y1, x1, y2, x2) in parts of an image, each resized to `crop_size`."""
    return call(
        "image.crop_and_resize", data, boxes, box_indices, crop_size=crop_size, layout=layout,
        method=method, extrapolation_value=extrapolation_value, out_dtype=out_dtype,
    )  # fmt: skip


def dilation2d(
    data: Expr,
    weight: Expr,
    strides: Sizes = (1, 1),
    padding: Sizes = (0, 0),
    dilations: Sizes = (1, 1),
    data_layout: str = "NCHW",
    kernel_layout: str = "IHW",
    out_dtype: str = "",
) -> Call:
    """The maximum over a window of data plus weight, for each channel."""
    return call(
        "image.dilation2d", data, weight, strides=strides, padding=padding, dilations=dilations,
        data_layout=data_layout, kernel_layout=kernel_layout, out_dtype=out_dtype,
    )  # fmt: skip


def affine_grid(data: Expr, target_shape: Sizes | None = None) -> Call:
    """Affine maps (n, 2, 3) as the points (n, 2, H, W) from which `grid_sample` takes."""
    return call("image.affine_grid", data, target_shape=target_shape)


def grid_sample(
    data: Expr,
    grid: Expr,
    method: str = "bilinear",
    layout: str = "NCHW",
    padding_mode: str = "zeros",
    align_corners: bool = True,
) -> Call:
    """`data` at the points of `grid`, whose second axis is (x, y) or (x, y, z) in [-1, 1]."""
    return call(
        "image.grid_sample", data, grid, method=method, layout=layout, padding_mode=padding_mode,
        align_corners=align_corners,
    )  # fmt: skip
