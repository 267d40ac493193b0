"""Softmax over rows and its gradient, a kernel each, between the products of an attention.

Scores are scaled and masked where they are read, halves are read and written, and rows may be
longer in memory than they are, so that products have whole packs of 16 bytes.
"""

from .call import Added, SoftmaxCall, check
from .codegen import SOFTMAX

__all__ = ["SOFTMAX", "Added", "SoftmaxCall", "check"]
