"""Weights that are standardized before they convolve: all of a step in one launch, and back.

Networks without normalizations normalize their filters instead, some tens of small tensors, for
each of which a kernel for statistics, one for the product with its gain, and as many backward are
mostly launching.
"""

from .call import StandardizedCall, Weight, check
from .codegen import STANDARDIZED

__all__ = ["STANDARDIZED", "StandardizedCall", "Weight", "check"]
