"""Boxes about each place of an image, and where a network has moved them."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ..types import TensorType, TupleType, Type
from .detection import first_results
from .facts import OPAQUE
from .loops import cell, kernel, loops, when
from .relations import agree, product
from .table import Attr, Call, Site, define, in_float32, show
from .te import program, rank, same


def _prior_type(call: Call) -> Type:
    data, a = rank(call, 0, 4), call.attrs
    if not a["sizes"] or not a["ratios"] or len(a["steps"]) != 2 or len(a["offsets"]) != 2:
        call.fail(
            f"takes sizes, ratios, two steps and two offsets, got {list(a['sizes'])},"
            f" {list(a['ratios'])}, {list(a['steps'])} and {list(a['offsets'])}"
        )
    if min(a["ratios"]) <= 0:
        call.fail(f"ratios must be positive, got {list(a['ratios'])}")
    each = len(a["sizes"]) + len(a["ratios"]) - 1
    return TensorType((1, product((*data.shape[2:], each)), 4), data.dtype)


def _prior(s: Site, data: Any) -> Any:
    """Boxes about the middle of each place, of every size, and of the first in every ratio."""
    a, (_, _, height, width) = s.attrs, data.shape
    shapes = [(size, 1.0) for size in a["sizes"]]
    shapes += [(a["sizes"][0], ratio) for ratio in a["ratios"][1:]]
    high, wide = height.astype("float32"), width.astype("float32")

    def step(i: int, size: Any) -> Any:
        given = a["steps"][i]
        return tirx.const(given, "float32") if given > 0 else tirx.const(1.0, "float32") / size

    def of_shape(values: list[float], k: Any) -> Any:
        out = tirx.const(values[-1], "float32")
        for n, value in list(enumerate(values))[-2::-1]:
            out = tirx.Select(k == n, tirx.const(value, "float32"), out)
        return out

    def at(_: Any, place: Any, edge: Any) -> Any:
        k, cell_ = place % len(shapes), place // len(shapes)
        x, y = (cell_ % width).astype("float32"), (cell_ // width).astype("float32")
        x = (x + a["offsets"][1]) * step(1, wide)
        y = (y + a["offsets"][0]) * step(0, high)
        half_w = of_shape([size * ratio**0.5 / 2 for size, ratio in shapes], k) * high / wide
        half_h = of_shape([size / ratio**0.5 / 2 for size, ratio in shapes], k)
        middle, half = tirx.Select(edge % 2 == 0, x, y), tirx.Select(edge % 2 == 0, half_w, half_h)
        made = tirx.Select(edge < 2, middle - half, middle + half)
        if a["clip"]:
            made = tirx.max(tirx.min(made, tirx.const(1.0, "float32")), tirx.const(0.0, "float32"))
        return made.astype(data.dtype)

    return te.compute((1, height * width * len(shapes), 4), at)


def _located_type(call: Call) -> Type:
    scores, moved, anchors = rank(call, 0, 3), rank(call, 1, 2), rank(call, 2, 3)
    dtype = call.same_dtype(0, 1, 2)
    batch, _, count = scores.shape
    same(call, moved.shape, (batch, product((count, 4))), "loc_pred must have 4 numbers an anchor")
    if not agree(anchors.shape[1], count) or not agree(anchors.shape[2], 4):
        call.fail(f"anchor must be (1, {count}, 4), got {show(anchors)}")
    if len(call.attrs["variances"]) != 4:
        call.fail(f"variances must be four, got {list(call.attrs['variances'])}")
    return TupleType((TensorType((batch, count, 6), dtype), TensorType((batch,), "int32")))


def _located(s: Site, scores: Any, moved: Any, anchors: Any) -> Any:
    """The likeliest class of each anchor, but the background, with its score and corners."""
    a, (batch, classes, count) = s.attrs, scores.shape
    no, yes = tirx.const(0.0, "float32"), tirx.const(1.0, "float32")
    keeps = a["keep_background"]

    def corners(x: Any, box: Any, i: Any, j: Any) -> list[Any]:
        variances = [tirx.const(v, "float32") for v in a["variances"]]
        out: list[Any] = [None] * 4
        for k in (0, 1):
            low, high = box[0, j, k], box[0, j, k + 2]
            size = high - low
            middle = x[i, j * 4 + k] * variances[k] * size + (low + high) / 2
            half = te.exp(x[i, j * 4 + k + 2] * variances[k + 2]) * size / 2
            out[k], out[k + 2] = middle - half, middle + half
        return [tirx.max(no, tirx.min(yes, edge)) for edge in out] if a["clip"] else out

    def body(ins: list[Any], outs: list[Any]) -> None:
        (score, x, box), (out, counts) = ins, outs
        with loops(batch) as i:
            found = cell("int32", 0)
            with loops(count) as j:
                with loops(6) as k:
                    out[i, j, k] = tirx.const(-1.0, "float32")
                best, which = cell("float32", -1.0), cell("int32", 0)
                with loops(classes) as k:
                    allowed = tirx.const(True) if keeps else k > 0
                    with when(tirx.all(allowed, score[i, k, j] > best[0])):
                        best[0], which[0] = score[i, k, j], k.astype("int32")
                with when(tirx.all(which[0] > 0, best[0] < a["threshold"])):
                    which[0] = tirx.const(0, "int32")
                with when(tirx.const(True) if keeps else which[0] > 0):
                    out[i, found[0], 0] = which[0].astype("float32") - (no if keeps else yes)
                    out[i, found[0], 1] = best[0]
                    for k, edge in enumerate(corners(x, box, i, j)):
                        out[i, found[0], 2 + k] = edge
                    found[0] += 1
            counts[i] = found[0]

    shapes = [((batch, count, 6), "float32"), ((batch,), "int32")]
    return kernel("located", [scores, moved, anchors], shapes, body)


define("vision.multibox_prior", "data", _prior_type, lambda s: program(s, _prior, *s.args), "numpy",
       Attr("sizes", (1.0,), "floats"), Attr("ratios", (1.0,), "floats"),
       Attr("steps", (-1.0, -1.0), "floats"), Attr("offsets", (0.5, 0.5), "floats"),
       Attr("clip", False, "bool"),
       kind=OPAQUE, level=5,
       doc="Boxes about each place of an image, of every size, and of the first in every "
           "ratio.")  # fmt: skip
define("vision.multibox_transform_loc", "cls_prob loc_pred anchor", _located_type,
       in_float32(lambda s: first_results(s, program(s, _located, *s.args), 2)), "numpy",
       Attr("clip", True, "bool"), Attr("threshold", 0.01, "float"),
       Attr("variances", (0.1, 0.1, 0.2, 0.2), "floats"), Attr("keep_background", False, "bool"),
       kind=OPAQUE, level=5, results=2,
       doc="(each anchor's class, score and corners where it was moved to, how many of them "
           "count).")  # fmt: skip
