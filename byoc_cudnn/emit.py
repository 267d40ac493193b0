"""The public path of `emit`, which is in `backends.cudnn.program`."""

from .backends.cudnn.program import emit

__all__ = [
    "emit",
]
