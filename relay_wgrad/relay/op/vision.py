"""`relay.vision`: operators of object detection."""

from __future__ import annotations

from ..ast import Call, Expr
from ..make import call
from .transform import Sizes


def roi_align(
    data: Expr,
    rois: Expr,
    pooled_size: Sizes,
    spatial_scale: float,
    sample_ratio: int = -1,
    layout: str = "NCHW",
    mode: str = "avg",
) -> Call:
    """Regions (n, 5), as (image, x1, y1, x2, y2), each interpolated and pooled to `pooled_size`."""
    return call(
        "vision.roi_align", data, rois, pooled_size=pooled_size, spatial_scale=spatial_scale,
        sample_ratio=sample_ratio, layout=layout, mode=mode,
    )  # fmt: skip


def roi_pool(
    data: Expr, rois: Expr, pooled_size: Sizes, spatial_scale: float, layout: str = "NCHW"
) -> Call:
    """As `roi_align`: the maxima of whole elements."""
    return call(
        "vision.roi_pool", data, rois, pooled_size=pooled_size, spatial_scale=spatial_scale,
        layout=layout,
    )  # fmt: skip


def yolo_reorg(data: Expr, stride: int) -> Call:
    """Darknet's reorganization: an image `stride` times smaller with more channels."""
    return call("vision.yolo_reorg", data, stride=stride)
