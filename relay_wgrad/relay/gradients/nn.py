"""Gradients of products of matrices, of the bias, of upsampling, of losses."""

from __future__ import annotations

from ..ast import Call, Expr
from ..records import attributes_of
from ..records.nn import resize_matrix
from ..records.table import Call as Site
from ..records.table import show
from ..records.windows import spatial_axes
from .common import (
    Rule,
    call,
    cast_like,
    collapse_sum_like,
    constant,
    in_float32,
    log,
    refuse,
    reshape,
    reshape_like,
    scalar,
    sizes,
    total,
    transpose,
    type_of,
    where,
    zeros_like,
)


def _bias_add(orig: Call, grad: Expr) -> list[Expr]:
    axis = attributes_of(orig)["axis"]
    bias = call("sum", grad, axis=[axis], keepdims=False, exclude=True)
    return [collapse_sum_like(grad, orig.args[0]), bias]


def _of_dtype(x: Expr, dtype: str, now: str) -> Expr:
    return x if now == dtype else call("cast", x, dtype=dtype)


def _rows(orig: Call, x: Expr) -> Expr:
    """A matrix of the last axis; all others are rows."""
    *rest, last = type_of(x).shape
    if len(rest) == 1:
        return x
    if not isinstance(last, int):
        refuse(orig, f"needs a known last size, got {show(type_of(x))}")
    return reshape(x, [-1, last])


def _dense(orig: Call, grad: Expr) -> list[Expr]:
    """y = x wᵀ:  dx = g w,  dw = gᵀ x."""
    data, weight = orig.args
    dtype = type_of(orig).dtype
    x = _of_dtype(_rows(orig, data), dtype, type_of(data).dtype)
    w = _of_dtype(weight, dtype, type_of(weight).dtype)
    g = grad if len(type_of(data).shape) == 2 else reshape(grad, [-1, sizes(orig, weight)[0]])
    units = sizes(orig, weight)[1]
    by_data = call("nn.dense", grad, transpose(w), units=units)
    by_weight = call("nn.dense", transpose(g), transpose(x), units=units)
    return [
        collapse_sum_like(_of_dtype(by_data, type_of(data).dtype, dtype), data),
        collapse_sum_like(_of_dtype(by_weight, type_of(weight).dtype, dtype), weight),
    ]


# Of y = a b, with either transposed: which product is a's gradient, and which b's.
# Operands "g", "a", "b", each with whether it is transposed.
_PRODUCTS = {
    (False, False): ((("g", False), ("b", True)), (("a", True), ("g", False))),
    (False, True): ((("g", False), ("b", False)), (("g", True), ("a", False))),
    (True, False): ((("b", False), ("g", True)), (("a", False), ("g", False))),
    (True, True): ((("b", True), ("g", True)), (("g", True), ("a", True))),
}


def _products(orig: Call, name: str, operands: dict[str, Expr]) -> list[Expr]:
    a = attributes_of(orig)
    out: list[Expr] = []
    for (first, first_t), (second, second_t) in _PRODUCTS[a["transpose_a"], a["transpose_b"]]:
        attrs = {"transpose_a": first_t, "transpose_b": second_t}
        out.append(call(name, operands[first], operands[second], **attrs))
    return out


def _matmul(orig: Call, grad: Expr) -> list[Expr]:
    """As of matrices; further axes of `a` are rows."""
    (a, b), attrs = orig.args, attributes_of(orig)
    if not attrs["transpose_a"] and attrs["transpose_b"]:
        return _dense(orig, grad)
    dtype, ndim = type_of(orig).dtype, len(type_of(a).shape)
    rows, g = a, grad
    back: list[int] | None = None
    if ndim != 2:
        if attrs["transpose_a"]:
            # Its columns are rows of the product: with them in front of K it is a plain one.
            back = [*range(ndim - 2), ndim - 1, ndim - 2]
            rows = transpose(a, back)
        shape = sizes(orig, a)
        k = shape[-2] if back else shape[-1]
        rows, g = reshape(rows, [-1, k]), reshape(grad, [-1, sizes(orig, orig)[-1]])
    operands = {
        "g": g,
        "a": _of_dtype(rows, dtype, type_of(a).dtype),
        "b": _of_dtype(b, dtype, type_of(b).dtype),
    }
    if back is not None:
        plain = Call(orig.op, (a, b), {**orig.attrs, "transpose_a": False})
        by_a, by_b = _products(plain, "nn.matmul", operands)
        shape = sizes(orig, a)
        by_a = transpose(reshape(by_a, [*shape[:-2], shape[-1], shape[-2]]), back)
    else:
        by_a, by_b = _products(orig, "nn.matmul", operands)
        by_a = reshape_like(by_a, a) if ndim != 2 else by_a
    return [
        collapse_sum_like(_of_dtype(by_a, type_of(a).dtype, dtype), a),
        collapse_sum_like(_of_dtype(by_b, type_of(b).dtype, dtype), b),
    ]


