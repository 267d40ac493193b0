"""PyTorch functions and modules on this package's kernels (extra `torch`).

`convolution` and `convolution_transpose`, their gradients by input, weight and bias as functions of
their own, and `Conv2d` and `ConvTranspose2d` in place of `torch.nn`'s; the same of one dimension
and of three.  `TrainingStep` compiles a whole module's forward and backward passes; `optimize` puts
the kernels under a model's layers where they are faster.  See docs/howto/torch.md.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("relay_wgrad.torch needs PyTorch: pip install relay-wgrad[torch]") from error

from .cache import cache_info, clear_cache, set_cache_size
from .cuda_kernels import set_backends
from .functions import (
    conv1d,
    conv1d_backward_input,
    conv1d_backward_weight,
    conv3d,
    conv3d_backward_input,
    conv3d_backward_weight,
    convolution,
    convolution_backward_bias,
    convolution_backward_input,
    convolution_backward_weight,
)
from .kernels import allow_winograd
from .modules import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .ops import no_weight_gradients
from .optimizing import Measured, Optimized, optimize
from .training_step import TrainingStep
from .transposed import (
    conv_transpose1d,
    conv_transpose3d,
    convolution_transpose,
    convolution_transpose_backward_bias,
    convolution_transpose_backward_input,
    convolution_transpose_backward_weight,
)

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Measured",
    "Optimized",
    "TrainingStep",
    "allow_winograd",
    "cache_info",
    "clear_cache",
    "conv1d",
    "conv1d_backward_input",
    "conv1d_backward_weight",
    "conv3d",
    "conv3d_backward_input",
    "conv3d_backward_weight",
    "conv_transpose1d",
    "conv_transpose3d",
    "convolution",
    "convolution_backward_bias",
    "convolution_backward_input",
    "convolution_backward_weight",
    "convolution_transpose",
    "convolution_transpose_backward_bias",
    "convolution_transpose_backward_input",
    "convolution_transpose_backward_weight",
    "no_weight_gradients",
    "optimize",
    "set_backends",
    "set_cache_size",
]
