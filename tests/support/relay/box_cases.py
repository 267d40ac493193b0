"""Calls of operators on boxes, with what loops in Python give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .op_case import RNG, Case, real


def _overlap(a: Any, b: Any) -> float:
    low = np.maximum(np.minimum(a[:2], a[2:]), np.minimum(b[:2], b[2:]))
    high = np.minimum(np.maximum(a[:2], a[2:]), np.maximum(b[:2], b[2:]))
    common = np.prod(np.maximum(high - low, 0))
    either = sum(abs(np.prod(x[2:] - x[:2])) for x in (a, b)) - common
    return float(common / either) if either > 0 else 0.0


def _corners(*shape: int) -> np.ndarray:
    """Boxes of which many overlap."""
    corner = RNG.uniform(0, 4, (*shape, 2))
    return np.concatenate([corner, corner + RNG.uniform(1, 4, (*shape, 2))], -1)


def _rows(batch: int, count: int) -> np.ndarray:
    """(class, score, corners)."""
    head = [RNG.integers(0, 2, (batch, count, 1)), RNG.permutation(batch * count).reshape(
        batch, count, 1) / (batch * count) - 0.1]  # fmt: skip
    return np.concatenate([*head, _corners(batch, count)], -1).astype("float32")


def _counted(x: Any, least: Any) -> Any:
    """Those of a class from 0 on with a score above."""
    counts, rows = [], np.full_like(x, -1)
    places = np.full(x.shape[:2], -1, "int32")
    for i, image in enumerate(x):
        found = [j for j, row in enumerate(image) if row[1] > least and row[0] >= 0]
        counts.append(len(found))
        rows[i, : len(found)], places[i, : len(found)] = image[found], found
    return np.array(counts, "int32"), rows, places


def _kept(x: Any, valid: Any, most: int, iou: float, every: bool, top: int) -> Iterator[Any]:
    """Of each image, the rows by score, and whether each stays."""
    for i, image in enumerate(x):
        count = min(max(int(valid[i]), 0), len(image))
        order = np.argsort(-image[:count, 1], kind="stable")
        order = order[:top] if top > 0 else order
        stays: list[bool] = []
        for j in order:
            rivals = [k for k, s in zip(order, stays, strict=False) if s and image[k, 1] > 0]
            rivals = [k for k in rivals if every or image[k, 0] == image[j, 0]]
            before = [image[k, 1] > 0 for k, kept in zip(order, stays, strict=False) if kept]
            near = any(_overlap(image[j, 2:], image[k, 2:]) >= iou for k in rivals)
            full = most >= 0 and sum(before) == most
            stays.append(not full and (image[j, 1] <= 0 or not near))
        yield list(zip(order, stays, strict=True))


def _suppressed(every: bool, top: int, bottom: bool = False) -> Any:
    def rows(x: Any, valid: Any, _: Any, most: Any, iou: Any) -> Any:
        out = np.full_like(x, -1)
        for i, kept in enumerate(_kept(x, valid, int(most), float(iou), every, top)):
            for place, (j, stays) in enumerate(kept):
                if stays:
                    out[i, place] = x[i, j]
            if bottom:
                whole = out[i][out[i, :, 0] >= 0]
                out[i] = -1
                out[i, : len(whole)] = whole
        return out

    return rows


def _named(x: Any, valid: Any, names: Any, most: Any, iou: Any) -> Any:
    out, counts = np.full(x.shape[:2], -1, "int32"), []
    for i, kept in enumerate(_kept(x, valid, int(most), float(iou), False, -1)):
        found = [names[i, j] for j, stays in kept if stays]
        out[i, : len(found)] = found
        counts.append([len(found)])
    return out, np.array(counts, "int32")


def _of_classes(boxes: Any, scores: Any, most: Any, iou: Any, least: Any) -> list[list[Any]]:
    """Of each image (class, box, score)."""
    out = []
    for i, image in enumerate(scores):
        rows: list[Any] = []
        for c, line in enumerate(image):
            chosen: list[int] = []
            for j in np.argsort(-line, kind="stable"):
                near = any(_overlap(boxes[i, j], boxes[i, k]) >= iou for k in chosen)
                if line[j] > least and len(chosen) < most and not near:
                    chosen.append(int(j))
            rows += [(c, j, line[j]) for j in chosen]
        out.append(rows)
    return out


def _onnx(boxes: Any, scores: Any, *limits: Any) -> Any:
    found = [
        (i, c, j) for i, rows in enumerate(_of_classes(boxes, scores, *limits)) for c, j, _ in rows
    ]
    out = np.zeros((scores.size, 3), "int64")
    out[: len(found)] = found
    return out, np.array([len(found)], "int64")


def _tensorflow(boxes: Any, scores: Any, *limits: Any) -> Any:
    n, many = scores.shape[0], scores.shape[1] * scores.shape[2]
    out, values = np.zeros((n, many, 2), "int64"), np.zeros((n, many), "float32")
    counts = []
    for i, rows in enumerate(_of_classes(boxes, scores, *limits)):
        for place, (c, j, score) in enumerate(rows):
            out[i, place], values[i, place] = (c, j), score
        counts.append(len(rows))
    return out, values, np.array(counts, "int64")


def _prior(x: Any, clip: bool) -> Any:
    """Sizes 0.3 and 1.5, ratios 1.3 and 2.4, steps 2 and automatic, offsets 0.2 and 0.3."""
    h, w = x.shape[2:]
    out = []
    for i, j in np.ndindex(h, w):
        y, across = (i + 0.2) * 2.0, (j + 0.3) / w
        for size, ratio in ((0.3, 1.0), (1.5, 1.0), (0.3, 2.4)):
            half_w, half_h = size * h / w * ratio**0.5 / 2, size / ratio**0.5 / 2
            out.append([across - half_w, y - half_h, across + half_w, y + half_h])
    made = np.array([out], "float32")
    return np.clip(made, 0, 1) if clip else made


def _located(keeps: bool) -> Any:
    def rows(scores: Any, moved: Any, anchors: Any) -> Any:
        batch, _, count = scores.shape
        out, counts = np.full((batch, count, 6), -1, "float32"), np.zeros(batch, "int32")
        for i, j in np.ndindex(batch, count):
            line = scores[i, 0 if keeps else 1 :, j]
            which = int(np.argmax(line)) + (not keeps)
            best = line.max()
            which = 0 if best < 0.3 else which
            if not keeps and which == 0:
                continue
            low, high = anchors[0, j, :2], anchors[0, j, 2:]
            m = moved[i, 4 * j : 4 * j + 4]
            middle = m[:2] * 0.1 * (high - low) + (low + high) / 2
            half = np.exp(m[2:] * 0.2) * (high - low) / 2
            corners = np.clip(np.concatenate([middle - half, middle + half]), 0, 1)
            out[i, counts[i]] = [which - (not keeps), best, *corners]
            counts[i] += 1
        return out, counts

    return rows


def cases() -> Iterator[Case]:
    """Counts, suppression with its switches, both forms of all classes, boxes about places."""
    x = _rows(2, 9)
    x[0, 3, 0] = -1
    yield Case("vision.get_valid_counts", (x, np.float32(0.4)), _counted)
    names = np.stack([RNG.permutation(40)[:9] for _ in range(2)]).astype("int32")
    # More than there are count as all.
    limits = (np.array([7, 99], "int32"), names, np.int32(-1), np.float32(0.2))
    for every, top, bottom in ((False, -1, False), (True, 5, False), (False, 6, True)):
        yield Case("vision.non_max_suppression", (_rows(2, 9), *limits),
                   _suppressed(every, top, bottom),
                   {"force_suppress": every, "top_k": top, "return_indices": False,
                    "invalid_to_bottom": bottom})  # fmt: skip
    few = (*limits[:2], np.int32(2), limits[3])
    yield Case("vision.non_max_suppression", (_rows(2, 9), *few), _suppressed(False, -1),
               {"return_indices": False})  # fmt: skip
    positive = _rows(2, 9)
    positive[..., 1] += np.float32(0.2)
    yield Case("vision.non_max_suppression", (positive, *limits), _named)
    boxes, scores = _corners(2, 7).astype("float32"), real(2, 3, 7)
    each = (boxes, scores, np.int32(3), np.float32(0.3), np.float32(0.1))
    yield Case("vision.all_class_non_max_suppression", each, _onnx)
    yield Case("vision.all_class_non_max_suppression", each, _tensorflow,
               {"output_format": "tensorflow"})  # fmt: skip
    for clip in (False, True):
        yield Case("vision.multibox_prior", (real(1, 2, 3, 4),), lambda x, c=clip: _prior(x, c),
                   {"sizes": [0.3, 1.5], "ratios": [1.3, 2.4], "steps": [2.0, -1.0],
                    "offsets": [0.2, 0.3], "clip": clip})  # fmt: skip
    chances = RNG.dirichlet(np.ones(4), (2, 5)).transpose(0, 2, 1).astype("float32")
    for keeps in (False, True):
        yield Case("vision.multibox_transform_loc",
                   (chances, real(2, 20), _corners(1, 5).astype("float32") / 8), _located(keeps),
                   {"threshold": 0.3, "keep_background": keeps})  # fmt: skip
