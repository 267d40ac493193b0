"""Written by `pytest --update-golden tests/relay_wgrad/relay/test_builders.py`."""

# fmt: off

from collections.abc import Sequence

from ...ast import Call, Expr
from ...make import Sizes

__all__ = ["multibox_prior", "roi_align", "roi_pool", "yolo_reorg"]
def multibox_prior(
    data: Expr, sizes: Sequence[float] = (1.0,), ratios: Sequence[float] = (1.0,), steps:
    Sequence[float] = (-1.0, -1.0), offsets: Sequence[float] = (0.5, 0.5), clip: bool = False
) -> Call: ...
def roi_align(
    data: Expr, rois: Expr, pooled_size: Sizes, spatial_scale: float, sample_ratio: int = -1,
    layout: str = "NCHW", mode: str = "avg"
) -> Call: ...
def roi_pool(
    data: Expr, rois: Expr, pooled_size: Sizes, spatial_scale: float, layout: str = "NCHW"
) -> Call: ...
def yolo_reorg(data: Expr, stride: int) -> Call: ...
