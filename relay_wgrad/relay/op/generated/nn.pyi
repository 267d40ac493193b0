"""Written by `pytest --update-golden tests/relay_wgrad/relay/test_builders.py`."""

# fmt: off

from ...ast import Call, Expr
from ...expr import TupleWrapper
from ...make import Pairs, Sizes

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d",
    "avg_pool2d_grad", "avg_pool3d", "batch_flatten", "batch_matmul", "batch_norm",
    "batch_to_space_nd", "bias_add", "conv1d", "conv1d_transpose", "conv2d",
    "conv2d_backward_weight", "conv2d_transpose", "conv3d", "conv3d_backward_weight",
    "conv3d_transpose", "correlation", "cross_entropy", "cross_entropy_with_logits",
    "deformable_conv2d", "dense", "depth_to_space", "dilate", "global_avg_pool2d",
    "global_max_pool2d", "group_norm", "instance_norm", "l2_normalize", "layer_norm", "leaky_relu",
    "log_softmax", "lrn", "max_pool1d", "max_pool2d", "max_pool2d_grad", "max_pool3d", "mirror_pad",
    "nll_loss", "prelu", "relu", "softmax", "space_to_batch_nd", "space_to_depth", "upsampling",
    "upsampling3d"]
def adaptive_avg_pool1d(
    data: Expr, output_size: Sizes | None = None, layout: str = "NCW", out_layout: str = ""
) -> Call: ...
def adaptive_avg_pool2d(
    data: Expr, output_size: Sizes | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call: ...
def adaptive_avg_pool3d(
    data: Expr, output_size: Sizes | None = None, layout: str = "NCDHW", out_layout: str = ""
) -> Call: ...
def adaptive_max_pool1d(
    data: Expr, output_size: Sizes | None = None, layout: str = "NCW", out_layout: str = ""
) -> Call: ...
def adaptive_max_pool2d(
    data: Expr, output_size: Sizes | None = None, layout: str = "NCHW", out_layout: str = ""
) -> Call: ...
def adaptive_max_pool3d(
    data: Expr, output_size: Sizes | None = None, layout: str = "NCDHW", out_layout: str = ""
) -> Call: ...
def avg_pool1d(
    data: Expr, pool_size: Sizes = (1,), strides: Sizes = (1,), dilation: Sizes = (1,), padding:
    Sizes = (0,), layout: str = "NCW", out_layout: str = "", ceil_mode: bool = False,
    count_include_pad: bool = False
) -> Call: ...
def avg_pool2d(
    data: Expr, pool_size: Sizes = (1, 1), strides: Sizes = (1, 1), dilation: Sizes = (1, 1),
    padding: Sizes = (0, 0), layout: str = "NCHW", out_layout: str = "", ceil_mode: bool = False,
    count_include_pad: bool = False
) -> Call: ...
def avg_pool2d_grad(
    out_grad: Expr, data: Expr, pool_size: Sizes = (1, 1), strides: Sizes = (1, 1), padding: Sizes =
    (0, 0), layout: str = "NCHW", out_layout: str = "", ceil_mode: bool = False, count_include_pad:
    bool = False
) -> Call: ...
def avg_pool3d(
    data: Expr, pool_size: Sizes = (1, 1, 1), strides: Sizes = (1, 1, 1), dilation: Sizes = (1, 1,
    1), padding: Sizes = (0, 0, 0), layout: str = "NCDHW", out_layout: str = "", ceil_mode: bool =
    False, count_include_pad: bool = False
) -> Call: ...
def batch_flatten(data: Expr) -> Call: ...
def batch_matmul(
    tensor_a: Expr, tensor_b: Expr, out_dtype: str = "", transpose_a: bool = False, transpose_b:
    bool = True
) -> Call: ...
def batch_norm(
    data: Expr, gamma: Expr, beta: Expr, moving_mean: Expr, moving_var: Expr, axis: int = 1,
    epsilon: float = 1e-05, center: bool = True, scale: bool = True
) -> TupleWrapper: ...
def batch_to_space_nd(data: Expr, block_shape: Sizes, crops: Pairs) -> Call: ...
def bias_add(data: Expr, bias: Expr, axis: int = 1) -> Call: ...
def conv1d(
    data: Expr, weight: Expr, strides: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups:
    int = 1, channels: int | None = None, kernel_size: Sizes | None = None, data_layout: str =
    "NCW", kernel_layout: str = "OIW", out_layout: str = "", out_dtype: str = ""
) -> Call: ...
def conv1d_transpose(
    data: Expr, weight: Expr, strides: Sizes = (1,), padding: Sizes = (0,), dilation: Sizes = (1,),
    groups: int = 1, channels: int | None = None, kernel_size: Sizes | None = None, data_layout: str
    = "NCW", kernel_layout: str = "IOW", out_layout: str = "", output_padding: Sizes = (0,),
    out_dtype: str = ""
) -> Call: ...
def conv2d(
    data: Expr, weight: Expr, strides: Sizes = (1, 1), padding: Sizes = (0, 0), dilation: Sizes =
    (1, 1), groups: int = 1, channels: int | None = None, kernel_size: Sizes | None = None,
    data_layout: str = "NCHW", kernel_layout: str = "OIHW", out_layout: str = "", out_dtype: str =
    ""
) -> Call: ...
def conv2d_backward_weight(
    grad: Expr, data: Expr, strides: Sizes = (1, 1), padding: Sizes = (0, 0), dilation: Sizes = (1,
    1), groups: int = 1, channels: int | None = None, kernel_size: Sizes | None = None, grad_layout:
    str = "NCHW", data_layout: str = "NCHW", kernel_layout: str = "OIHW", out_dtype: str = ""
) -> Call: ...
def conv2d_transpose(
    data: Expr, weight: Expr, strides: Sizes = (1, 1), padding: Sizes = (0, 0), dilation: Sizes =
    (1, 1), groups: int = 1, channels: int | None = None, kernel_size: Sizes | None = None,
    data_layout: str = "NCHW", kernel_layout: str = "IOHW", out_layout: str = "", output_padding:
    Sizes = (0, 0), out_dtype: str = ""
) -> Call: ...
def conv3d(
    data: Expr, weight: Expr, strides: Sizes = (1, 1, 1), padding: Sizes = (0, 0, 0), dilation:
    Sizes = (1, 1, 1), groups: int = 1, channels: int | None = None, kernel_size: Sizes | None =
    None, data_layout: str = "NCDHW", kernel_layout: str = "OIDHW", out_layout: str = "", out_dtype:
    str = ""
) -> Call: ...
def conv3d_backward_weight(
    grad: Expr, data: Expr, strides: Sizes = (1, 1, 1), padding: Sizes = (0, 0, 0), dilation: Sizes
    = (1, 1, 1), groups: int = 1, channels: int | None = None, kernel_size: Sizes | None = None,
    grad_layout: str = "NCDHW", data_layout: str = "NCDHW", kernel_layout: str = "OIDHW", out_dtype:
    str = ""
) -> Call: ...
def conv3d_transpose(
    data: Expr, weight: Expr, strides: Sizes = (1, 1, 1), padding: Sizes = (0, 0, 0), dilation:
    Sizes = (1, 1, 1), groups: int = 1, channels: int | None = None, kernel_size: Sizes | None =
    None, data_layout: str = "NCDHW", kernel_layout: str = "IODHW", out_layout: str = "",
    output_padding: Sizes = (0, 0, 0), out_dtype: str = ""
) -> Call: ...
def correlation(
    data1: Expr, data2: Expr, kernel_size: int, max_displacement: int, stride1: int, stride2: int,
    padding: Sizes, is_multiply: bool, layout: str
) -> Call: ...
def cross_entropy(predictions: Expr, targets: Expr) -> Call: ...
def cross_entropy_with_logits(predictions: Expr, targets: Expr) -> Call: ...
def deformable_conv2d(
    data: Expr, offset: Expr, weight: Expr, strides: Sizes = (1, 1), padding: Sizes = (0, 0),
    dilation: Sizes = (1, 1), deformable_groups: int = 1, groups: int = 1, channels: int | None =
    None, kernel_size: Sizes | None = None, data_layout: str = "NCHW", kernel_layout: str = "OIHW",
    out_layout: str = "", out_dtype: str = ""
) -> Call: ...
def dense(data: Expr, weight: Expr, units: int | None = None, out_dtype: str = "") -> Call: ...
def depth_to_space(
    data: Expr, block_size: int, layout: str = "NCHW", mode: str = "DCR"
) -> Call: ...
def dilate(data: Expr, strides: Sizes, dilation_value: float = 0.0) -> Call: ...
def global_avg_pool2d(data: Expr, layout: str = "NCHW", out_layout: str = "") -> Call: ...
def global_max_pool2d(data: Expr, layout: str = "NCHW", out_layout: str = "") -> Call: ...
def group_norm(
    data: Expr, gamma: Expr, beta: Expr, num_groups: int, axis: int = 1, epsilon: float = 1e-05,
    center: bool = True, scale: bool = True
) -> Call: ...
def instance_norm(
    data: Expr, gamma: Expr, beta: Expr, axis: int = 1, epsilon: float = 1e-05, center: bool = True,
    scale: bool = True
) -> Call: ...
def l2_normalize(data: Expr, eps: float, axis: Sizes | None = None) -> Call: ...
def layer_norm(
    data: Expr, gamma: Expr, beta: Expr, axis: int = -1, epsilon: float = 1e-05, center: bool =
    True, scale: bool = True
) -> Call: ...
def leaky_relu(data: Expr, alpha: float = 0.01) -> Call: ...
def log_softmax(data: Expr, axis: int = -1) -> Call: ...
def lrn(
    data: Expr, size: int = 5, axis: int = 1, bias: float = 2.0, alpha: float = 1e-05, beta: float =
    0.75
) -> Call: ...
def max_pool1d(
    data: Expr, pool_size: Sizes = (1,), strides: Sizes = (1,), dilation: Sizes = (1,), padding:
    Sizes = (0,), layout: str = "NCW", out_layout: str = "", ceil_mode: bool = False
) -> Call: ...
def max_pool2d(
    data: Expr, pool_size: Sizes = (1, 1), strides: Sizes = (1, 1), dilation: Sizes = (1, 1),
    padding: Sizes = (0, 0), layout: str = "NCHW", out_layout: str = "", ceil_mode: bool = False
) -> Call: ...
def max_pool2d_grad(
    out_grad: Expr, data: Expr, pool_size: Sizes = (1, 1), strides: Sizes = (1, 1), padding: Sizes =
    (0, 0), layout: str = "NCHW", out_layout: str = "", ceil_mode: bool = False
) -> Call: ...
def max_pool3d(
    data: Expr, pool_size: Sizes = (1, 1, 1), strides: Sizes = (1, 1, 1), dilation: Sizes = (1, 1,
    1), padding: Sizes = (0, 0, 0), layout: str = "NCDHW", out_layout: str = "", ceil_mode: bool =
    False
) -> Call: ...
def mirror_pad(data: Expr, pad_width: Pairs, mode: str = "SYMMETRIC") -> Call: ...
def nll_loss(
    predictions: Expr, targets: Expr, weights: Expr, reduction: str = "mean", ignore_index: int =
    -100
) -> Call: ...
def prelu(data: Expr, alpha: Expr, axis: int = 1) -> Call: ...
def relu(data: Expr) -> Call: ...
def softmax(data: Expr, axis: int = -1) -> Call: ...
def space_to_batch_nd(
    data: Expr, block_shape: Sizes, paddings: Pairs, pad_value: float = 0.0
) -> Call: ...
def space_to_depth(data: Expr, block_size: int, layout: str = "NCHW") -> Call: ...
def upsampling(
    data: Expr, scale_h: float | Expr = 1, scale_w: float | Expr = 1, layout: str = "NCHW", method:
    str = "nearest_neighbor", align_corners: bool = False
) -> Call: ...
def upsampling3d(
    data: Expr, scale_d: float | Expr = 1, scale_h: float | Expr = 1, scale_w: float | Expr = 1,
    layout: str = "NCDHW", method: str = "nearest_neighbor", coordinate_transformation_mode: str =
    "half_pixel"
) -> Call: ...
