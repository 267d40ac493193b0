"""Written by `pytest --update-golden tests/relay_wgrad/relay/test_builders.py`."""

# fmt: off

from collections.abc import Sequence

from ...ast import Call, Expr
from ...expr import TupleWrapper
from ...make import Sizes

__all__ = ["all_class_non_max_suppression", "get_valid_counts", "multibox_prior",
    "multibox_transform_loc", "non_max_suppression", "roi_align", "roi_pool", "yolo_reorg"]
def all_class_non_max_suppression(
    boxes: Expr, scores: Expr, max_output_boxes_per_class: Expr | int = -1, iou_threshold: Expr |
    float = -1.0, score_threshold: Expr | float = -1.0, output_format: str = "onnx"
) -> TupleWrapper: ...
def get_valid_counts(
    data: Expr, score_threshold: Expr | float, id_index: int = 0, score_index: int = 1
) -> TupleWrapper: ...
def multibox_prior(
    data: Expr, sizes: Sequence[float] = (1.0,), ratios: Sequence[float] = (1.0,), steps:
    Sequence[float] = (-1.0, -1.0), offsets: Sequence[float] = (0.5, 0.5), clip: bool = False
) -> Call: ...
def multibox_transform_loc(
    cls_prob: Expr, loc_pred: Expr, anchor: Expr, clip: bool = True, threshold: float = 0.01,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2), keep_background: bool = False
) -> TupleWrapper: ...
def non_max_suppression(
    data: Expr, valid_count: Expr, indices: Expr, max_output_size: Expr | int = -1, iou_threshold:
    Expr | float = 0.5, force_suppress: bool = False, top_k: int = -1, coord_start: int = 2,
    score_index: int = 1, id_index: int = 0, return_indices: bool = True, invalid_to_bottom: bool =
    False
) -> Call | TupleWrapper: ...
def roi_align(
    data: Expr, rois: Expr, pooled_size: Sizes, spatial_scale: float, sample_ratio: int = -1,
    layout: str = "NCHW", mode: str = "avg"
) -> Call: ...
def roi_pool(
    data: Expr, rois: Expr, pooled_size: Sizes, spatial_scale: float, layout: str = "NCHW"
) -> Call: ...
def yolo_reorg(data: Expr, stride: int) -> Call: ...
