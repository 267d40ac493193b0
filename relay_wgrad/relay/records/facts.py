"""What Relay 0.19 says of its operators: how they fuse, at which precision, in which layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...layouts import ACTIVATION


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


@dataclass(frozen=True)
class Roles:
    """Whose layout an attribute is, of an operator that `ConvertLayout` converts.

    `args`, `result`: each argument's, and the result's, which may be empty in a call, which then
    has the first argument's.  `canonical` has the letters of each layout that a user desires;
    `others` more may be desired, each "default", for arguments that have no layout.  `follows`:
    whether the operator also takes the layout in which its argument comes.
    """

    args: tuple[str, ...]
    result: str
    canonical: tuple[str, ...]
    follows: bool = False
    others: int = 0

    def layouts(self, attrs: Mapping[str, Any]) -> tuple[list[str], str]:
        """Each argument's, and the result's, of complete attributes."""
        args = [str(attrs[name]) for name in self.args]
        return args, str(attrs[self.result]) or args[0]


def image_roles(count: int = 1, follows: bool = True, others: int = 0) -> Roles:
    """Of an operator with one `layout`, in which so many arguments are, and the result."""
    return Roles(("layout",) * count, "layout", (ACTIVATION,), follows, others)


def conv_roles(kernel: str, *first: str) -> Roles:
    """Of a convolution; `first` are those of the arguments before its data."""
    args = (*first, "data_layout", "kernel_layout")
    return Roles(args, "out_layout", (ACTIVATION, kernel))
