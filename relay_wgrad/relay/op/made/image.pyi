"""Written by `pytest --update-golden tests/relay_wgrad/relay/test_builders.py`."""

# fmt: off

from ...ast import Call, Expr
from ...make import Sizes

__all__ = ["affine_grid", "crop_and_resize", "dilation2d", "grid_sample"]
def affine_grid(data: Expr, target_shape: Sizes | None = None) -> Call: ...
def crop_and_resize(
    data: Expr, boxes: Expr, box_indices: Expr, crop_size: Sizes, layout: str, method: str =
    "bilinear", extrapolation_value: float = 0, out_dtype: str | None = None
) -> Call: ...
def dilation2d(
    data: Expr, weight: Expr, strides: Sizes = (1, 1), padding: Sizes = (0, 0), dilations: Sizes =
    (1, 1), data_layout: str = "NCHW", kernel_layout: str = "IHW", out_dtype: str = ""
) -> Call: ...
def grid_sample(
    data: Expr, grid: Expr, method: str = "bilinear", layout: str = "NCHW", padding_mode: str =
    "zeros", align_corners: bool = True
) -> Call: ...
