"""Written by `pytest --update-golden tests/relay_wgrad/relay/test_builders.py`."""

# fmt: off

from collections.abc import Sequence

from ...ast import Call, Expr
from ...make import Sizes

__all__ = ["affine_grid", "crop_and_resize", "dilation2d", "grid_sample", "resize1d", "resize2d",
    "resize3d"]
def affine_grid(data: Expr, target_shape: Sizes | None = None) -> Call: ...
def crop_and_resize(
    data: Expr, boxes: Expr, box_indices: Expr, crop_size: Sizes, layout: str, method: str =
    "bilinear", extrapolation_value: float = 0.0, out_dtype: str | None = None
) -> Call: ...
def dilation2d(
    data: Expr, weight: Expr, strides: Sizes = (1, 1), padding: Sizes = (0, 0), dilations: Sizes =
    (1, 1), data_layout: str = "NCHW", kernel_layout: str = "IHW", out_dtype: str = ""
) -> Call: ...
def grid_sample(
    data: Expr, grid: Expr, method: str = "bilinear", layout: str = "NCHW", padding_mode: str =
    "zeros", align_corners: bool = True
) -> Call: ...
def resize1d(
    data: Expr, size: Sizes, roi: Sequence[float] | None = None, layout: str = "NCW", method: str =
    "linear", coordinate_transformation_mode: str = "half_pixel", rounding_method: str = "",
    cubic_alpha: float = -0.5, cubic_exclude: int = 0, extrapolation_value: float = 0.0, out_dtype:
    str | None = None
) -> Call: ...
def resize2d(
    data: Expr, size: Sizes, roi: Sequence[float] | Expr | None = None, layout: str = "NCHW",
    method: str = "linear", coordinate_transformation_mode: str = "half_pixel", rounding_method: str
    = "", cubic_alpha: float = -0.5, cubic_exclude: int = 0, extrapolation_value: float = 0.0,
    out_dtype: str | None = None
) -> Call: ...
def resize3d(
    data: Expr, size: Sizes, roi: Sequence[float] | None = None, layout: str = "NCDHW", method: str
    = "linear", coordinate_transformation_mode: str = "half_pixel", rounding_method: str = "",
    cubic_alpha: float = -0.5, cubic_exclude: int = 0, extrapolation_value: float = 0.0, out_dtype:
    str | None = None
) -> Call: ...
