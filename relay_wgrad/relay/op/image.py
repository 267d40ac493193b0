"""`relay.image`: operators on images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ast import Call, Expr
from ..make import Sizes, as_argument, call, of_run
from .made.image import *  # noqa: F403


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
