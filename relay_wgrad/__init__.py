"""relay-wgrad: convolution gradients as first-class operators in Apache TVM.

    import relay_wgrad
    relay_wgrad.register()

puts the operators and their rules into TVM; importing alone changes nothing.
"""

from importlib import import_module as _import_module
from typing import Any

from .ops.conv import conv2d, conv3d
from .ops.conv_backward_data import conv2d_backward_data, conv3d_backward_data
from .ops.conv_backward_weight import conv2d_backward_weight, conv3d_backward_weight
from .ops.conv_transpose import (
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
    "conv3d",
    "conv3d_backward_data",
    "conv3d_backward_weight",
    "is_registered",
    "problem_of",
    "register",
    "unregister",
]

_PARTS = (
    "conventions", "data", "draw", "frontend", "inspection", "layouts", "problem", "relay",
    "state", "threads", "torch", "training", "transform",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """`relay_wgrad.transform` and its like are imported when they are first asked for: some need
    optional packages, and importing this one stays fast."""
    if name in _PARTS:
        return _import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PARTS})
