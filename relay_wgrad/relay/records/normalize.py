"""Normalizations, composed of operators that have gradients, as Relay unpacks them to run them."""

from __future__ import annotations

from typing import Any

from tvm import relax

from ...ops.moments import deviation, standardized
from ..dims import divides
from ..types import TensorType, TupleType, Type
from .facts import FOLLOW, NEVER, OPAQUE, OUT_ELEMWISE_FUSABLE
from .nn import broadcast_along
from .table import REQUIRED, Attr, Call, Site, define, in_float32, show

R = relax.op


def _vectors(call: Call) -> TensorType:
    """Data, and vectors as long as its axis."""
    data = call.tensor()
    axis = call.axis(call.attrs["axis"], len(data.shape))
    vector = TensorType((data.shape[axis],), data.dtype)
    for index in range(1, len(call.inputs)):
        call.must_be(index, vector, f"for {show(data)}, axis={call.attrs['axis']}")
    return data


def _batch_norm_type(call: Call) -> Type:
    data = _vectors(call)
    vector = TensorType((data.shape[call.attrs["axis"]],), data.dtype)
    return TupleType((data, vector, vector))


@in_float32
def _batch_norm(s: Site) -> Any:
    """x * scale + shift with the moving statistics, which come back unchanged."""
    x, gamma, beta, mean, variance = s.args
    ndim = len(s.tensor().shape)
    axis = s.axis(s.attrs["axis"], ndim)
    root = deviation(s.emit, variance, s.attrs["epsilon"])
    scale = s.emit(R.divide(gamma if s.attrs["scale"] else s.const(1.0), root))
    shift = s.emit(R.negative(s.emit(R.multiply(mean, scale))))
    if s.attrs["center"]:
        shift = s.emit(R.add(beta, shift))
    x = s.emit(R.multiply(x, broadcast_along(s, scale, axis, ndim)))
    return relax.Tuple([s.emit(R.add(x, broadcast_along(s, shift, axis, ndim))), mean, variance])


def _affine(s: Site, x: Any) -> Any:
    """Times gamma plus beta, where the attributes ask for them."""
    ndim = len(s.tensor().shape)
    axis = s.axis(s.attrs["axis"], ndim)
    if s.attrs["scale"]:
        x = s.emit(R.multiply(x, broadcast_along(s, s.args[1], axis, ndim)))
    if s.attrs["center"]:
        x = s.emit(R.add(x, broadcast_along(s, s.args[2], axis, ndim)))
    return x


@in_float32
def _layer_norm(s: Site) -> Any:
    axis = s.axis(s.attrs["axis"], len(s.tensor().shape))
    return _affine(s, standardized(s.emit, s.args[0], [axis], s.attrs["epsilon"]))


def _instance_norm_type(call: Call) -> Type:
    data = _vectors(call)
    if len(data.shape) < 3:
        call.fail(f"data must have more than 2 axes, got {show(data)}")
    return data


@in_float32
def _instance_norm(s: Site) -> Any:
    ndim = len(s.tensor().shape)
    axis = s.axis(s.attrs["axis"], ndim)
    others = [i for i in range(1, ndim) if i != axis]
    return _affine(s, standardized(s.emit, s.args[0], others, s.attrs["epsilon"]))


def _group_norm_type(call: Call) -> Type:
    data, groups = _vectors(call), call.attrs["num_groups"]
    channels = data.shape[call.attrs["axis"]]
    if groups < 1 or not divides(groups, channels):
        call.fail(f"num_groups must divide the channels, got {groups} and {show(data)}")
    return data


@in_float32
def _group_norm(s: Site) -> Any:
    """Channels as (groups, channels of a group); over the latter and all axes behind."""
    shape, groups = s.sizes(s.tensor()), s.attrs["num_groups"]
    axis = s.axis(s.attrs["axis"], len(shape))
    wide = [*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :]]
    x = s.emit(R.reshape(s.args[0], wide))
    x = standardized(s.emit, x, range(axis + 1, len(wide)), s.attrs["epsilon"])
    return _affine(s, s.emit(R.reshape(x, shape)))


