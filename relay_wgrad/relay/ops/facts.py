"""What Relay 0.19 says of its operators by numbers: how they fuse, and at which precision."""

from __future__ import annotations


class OpPattern:
    """What kind of operator one is, for fusion; the numbers are Relay's TOpPattern."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8


ELEMWISE, BROADCAST, INJECTIVE = OpPattern.ELEMWISE, OpPattern.BROADCAST, OpPattern.INJECTIVE
COMM_REDUCE, OUT_ELEMWISE_FUSABLE = OpPattern.COMM_REDUCE, OpPattern.OUT_ELEMWISE_FUSABLE
OPAQUE = OpPattern.OPAQUE

ALWAYS = 0
"""Of `ToMixedPrecision`: faster by more than its casts cost."""
FOLLOW = 1
"""In the lower precision if all its operands are."""
NEVER = 2
"""Its numbers may leave the range, or lose too much of what they are."""
