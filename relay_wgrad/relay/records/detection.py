"""Boxes of object detection: which count, which overlap, and where they may be.

A count or an index that the tensors do not have is held within them.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from ..types import Dim, TensorType, TupleType, Type
from .facts import OPAQUE
from .loops import Shaped, cell, kernel, loops, when
from .relations import product
from .table import Attr, Call, Site, define, in_float32, show
from .te import choice, program, rank, same

R = relax.op


def _index(call: Call, name: str, size: Dim, lowest: int = 0, width: int = 1) -> int:
    """An attribute that is an element's place in a box; -1 for none where `lowest` is that."""
    value = int(call.attrs[name])
    if value < lowest or (isinstance(size, int) and value + width > size):
        call.fail(f"{name} must be an element of {show(call.tensor())}, got {value}")
    return value


def _boxes(call: Call) -> TensorType:
    """The boxes (batch, anchors, elements), whose attributes are places of elements."""
    data = rank(call, 0, 3)
    if not data.is_float:
        call.fail(f"data must be of floats, got {show(data)}")
    _index(call, "id_index", data.shape[2], lowest=-1)
    _index(call, "score_index", data.shape[2])
    return data


def _valid_counts_type(call: Call) -> Type:
    data = _boxes(call)
    rank(call, 1, 0, 1)
    count = TensorType(data.shape[:1], "int32")
    return TupleType((count, data, TensorType(data.shape[:2], "int32")))


def _valid_counts(s: Site) -> Any:
    identity, score = s.attrs["id_index"], s.attrs["score_index"]

    def compute(s: Site, data: Any, threshold: Any) -> Any:
        batch, anchors, elements = data.shape
        one = data.dtype

        def body(ins: list[Any], outs: list[Any]) -> None:
            (x, limit), (count, boxes, places) = ins, outs
            with loops(batch) as i:
                found = cell("int32", 0)
                with loops(anchors) as j:
                    places[i, j] = tirx.const(-1, "int32")
                    with loops(elements) as k:
                        boxes[i, j, k] = tirx.const(-1, one)
                    valid = x[i, j, score] > limit[_origin(threshold)].astype(one)
                    if identity >= 0:
                        valid = tirx.all(valid, x[i, j, identity] >= tirx.const(0, one))
                    with when(valid):
                        places[i, found[0]] = j.astype("int32")
                        with loops(elements) as k:
                            boxes[i, found[0], k] = x[i, j, k]
                        found[0] += 1
                count[i] = found[0]

        shapes = [((batch,), "int32"), (data.shape, str(one)), ((batch, anchors), "int32")]
        return kernel("valid_counts", [data, threshold], shapes, body)

    return first_results(s, program(s, compute, *s.args), 3)


def _origin(x: Any) -> Any:
    return tuple(0 for _ in x.shape) or 0


def first_results(s: Site, made: Any, count: int) -> Any:
    """The first of the tensors that a program makes."""
    made = s.emit(made)
    return relax.Tuple([s.emit(relax.TupleGetItem(made, i)) for i in range(count)])


def _suppressed_type(call: Call) -> Type:
    data, a = _boxes(call), call.attrs
    _index(call, "coord_start", data.shape[2], width=4)
    same(call, rank(call, 1, 1).shape, data.shape[:1], "there must be a count for each image")
    for index in (3, 4):
        rank(call, index, 0, 1)
    if not a["return_indices"]:
        return data
    same(call, rank(call, 2, 2).shape, data.shape[:2], "there must be an index for each box")
    batch, anchors, _ = data.shape
    return TupleType((TensorType((batch, anchors), "int32"), TensorType((batch, 1), "int32")))


