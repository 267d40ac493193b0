"""The public path of `OPS`, which is in `frontend.torch.ops`."""

from .torch.composed import COMPOSED
from .torch.ops import HINTS, OPS

__all__ = [
    "COMPOSED",
    "HINTS",
    "OPS",
]
