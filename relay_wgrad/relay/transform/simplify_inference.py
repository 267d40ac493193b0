"""Normalizations and dropout as what they compute when a network runs, in simple operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..ast import Call, Expr, Function, Op, Tuple, TupleGetItem, operator_of
from ..gradients.common import constant
from ..make import call
from ..records import attributes_of
from ..rewrite import rewrite
from ..types import TensorType, Type


def simplify_inference(function: Function) -> Function:
    """The function with normalizations and the first result of dropout in simple operators.

    Needs types.  Of `nn.batch_norm` the other results, the moving statistics, stay as they are.
    """
    types: dict[Expr, Type] = {}

    def change(old: Expr, node: Expr) -> Expr:
        if isinstance(node, TupleGetItem) and node.index == 0:
            inner = node.tuple_value
            name = operator_of(inner)
            if name in _SEVERAL:
                assert isinstance(inner, Call)
                return expanded(inner, types[inner]).fields[0]
        elif operator_of(node) in NAMES:
            assert isinstance(old, Call)
            assert isinstance(node, Call)
            ty = old.args[0].checked_type
            assert ty is not None
            types[node] = ty
            if operator_of(node) not in _SEVERAL:
                return expanded(node, ty)
        return node

    out = rewrite(function, change)
    assert isinstance(out, Function)
    return out


def expanded(node: Call, data_type: Type) -> Any:
    """A call of one of these operators in simple ones: a tuple for those with several results."""
    assert isinstance(node.op, Op)
    assert isinstance(data_type, TensorType)
    return _RULES[node.op.name](node.args, attributes_of(node), data_type)


def broadcast_along(vector: Expr, axis: int, ndim: int) -> Expr:
    """A vector with axes of size 1 after it, to broadcast along `axis`."""
    after = ndim - axis - 1
    return call("expand_dims", vector, axis=1, num_newaxis=after) if after > 0 else vector


def _batch_norm(args: tuple[Expr, ...], attrs: Mapping[str, Any], ty: TensorType) -> Expr:
    """x * s + (b - m * s) with s = g / sqrt(v + eps); then the moving statistics."""
    data, gamma, beta, mean, var = args
    eps = constant(attrs["epsilon"], ty.dtype)
    scale: Expr = call("divide", constant(1, ty.dtype), call("sqrt", call("add", var, eps)))
    if attrs["scale"]:
        scale = call("multiply", scale, gamma)
    shift: Expr = call("multiply", call("negative", mean), scale)
    if attrs["center"]:
        shift = call("add", shift, beta)
    ndim = len(ty.shape)
    axis = attrs["axis"] % ndim
    out = call("multiply", data, broadcast_along(scale, axis, ndim))
    return Tuple((call("add", out, broadcast_along(shift, axis, ndim)), mean, var))


def _dropout(args: tuple[Expr, ...], attrs: Mapping[str, Any], ty: TensorType) -> Expr:
    return Tuple((args[0], call("ones_like", args[0])))


def _normalized(data: Expr, axes: list[int], attrs: Mapping[str, Any], dtype: str) -> Expr:
    mean = call("mean", data, axis=axes, keepdims=True)
    var = call("variance", data, mean, axis=axes, keepdims=True)
    denominator = call("sqrt", call("add", var, constant(attrs["epsilon"], dtype)))
    return call("divide", call("subtract", data, mean), denominator)


def _affine(
    out: Expr, args: tuple[Expr, ...], attrs: Mapping[str, Any], axis: int, ndim: int
) -> Expr:
    if attrs["scale"]:
        out = call("multiply", out, broadcast_along(args[1], axis, ndim))
    if attrs["center"]:
        out = call("add", out, broadcast_along(args[2], axis, ndim))
    return out


def _layer_norm(args: tuple[Expr, ...], attrs: Mapping[str, Any], ty: TensorType) -> Expr:
    ndim = len(ty.shape)
    out = _normalized(args[0], [attrs["axis"]], attrs, ty.dtype)
    return _affine(out, args, attrs, attrs["axis"] % ndim, ndim)


def _instance_norm(args: tuple[Expr, ...], attrs: Mapping[str, Any], ty: TensorType) -> Expr:
    ndim = len(ty.shape)
    axis = attrs["axis"] % ndim
    out = _normalized(args[0], [i for i in range(1, ndim) if i != axis], attrs, ty.dtype)
    return _affine(out, args, attrs, axis, ndim)


def _group_norm(args: tuple[Expr, ...], attrs: Mapping[str, Any], ty: TensorType) -> Expr:
    ndim, groups = len(ty.shape), attrs["num_groups"]
    axis = attrs["axis"] % ndim
    shape: list[Any] = list(ty.shape)
    wide = [*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]]
    data = call("reshape", args[0], newshape=wide)
    out = _normalized(data, list(range(axis + 1, ndim + 1)), attrs, ty.dtype)
    return _affine(call("reshape", out, newshape=shape), args, attrs, axis, ndim)


def _l2_normalize(args: tuple[Expr, ...], attrs: Mapping[str, Any], ty: TensorType) -> Expr:
    square = call("multiply", args[0], args[0])
    total = call("sum", square, axis=attrs["axis"], keepdims=True)
    low = constant(attrs["eps"], ty.dtype)
    return call("divide", args[0], call("sqrt", call("maximum", total, low)))


_RULES: dict[str, Callable[..., Expr]] = {
    "nn.batch_norm": _batch_norm,
    "nn.dropout": _dropout,
    "nn.layer_norm": _layer_norm,
    "nn.instance_norm": _instance_norm,
    "nn.group_norm": _group_norm,
    "nn.l2_normalize": _l2_normalize,
}
_SEVERAL = {"nn.batch_norm", "nn.dropout"}  # results
NAMES = frozenset(_RULES)