def _suppressed(s: Site) -> Any:
    """The boxes by score, without those that overlap a better one; -1 is what is gone."""
    a = s.attrs
    data, counts, indices, most, threshold = s.args
    if not a["return_indices"]:
        indices = counts

    def ranked(s: Site, data: Any, counts: Any) -> Any:
        low = tirx.min_value(str(data.dtype))
        return te.compute(
            data.shape[:2],
            lambda i, j: tirx.Select(j < counts[i], data[i, j, a["score_index"]], low),
        )

    order = s.emit(
        R.argsort(s.emit(program(s, ranked, data, counts)), axis=1, descending=True, dtype="int32")
    )
    made = program(s, _suppress, data, order, counts, indices, most, threshold)
    rows, *found = first_results(s, made, 3).fields
    return relax.Tuple(found) if a["return_indices"] else rows


def overlap(x: Any, i: Any, j: Any, edge: float = 0.0) -> Any:
    """Area in common over area in either, of boxes with corners `x(i, 0..3)`; `edge` adds to each
    side."""

    def sides(b: Any, k: int) -> tuple[Any, Any]:
        return tirx.min(x(b, k), x(b, k + 2)), tirx.max(x(b, k), x(b, k + 2))

    zero = tirx.const(0.0, "float32")
    common: Any = None
    areas: list[Any] = [None, None]
    for k in (0, 1):
        (low, high), (other, end) = sides(i, k), sides(j, k)
        side = tirx.max(zero, tirx.min(high, end) - tirx.max(low, other) + edge)
        common = side if common is None else common * side
        for n, length in enumerate((high - low + edge, end - other + edge)):
            areas[n] = length if areas[n] is None else areas[n] * length
    either = areas[0] + areas[1] - common
    return tirx.Select(either <= zero, zero, common / either)


def _suppress(s: Site, data: Any, order: Any, counts: Any, indices: Any, *limits: Any) -> Any:
    a = s.attrs
    batch, anchors, elements = data.shape
    score, identity, start = a["score_index"], a["id_index"], a["coord_start"]
    zero, gone = tirx.const(0.0, "float32"), tirx.const(-1.0, "float32")
    no = tirx.const(-1, "int32")

    def body(ins: list[Any], outs: list[Any]) -> None:
        x, sort, valid, named, most, threshold = ins
        out, places, total = outs

        def wipe(i: Any, j: Any) -> None:
            places[i, j] = no
            with loops(elements) as k:
                out[i, j, k] = gone

        with loops(batch) as i:
            count = cell("int32", tirx.max(tirx.min(valid[i].astype("int32"),
                                                    anchors.astype("int32")), 0))  # fmt: skip
            iou, limit = threshold[_origin(limits[1])], most[_origin(limits[0])].astype("int32")
            sorts = iou.astype("float32") > zero
            keep = cell("int32", count[0])
            if a["top_k"] > 0:
                keep[0] = tirx.Select(sorts, tirx.min(count[0], a["top_k"]), count[0])
            with loops(anchors) as j:
                wipe(i, j)
                with when(j < keep[0]):
                    places[i, j] = tirx.Select(sorts, sort[i, j], j.astype("int32"))
                    with loops(elements) as k:
                        out[i, j, k] = x[i, places[i, j], k]
            kept = cell("int32", 0)
            with loops(anchors) as j:
                with when(tirx.all(sorts, j < count[0], kept[0] == limit)):
                    wipe(i, j)
                with when(tirx.all(sorts, j < count[0], out[i, j, score] > zero)):
                    fits = cell("int32", 1)
                    with loops(j) as k:
                        rivals = tirx.all(fits[0] == 1, out[i, k, score] > zero)
                        if identity >= 0:
                            rivals = tirx.all(rivals, out[i, k, identity] >= zero)
                            if not a["force_suppress"]:
                                alike = out[i, j, identity] == out[i, k, identity]
                                rivals = tirx.all(rivals, alike)
                        both = overlap(lambda b, c: out[i, b, start + c], j, k)
                        with when(tirx.all(rivals, both >= iou.astype("float32"))):
                            fits[0] = tirx.const(0, "int32")
                    kept[0] += fits[0]
                    with when(fits[0] == 0):
                        wipe(i, j)
            last = cell("int32", 0)
            if a["return_indices"]:
                _write_rest(i, anchors, places, named, last)
            elif a["invalid_to_bottom"]:
                with loops(anchors) as j, when(out[i, j, 0] >= zero):
                    with loops(elements) as k:
                        out[i, last[0], k] = out[i, j, k]
                    last[0] += 1
                with loops(anchors) as j, when(j >= last[0]):
                    wipe(i, j)
            total[i, 0] = last[0]

    shapes = [(data.shape, "float32"), ((batch, anchors), "int32"), ((batch, 1), "int32")]
    return kernel("suppress", [data, order, counts, indices, *limits], shapes, body)


