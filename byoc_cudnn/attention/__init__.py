"""Attention of many matrices, softmax(q kᵀ scale) v, and its gradient, without scores in memory.

Two products by tensor cores and a softmax are one kernel forward and two backward, which compute
scores again.  q, k and v are read, and results are written, where the projections around them have
them.
"""

from .call import AttentionCall, Place, check
from .codegen import ATTENTION

__all__ = ["ATTENTION", "AttentionCall", "Place", "check"]
