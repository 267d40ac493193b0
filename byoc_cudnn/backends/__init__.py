"""The backends, each a folder that ends in its record; this is the one list of them."""

from . import cudnn, cutlass

GIVEN = (cudnn.BACKEND, cutlass.BACKEND)

__all__ = ["GIVEN"]