def _write_rest(i: Any, anchors: Any, places: Any, named: Any, last: Any) -> None:
    """The places that are left, first, by what `named` calls them; their number is `last`."""
    with loops(anchors) as j, when(places[i, j] >= 0):
        places[i, last[0]] = named[i, places[i, j]].astype("int32")
        with when(places[i, last[0]] >= 0):
            last[0] += 1
    with loops(anchors) as j, when(j >= last[0]):
        places[i, j] = tirx.const(-1, "int32")


def _all_class_type(call: Call) -> Type:
    boxes, scores = rank(call, 0, 3), rank(call, 1, 3)
    form = choice(call, "output_format", ("onnx", "tensorflow"))
    batch, classes, count = scores.shape
    wanted = (batch, count, 4)
    same(call, boxes.shape, wanted, "boxes must be (batch, boxes, 4)")
    for index in (2, 3, 4):
        rank(call, index, 0, 1)
    if form == "onnx":
        rows = TensorType((product((batch, classes, count)), 3), "int64")
        return TupleType((rows, TensorType((1,), "int64")))
    many = product((classes, count))
    return TupleType((
        TensorType((batch, many, 2), "int64"), TensorType((batch, many), "float32"),
        TensorType((batch,), "int64"),
    ))  # fmt: skip


def _all_class(s: Site) -> Any:
    boxes, scores, *limits = s.args
    order = s.emit(R.argsort(scores, axis=2, descending=True, dtype="int32"))
    onnx = s.attrs["output_format"] == "onnx"
    return first_results(
        s, program(s, _of_each_class, boxes, scores, order, *limits), 2 if onnx else 3
    )


def _of_each_class(s: Site, boxes: Any, scores: Any, order: Any, *limits: Any) -> Any:
    batch, classes, count = scores.shape
    onnx = s.attrs["output_format"] == "onnx"
    none, no = tirx.const(0, "int64"), tirx.const(0.0, "float32")

    def body(ins: list[Any], outs: list[Any]) -> None:
        x, score, sort, most, iou, least = ins
        rows, *values, totals, alive = outs
        most, iou, least = (
            buffer[_origin(limit)] for buffer, limit in zip((most, iou, least), limits, strict=True)
        )

        def put(i: Any, c: Any, j: Any, found: Any) -> None:
            numbers = [c.astype("int64"), sort[i, c, j].astype("int64")]
            place = (found[0],) if onnx else (i, found[0])
            for k, number in enumerate([i.astype("int64"), *numbers] if onnx else numbers):
                rows[place + (k,)] = number  # noqa: RUF005
            for value in values:
                value[place] = score[i, c, sort[i, c, j]].astype("float32")
            found[0] += 1

        def one_class(i: Any, c: Any, found: Any) -> None:
            # 0 is suppressed.
            with loops(count) as j:
                above = score[i, c, sort[i, c, j]] > least.astype("float32")
                alive[i, c, j] = tirx.Select(above, tirx.const(1, "int32"), tirx.const(0, "int32"))
            kept = cell("int32", 0)
            limit = tirx.Select(most > 0, most.astype("int32"), count.astype("int32"))
            with (
                loops(count) as j,
                when(tirx.all(iou > no, alive[i, c, j] == 1, kept[0] < limit,
                              score[i, c, sort[i, c, j]] > tirx.const(-1.0, "float32"))),
            ):  # fmt: skip
                put(i, c, j, found)
                kept[0] += 1
                with loops(count) as k:
                    rivals = tirx.all(k > j, score[i, c, sort[i, c, k]] > no)
                    both = overlap(lambda b, e: x[i, sort[i, c, b], e], j, k)
                    with when(tirx.all(rivals, both >= iou.astype("float32"))):
                        alive[i, c, k] = tirx.const(0, "int32")

        if onnx:
            with loops(*rows_shape) as place:
                rows[place] = none
            found = cell("int64", 0)
            with loops(batch) as i, loops(classes) as c:
                one_class(i, c, found)
            totals[0] = found[0]
            return
        with loops(*rows_shape) as place:
            rows[place] = none
        with loops(batch, classes * count) as place:
            values[0][place] = no
        with loops(batch) as i:
            found = cell("int64", 0)
            with loops(classes) as c:
                one_class(i, c, found)
            totals[i] = found[0]

    rows_shape: tuple[Any, ...] = (batch, classes * count, 2)
    if onnx:
        rows_shape = (batch * classes * count, 3)
    shapes: list[Shaped] = [(rows_shape, "int64")]
    shapes += [((1,), "int64")] if onnx else [((batch, classes * count), "float32")]
    shapes += [] if onnx else [((batch,), "int64")]
    shapes += [(scores.shape, "int32")]
    return kernel("each_class", [boxes, scores, order, *limits], shapes, body)


