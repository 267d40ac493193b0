"""Gradients of resizes, and of what is one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...layouts import permutation
from ..ast import Call, Expr
from ..records import attributes_of
from ..records.nn import as_resize
from ..records.table import Call as Site
from .common import Rule, call, constant, refuse, reshape, sizes, transpose, type_of

_AXES = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def _resize(orig: Call, grad: Expr) -> list[Expr]:
    """A resize is linear along each axis by itself: y = M x, so x gets Mᵀ of y's gradient.

    The resize of the unit vectors, as rows, is Mᵀ; compilers fold it.
    """
    a, (data,) = attributes_of(orig), orig.args
    if a["coordinate_transformation_mode"] == "tf_crop_and_resize":
        refuse(
            orig, "only without a region, got coordinate_transformation_mode='tf_crop_and_resize'"
        )
    canonical = _AXES[len(a["size"])]
    dtype = type_of(data).dtype
    if not dtype.startswith("float") or type_of(orig).dtype != dtype:
        refuse(orig, f"only within one floating type, got {dtype} and {type_of(orig).dtype}")
    order = permutation(a["layout"], canonical)
    shape = [sizes(orig, data)[axis] for axis in order]
    wide = [*shape[:2], *a["size"]]
    grad = transpose(grad, order)
    kept = {k: a[k] for k in ("method", "coordinate_transformation_mode", "rounding_method",
                              "cubic_alpha", "cubic_exclude")}  # fmt: skip
    last = len(canonical) - 1
    for axis in range(2, len(canonical)):
        n, m = shape[axis], wide[axis]
        units = constant(np.eye(n)[None], dtype)
        rows = call("image.resize1d", units, size=[m], roi=[0.0, 0.0], layout="NCW", **kept)
        swapped = list(range(len(canonical)))
        swapped[axis], swapped[last] = last, axis
        moved = transpose(grad, swapped)
        wide[axis] = n
        out_shape = [wide[i] for i in swapped]
        flat = reshape(moved, [-1, m])
        grad = call("nn.dense", flat, reshape(rows, [n, m]), units=n)
        grad = transpose(reshape(grad, out_shape), swapped)
    return [transpose(grad, permutation(canonical, a["layout"]))]


def _upsampling3d(orig: Call, grad: Expr) -> list[Expr]:
    (data,) = orig.args
    site = Site("nn.upsampling3d", ("data",), (type_of(data),), attributes_of(orig))
    made = call("image.resize3d", data, **as_resize(site, type_of(orig)))
    return _resize(replace(made, checked_type=type_of(orig)), grad)


RULES: dict[str, Rule] = {f"image.resize{axes}d": _resize for axes in _AXES}
RULES["nn.upsampling3d"] = _upsampling3d
