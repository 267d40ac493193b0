"""The public path of `OPS`, which is in `frontend.torch.ops`."""

from .torch.ops import HINTS, OPS

__all__ = [
    "HINTS",
    "OPS",
]
