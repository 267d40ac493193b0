"""The public path of `Recompute`, which is in `pipeline.recompute`."""

from ..pipeline.recompute import Recompute

__all__ = [
    "Recompute",
]
