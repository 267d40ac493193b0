"""The backends, each a folder that ends in its record; this is the one list of them."""

from . import cuda_direct, cudnn, cutlass

GIVEN = (cudnn.BACKEND, cutlass.BACKEND, cuda_direct.BACKEND)

__all__ = ["GIVEN"]
