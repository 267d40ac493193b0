"""`relay.nn`: operators of neural networks."""

from __future__ import annotations

from collections.abc import Sequence

from ..ast import Call, Expr, TupleGetItem
from ..expr import TupleWrapper, const
from ..expr_methods import ExprMethods
from ..make import as_argument, call, of_run
from .conv import Size
from .conv import adaptive_avg_pool2d as adaptive_avg_pool2d
from .conv import adaptive_max_pool2d as adaptive_max_pool2d
from .conv import avg_pool2d as avg_pool2d
from .conv import avg_pool2d_grad as avg_pool2d_grad
from .conv import conv2d as conv2d
from .conv import conv2d_backward_weight as conv2d_backward_weight
from .conv import conv2d_transpose as conv2d_transpose
from .conv import deformable_conv2d as deformable_conv2d
from .conv import global_avg_pool2d as global_avg_pool2d
from .conv import global_max_pool2d as global_max_pool2d
from .conv import max_pool2d as max_pool2d
from .conv import max_pool2d_grad as max_pool2d_grad
from .one_dimension import adaptive_avg_pool1d as adaptive_avg_pool1d
from .one_dimension import adaptive_max_pool1d as adaptive_max_pool1d
from .one_dimension import avg_pool1d as avg_pool1d
from .one_dimension import conv1d as conv1d
from .one_dimension import conv1d_transpose as conv1d_transpose
from .one_dimension import global_avg_pool1d as global_avg_pool1d
from .one_dimension import global_max_pool1d as global_max_pool1d
from .one_dimension import max_pool1d as max_pool1d
from .space import batch_to_space_nd as batch_to_space_nd
from .space import depth_to_space as depth_to_space
from .space import dilate as dilate
from .space import mirror_pad as mirror_pad
from .space import space_to_batch_nd as space_to_batch_nd
from .space import space_to_depth as space_to_depth
from .three_dimensions import adaptive_avg_pool3d as adaptive_avg_pool3d
from .three_dimensions import adaptive_max_pool3d as adaptive_max_pool3d
from .three_dimensions import avg_pool3d as avg_pool3d
from .three_dimensions import conv3d as conv3d
from .three_dimensions import conv3d_backward_weight as conv3d_backward_weight
from .three_dimensions import conv3d_transpose as conv3d_transpose
from .three_dimensions import global_avg_pool3d as global_avg_pool3d
from .three_dimensions import global_max_pool3d as global_max_pool3d
from .three_dimensions import max_pool3d as max_pool3d
from .three_dimensions import upsampling3d as upsampling3d


def relu(data: Expr) -> Call:
    """Each element, but 0 where it is negative."""
    return call("nn.relu", data)


def leaky_relu(data: Expr, alpha: float = 0.01) -> Call:
    """Each element, `alpha` times as large where it is negative."""
    return call("nn.leaky_relu", data, alpha=alpha)


def prelu(data: Expr, alpha: Expr, axis: int = 1) -> Call:
    """`leaky_relu` with one `alpha` for each index along `axis`."""
    return call("nn.prelu", data, alpha, axis=axis)


def softmax(data: Expr, axis: int = -1) -> Call:
    """exp(data) over its sum along `axis`."""
    return call("nn.softmax", data, axis=axis)


def log_softmax(data: Expr, axis: int = -1) -> Call:
    """The logarithm of `softmax`."""
    return call("nn.log_softmax", data, axis=axis)


def bias_add(data: Expr, bias: Expr, axis: int = 1) -> Call:
    """`data` plus one number for each index along `axis`."""
    return call("nn.bias_add", data, bias, axis=axis)


def batch_flatten(data: Expr) -> Call:
    """All axes but the first as one."""
    return call("nn.batch_flatten", data)


def dense(data: Expr, weight: Expr, units: int | None = None, out_dtype: str = "") -> Call:
    """data · weightᵀ: (…, in) and (units, in) to (…, units)."""
    return call("nn.dense", data, weight, units=units, out_dtype=out_dtype)


def matmul(
    tensor_a: Expr,
    tensor_b: Expr,
    units: int | None = None,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = False,
) -> Call:
    """A product of matrices; of a and bᵀ it is `nn.dense`, as in Relay."""
    if transpose_b and not transpose_a:
        return dense(tensor_a, tensor_b, units, out_dtype)
    return call(
        "nn.matmul",
        tensor_a,
        tensor_b,
        units=units,
        out_dtype=out_dtype,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )


def batch_matmul(
    tensor_a: Expr,
    tensor_b: Expr,
    out_dtype: str = "",
    transpose_a: bool = False,
    transpose_b: bool = True,
) -> Call:
    """A product of matrices for each index of the first axis; b is transposed by default."""
    return call(
        "nn.batch_matmul",
        tensor_a,
        tensor_b,
        out_dtype=out_dtype,
        transpose_a=transpose_a,
        transpose_b=transpose_b,
    )


