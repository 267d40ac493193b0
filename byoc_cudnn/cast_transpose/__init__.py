"""Casts, transpositions and scaling of many small tensors on the GPU, in one launch.

Weights are cast and laid out anew in each step, and their gradients back: hundreds of tensors for
which a kernel each is mostly launching.
"""

from .call import CastTransposeCall, Transposition, check
from .codegen import CAST_TRANSPOSES

__all__ = ["CAST_TRANSPOSES", "CastTransposeCall", "Transposition", "check"]
