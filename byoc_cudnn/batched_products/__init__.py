"""Products of many matrices by cuBLAS, strided and batched: attention's, those of `relax.matmul`.

Products of all rows of a batch with one matrix are convolutions of one pixel, which other libraries
take; what is left has a matrix for each image on both sides.
"""

from .call import BatchedProductsCall, Matrices, check
from .codegen import BATCHED_PRODUCTS

__all__ = ["BATCHED_PRODUCTS", "BatchedProductsCall", "Matrices", "check"]
