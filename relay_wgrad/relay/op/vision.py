"""`relay.vision`: operators of object detection."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Call, Expr
from ..expr import TupleWrapper, const
from ..make import call
from .made.vision import *  # noqa: F403

Number = Expr | float


def _scalar(value: Number, dtype: str = "float32") -> Expr:
    return const(value, dtype) if isinstance(value, (int, float)) else value


def get_valid_counts(
    data: Expr, score_threshold: Number, id_index: int = 0, score_index: int = 1
) -> TupleWrapper:
    """(how many boxes of an image have a score above, these first, their places)."""
    made = call(
        "vision.get_valid_counts", data, _scalar(score_threshold), id_index=id_index,
        score_index=score_index,
    )  # fmt: skip
    return TupleWrapper(made, 3)


def non_max_suppression(
    data: Expr,
    valid_count: Expr,
    indices: Expr,
    max_output_size: Expr | int = -1,
    iou_threshold: Number = 0.5,
    force_suppress: bool = False,
    top_k: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = 0,
    return_indices: bool = True,
    invalid_to_bottom: bool = False,
) -> Call | TupleWrapper:
    """Boxes by score, without those that overlap a better one of their class.

    With `return_indices` (their `indices`, how many): else the boxes, -1 where one is gone.
    """
    made = call(
        "vision.non_max_suppression", data, valid_count, indices,
        _scalar(max_output_size, "int32"), _scalar(iou_threshold), force_suppress=force_suppress,
        top_k=top_k, coord_start=coord_start, score_index=score_index, id_index=id_index,
        return_indices=return_indices, invalid_to_bottom=invalid_to_bottom,
    )  # fmt: skip
    return TupleWrapper(made, 2) if return_indices else made


def all_class_non_max_suppression(
    boxes: Expr,
    scores: Expr,
    max_output_boxes_per_class: Expr | int = -1,
    iou_threshold: Number = -1.0,
    score_threshold: Number = -1.0,
    output_format: str = "onnx",
) -> TupleWrapper:
    """Of each class the boxes without overlap.

    "onnx": (rows of image, class and box, how many of the rows count).  "tensorflow": (an image's
    rows of class and box, their scores, how many of each image's count).
    """
    made = call(
        "vision.all_class_non_max_suppression", boxes, scores,
        _scalar(max_output_boxes_per_class, "int32"), _scalar(iou_threshold),
        _scalar(score_threshold), output_format=output_format,
    )  # fmt: skip
    return TupleWrapper(made, 2 if output_format == "onnx" else 3)


def multibox_transform_loc(
    cls_prob: Expr,
    loc_pred: Expr,
    anchor: Expr,
    clip: bool = True,
    threshold: float = 0.01,
    variances: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    keep_background: bool = False,
) -> TupleWrapper:
    """(each anchor's class, score and corners where it was moved to, how many of them count)."""
    made = call(
        "vision.multibox_transform_loc", cls_prob, loc_pred, anchor, clip=clip,
        threshold=threshold, variances=variances, keep_background=keep_background,
    )  # fmt: skip
    return TupleWrapper(made, 2)