_BOX = (Attr("id_index", 0, "int"), Attr("score_index", 1, "int"))
define("vision.get_valid_counts", "data score_threshold", _valid_counts_type, _valid_counts,
       "numpy", Attr("score_threshold", None, "float?", always=True), *_BOX,
       kind=OPAQUE, level=5, numbers={"score_threshold": "float32"}, results=3,
       signature="data, score_threshold, id_index, score_index",
       doc="(how many boxes of an image have a score above, these first, their "
           "places).")  # fmt: skip
define("vision.non_max_suppression", "data valid_count indices max_output_size iou_threshold",
       _suppressed_type, in_float32(_suppressed), "numpy", Attr("force_suppress", False, "bool"),
       Attr("top_k", -1, "int"), Attr("coord_start", 2, "int"), _BOX[1], _BOX[0],
       Attr("return_indices", True, "bool"), Attr("invalid_to_bottom", False, "bool"),
       kind=OPAQUE, level=5, numbers={"max_output_size": "int32", "iou_threshold": "float32"},
       results=("return_indices", {True: 2, False: 0}),
       signature="data, valid_count, indices, max_output_size=-1, iou_threshold=0.5, "
                 "force_suppress, top_k, coord_start, score_index, id_index, return_indices, "
                 "invalid_to_bottom",
       doc="Boxes by score, without those that overlap a better one of their class.\n\n"
           "With `return_indices` (their `indices`, how many): else the boxes, -1 where one is "
           "gone.")  # fmt: skip
define("vision.all_class_non_max_suppression",
       "boxes scores max_output_boxes_per_class iou_threshold score_threshold", _all_class_type,
       in_float32(_all_class), "numpy", Attr("output_format", "onnx", "str"),
       kind=OPAQUE, level=5, results=("output_format", {"onnx": 2, "tensorflow": 3}),
       numbers={"max_output_boxes_per_class": "int32", "iou_threshold": "float32",
                "score_threshold": "float32"},
       signature="boxes, scores, max_output_boxes_per_class=-1, iou_threshold=-1.0, "
                 "score_threshold=-1.0, output_format",
       doc="Of each class the boxes without overlap.\n\n"
           "\"onnx\": (rows of image, class and box, how many of the rows count).  \"tensorflow\": "
           "(an image's\nrows of class and box, their scores, how many of each image's "
           "count).")  # fmt: skip
