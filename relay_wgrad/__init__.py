"""relay-wgrad: convolution gradients as first-class operators in Apache TVM.

    import relay_wgrad
    relay_wgrad.register()

puts the operators and their rules into TVM; importing alone changes nothing.
"""

from .ops.conv2d import conv2d
from .ops.conv2d_backward_data import conv2d_backward_data
from .ops.conv2d_backward_weight import conv2d_backward_weight
from .ops.conv2d_transpose import (
    conv2d_transpose,
    conv2d_transpose_backward_data,
    conv2d_transpose_backward_weight,
)
from .ops.view import problem_of
from .problem import ConvKind, ConvProblem
from .registry import check_tvm, is_registered, register, unregister

__version__ = "0.1.0"

__all__ = [
    "ConvKind",
    "ConvProblem",
    "check_tvm",
    "conv2d",
    "conv2d_backward_data",
    "conv2d_backward_weight",
    "conv2d_transpose",
    "conv2d_transpose_backward_data",
    "conv2d_transpose_backward_weight",
    "is_registered",
    "problem_of",
    "register",
    "unregister",
]