def _batch_matmul(orig: Call, grad: Expr) -> list[Expr]:
    a, b = orig.args
    dtype = type_of(orig).dtype
    operands = {
        "g": grad,
        "a": _of_dtype(a, dtype, type_of(a).dtype),
        "b": _of_dtype(b, dtype, type_of(b).dtype),
    }
    return [
        collapse_sum_like(_of_dtype(part, type_of(arg).dtype, dtype), arg)
        for part, arg in zip(_products(orig, "nn.batch_matmul", operands), (a, b), strict=True)
    ]


def _prelu(orig: Call, grad: Expr) -> list[Expr]:
    x, alpha = orig.args
    axis, ndim = attributes_of(orig)["axis"], len(type_of(x).shape)
    wide = call("expand_dims", alpha, axis=1, num_newaxis=ndim - axis - 1)
    zeros = zeros_like(x)
    positive = call("greater", x, zeros)
    by_alpha = where(positive, zeros, grad * x)
    return [
        where(positive, grad, grad * wide),
        call("sum", by_alpha, axis=[axis], exclude=True),
    ]


def times_matrix(x: Expr, axis: int, ndim: int, matrix: Expr) -> Expr:
    """`matrix` (out, in) along an axis."""
    order = [*(i for i in range(ndim) if i != axis), axis]
    back = [order.index(i) for i in range(ndim)]
    if axis != ndim - 1:
        x = transpose(x, order)
    x = call("nn.dense", x, matrix)
    return transpose(x, back) if axis != ndim - 1 else x


def _upsampling(orig: Call, grad: Expr) -> list[Expr]:
    """Each pixel gets what the new ones that it is part of got."""
    data, a = orig.args[0], attributes_of(orig)
    shape, made = sizes(orig, data), list(sizes(orig, orig))
    linear, align = a["method"] == "bilinear", a["align_corners"]
    site = Site("nn.upsampling", ("data",), (type_of(data),), a)
    for axis in spatial_axes(site, a["layout"]):
        size, out = shape[axis], made[axis]
        made[axis] = size
        if size == out:
            continue
        if not linear and not align and out % size == 0:
            wide = [*made[: axis + 1], out // size, *made[axis + 1 :]]
            grad = total(reshape(grad, wide), [axis + 1])
            continue
        matrix = constant(resize_matrix(size, out, linear, align).T, type_of(data).dtype)
        grad = times_matrix(grad, axis, len(shape), matrix)
    return [grad]


def _cross_entropy(orig: Call, grad: Expr) -> list[Expr]:
    x, y = orig.args
    grad = grad / scalar(sizes(orig, x)[0], x)
    return [-grad * y / x, -grad * log(x)]


def _cross_entropy_with_logits(orig: Call, grad: Expr) -> list[Expr]:
    x, y = orig.args
    grad = grad / scalar(sizes(orig, x)[0], x)
    return [-grad * y, -grad * x]


def _nll_loss(orig: Call, grad: Expr) -> list[Expr]:
    """y = -sum w[t] x[t] over what is not ignored; the mean over the sum of its w[t]."""
    (x, t, weights), a = orig.args, attributes_of(orig)
    shape = sizes(orig, x)
    dtype, classes = type_of(x).dtype, shape[1]
    on, off = constant(1, dtype), constant(0, dtype)
    hot: Expr = call("one_hot", t, on, off, depth=classes, axis=1, dtype=dtype)
    ignored = constant(a["ignore_index"], type_of(t).dtype)
    kept = call("expand_dims", call("not_equal", t, ignored), axis=1)
    # ones where x[t] counts
    hot *= cast_like(kept, x)
    w = weights
    if len(shape) > 2:
        w = call("expand_dims", weights, axis=1, num_newaxis=len(shape) - 2)
    every, others = range(len(shape)), [i for i in range(len(shape)) if i != 1]
    if a["reduction"] == "none":
        grad = call("expand_dims", grad, axis=1)
    if a["reduction"] != "mean":
        return [-grad * hot * w, zeros_like(t), total(-grad * hot * x, others)]
    weight = total(hot * w, every)
    share = grad / weight
    loss = -total(hot * w * x, every) / weight
    by_weights = total(-share * hot * x, others) - total(share * loss * hot, others)
    return [-share * hot * w, zeros_like(t), by_weights]


RULES: dict[str, Rule] = {
    "nn.bias_add": _bias_add,
    "nn.dense": _dense,
    "nn.matmul": _matmul,
    "nn.batch_matmul": _batch_matmul,
    "nn.prelu": in_float32(_prelu),
    "nn.upsampling": in_float32(_upsampling),
    "nn.cross_entropy": in_float32(_cross_entropy),
    "nn.cross_entropy_with_logits": in_float32(_cross_entropy_with_logits),
    "nn.nll_loss": in_float32(_nll_loss),
}