def pad(
    data: Expr,
    pad_width: Sequence[Sequence[int]] | Expr,
    pad_value: float | Expr = 0,
    pad_mode: str = "constant",
) -> Call:
    """`data` with (before, after) more elements along each axis."""
    value = pad_value if isinstance(pad_value, ExprMethods) else const(pad_value)
    if of_run(pad_width):
        return call("dyn.nn.pad", data, pad_width, value, pad_mode=pad_mode)
    return call("nn.pad", data, value, pad_width=pad_width, pad_mode=pad_mode)


def upsampling(
    data: Expr,
    scale_h: float | Expr = 1,
    scale_w: float | Expr = 1,
    layout: str = "NCHW",
    method: str = "nearest_neighbor",
    align_corners: bool = False,
) -> Call:
    """Height and width times a factor."""
    if of_run(scale_h, scale_w):
        scales = [as_argument(scale, "float32") for scale in (scale_h, scale_w)]
        return call(
            "dyn.nn.upsampling", data, *scales, layout=layout, method=method,
            align_corners=align_corners,
        )  # fmt: skip
    return call(
        "nn.upsampling",
        data,
        scale_h=scale_h,
        scale_w=scale_w,
        layout=layout,
        method=method,
        align_corners=align_corners,
    )


def dropout(data: Expr, rate: float = 0.5) -> TupleGetItem:
    """The identity when it is run, as Relay's."""
    return TupleGetItem(dropout_raw(data, rate), 0)


def dropout_raw(data: Expr, rate: float = 0.5) -> Call:
    """(the data, a mask of ones)."""
    return call("nn.dropout", data, rate=rate)


def batch_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    moving_mean: Expr,
    moving_var: Expr,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> TupleWrapper:
    """(data normalized by the moving statistics, moving_mean, moving_var)."""
    made = call(
        "nn.batch_norm",
        data,
        gamma,
        beta,
        moving_mean,
        moving_var,
        axis=axis,
        epsilon=epsilon,
        center=center,
        scale=scale,
    )
    return TupleWrapper(made, 3)


def layer_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    axis: int = -1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """Mean 0 and variance 1 along `axis`."""
    return call(
        "nn.layer_norm",
        data,
        gamma,
        beta,
        axis=axis,
        epsilon=epsilon,
        center=center,
        scale=scale,
    )


def instance_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """Mean 0 and variance 1 for each image and index along `axis`."""
    return call(
        "nn.instance_norm",
        data,
        gamma,
        beta,
        axis=axis,
        epsilon=epsilon,
        center=center,
        scale=scale,
    )


def group_norm(
    data: Expr,
    gamma: Expr,
    beta: Expr,
    num_groups: int,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> Call:
    """Mean 0 and variance 1 for each image and group of channels."""
    return call(
        "nn.group_norm",
        data,
        gamma,
        beta,
        num_groups=num_groups,
        axis=axis,
        epsilon=epsilon,
        center=center,
        scale=scale,
    )


def lrn(
    data: Expr,
    size: int = 5,
    axis: int = 1,
    bias: float = 2,
    alpha: float = 1e-05,
    beta: float = 0.75,
) -> Call:
    """Local response normalization over `size` neighbours along `axis`."""
    return call("nn.lrn", data, size=size, axis=axis, bias=bias, alpha=alpha, beta=beta)


def l2_normalize(data: Expr, eps: float, axis: Sequence[int] | None = None) -> Call:
    """`data` over its Euclidean norm along `axis`."""
    return call("nn.l2_normalize", data, eps=eps, axis=axis)


def cross_entropy(predictions: Expr, targets: Expr) -> Call:
    """-sum(targets · log(predictions)) over the batch size."""
    return call("nn.cross_entropy", predictions, targets)


def cross_entropy_with_logits(predictions: Expr, targets: Expr) -> Call:
    """-sum(targets · predictions) over the batch size: predictions are log-probabilities."""
    return call("nn.cross_entropy_with_logits", predictions, targets)


def nll_loss(
    predictions: Expr,
    targets: Expr,
    weights: Expr,
    reduction: str = "mean",
    ignore_index: int = -100,
) -> Call:
    """Minus the log-probabilities of the target classes, weighted."""
    return call(
        "nn.nll_loss", predictions, targets, weights, reduction=reduction, ignore_index=ignore_index
    )


def correlation(
    data1: Expr,
    data2: Expr,
    kernel_size: int,
    max_displacement: int,
    stride1: int,
    stride2: int,
    padding: Size,
    is_multiply: bool,
    layout: str,
) -> Call:
    """How patches of one image fit those of another, beside each place within a distance."""
    return call(
        "nn.correlation", data1, data2, kernel_size=kernel_size, max_displacement=max_displacement,
        stride1=stride1, stride2=stride2, padding=padding, is_multiply=is_multiply, layout=layout,
    )  # fmt: skip
