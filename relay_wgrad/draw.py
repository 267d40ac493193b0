"""The public path of `draw`, which is in `inspection.draw`."""

from .inspection.draw import Drawing, draw

__all__ = [
    "Drawing",
    "draw",
]
