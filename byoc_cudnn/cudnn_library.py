"""The public path of `cuDNN's library`, which is in `backends.cudnn.library`."""

from .backends.cudnn.library import convolution, plans

__all__ = [
    "convolution",
    "plans",
]
