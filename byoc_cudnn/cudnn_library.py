"""The public path of `cuDNN's library`, which is in `backends.cudnn.loaded`."""

from .backends.cudnn.loaded import convolution, plans

__all__ = [
    "convolution",
    "plans",
]
