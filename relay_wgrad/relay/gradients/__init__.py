"""Relay's gradients, a rule for each operator.

A rule takes a call, whose arguments are variables with types, and the gradient of its result; it
gives the gradient of each argument.  The rules are in `ops.hooks.GRADIENTS` at a level below that
of `register_gradient`, so a user's own counts.
"""

from ..records.hooks import GRADIENTS
from . import (
    conv,
    elementwise,
    image,
    indexing,
    nn,
    normalize,
    pool,
    reduce,
    shape,
)
from .common import Rule as Rule

LEVEL = 0
FAMILIES = (
    elementwise,
    shape,
    reduce,
    nn,
    conv,
    pool,
    normalize,
    image,
    indexing,
)

for _family in FAMILIES:
    for _name, _rule in _family.RULES.items():
        GRADIENTS.add(_name, _rule, LEVEL)