def _lrn_type(call: Call) -> Type:
    data = call.tensor()
    if len(data.shape) != 4:
        call.fail(f"LRN requires 4-D input, got {show(data)}")
    return data


@in_float32
def _lrn(s: Site) -> Any:
    """x / (bias + alpha / size * (sum of squares of `size` neighbours along an axis)) ** beta."""
    x, a = s.args[0], s.attrs
    axis, half = a["axis"], a["size"] // 2
    # Relay's relation takes any axis and size.
    if axis not in (1, 3):
        s.fail(f"axis should be 1 or 3 for NCHW and NHWC, got {axis}")
    if a["size"] < 1 or a["size"] % 2 != 1:
        s.fail(f"size should be odd number, got {a['size']}")
    square = s.emit(R.multiply(x, x))
    if half:
        size = s.sizes(s.tensor())[axis]
        widths = [0] * 8
        widths[2 * axis : 2 * axis + 2] = [half, half]
        padded = s.emit(R.nn.pad(square, widths))
        square = None
        for i in range(a["size"]):
            part = s.emit(R.strided_slice(padded, [axis], [i], [i + size]))
            square = part if square is None else s.emit(R.add(square, part))
    norm = s.emit(R.multiply(square, s.const(a["alpha"] / a["size"])))
    norm = s.emit(R.power(s.emit(R.add(norm, s.const(a["bias"]))), s.const(a["beta"])))
    return R.divide(x, norm)


def _l2_normalize_type(call: Call) -> Type:
    data = call.tensor()
    for axis in call.attrs["axis"] or ():
        call.axis(axis, len(data.shape))
    return data


@in_float32
def _l2_normalize(s: Site) -> Any:
    """x / sqrt(max(sum of squares, eps))."""
    x = s.args[0]
    axes = [s.axis(axis, len(s.tensor().shape)) for axis in s.attrs["axis"] or ()] or None
    total = s.emit(R.sum(s.emit(R.multiply(x, x)), axes, True))
    return R.divide(x, s.emit(R.sqrt(s.emit(R.maximum(total, s.const(s.attrs["eps"]))))))


def _affine_attrs(axis: int) -> tuple[Attr, ...]:
    return (
        Attr("axis", axis, "int"),
        Attr("epsilon", 1e-5, "float"),
        Attr("center", True, "bool"),
        Attr("scale", True, "bool"),
    )


define("nn.batch_norm", "data gamma beta moving_mean moving_var", _batch_norm_type, _batch_norm,
       "relay", *_affine_attrs(1),
       kind=OUT_ELEMWISE_FUSABLE, level=1, precision=FOLLOW, results=3,
       doc="(data normalized by the moving statistics, moving_mean, moving_var).")  # fmt: skip
define("nn.layer_norm", "data gamma beta", _vectors, _layer_norm, "torch", *_affine_attrs(-1),
       level=1, precision=NEVER,
       doc="Mean 0 and variance 1 along `axis`.")  # fmt: skip
define("nn.instance_norm", "data gamma beta", _instance_norm_type, _instance_norm, "torch",
       *_affine_attrs(1),
       level=1,
       doc="Mean 0 and variance 1 for each image and index along `axis`.")  # fmt: skip
define("nn.group_norm", "data gamma beta", _group_norm_type, _group_norm, "torch",
       Attr("num_groups", 0, "int", asked=REQUIRED), *_affine_attrs(1),
       level=1,
       doc="Mean 0 and variance 1 for each image and group of channels.")  # fmt: skip
define("nn.lrn", "data", _lrn_type, _lrn, "torch",
       Attr("size", 5, "int"), Attr("axis", 1, "int"), Attr("bias", 2.0, "float"),
       Attr("alpha", 0.0001, "float", asked=1e-05), Attr("beta", 0.75, "float"),
       kind=OPAQUE, level=2,
       doc="Local response normalization over `size` neighbours along `axis`.")  # fmt: skip
define("nn.l2_normalize", "data", _l2_normalize_type, _l2_normalize, "numpy",
       Attr("eps", REQUIRED, "float"), Attr("axis", None, "sizes?", always=True),
       level=2, precision=NEVER,
       doc="`data` over its Euclidean norm along `axis`.")  # fmt: skip
