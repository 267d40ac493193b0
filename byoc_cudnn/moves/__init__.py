"""Casts, transpositions and scaling of many small tensors on the GPU, in one launch.

Weights are cast and laid out anew in each step, and their gradients back: hundreds of tensors for
which a kernel each is mostly launching.
"""

from .call import Move, MovesCall, check
from .codegen import MOVES

__all__ = ["MOVES", "Move", "MovesCall", "check"]
