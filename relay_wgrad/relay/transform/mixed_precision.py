"""Which operators `ToMixedPrecision` computes in the lower precision, as Relay 0.19 has it.

`relay.op.register_mixed_precision_conversion` sets another answer for an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ast import Call, Op
from ..op.registration import get_attr
from ..records import REGISTRY, lookup
from ..records.facts import ALWAYS, FOLLOW, NEVER

MIXED_PRECISION_ALWAYS, MIXED_PRECISION_FOLLOW, MIXED_PRECISION_NEVER = ALWAYS, FOLLOW, NEVER

KEY = "FTVMMixedPrecisionConversionType"
# Of Relay's lists: operators that `register` may make, and this package has not.
_OTHERS = {FOLLOW: ["fast_erf", "fast_exp", "fast_tanh", "scatter"]}
DEFAULT_ALWAYS_LIST, DEFAULT_FOLLOW_LIST, DEFAULT_NEVER_LIST = (
    sorted([*(n for n, op in REGISTRY.items() if op.precision == rule), *_OTHERS.get(rule, [])])
    for rule in (ALWAYS, FOLLOW, NEVER)
)


def conversion(node: Call, dtype: str) -> tuple[int, str, str] | None:
    """How a call of an operator is converted; None if nothing says.

    (one of the three, the dtype in which it accumulates, its result's dtype)

    Raises ValueError for what a registered function must not give.
    """
    assert isinstance(node.op, Op)
    name = node.op.name
    function = get_attr(name, KEY)
    if function is None:
        rule = lookup(name).precision
        return None if rule is None else (rule, dtype, dtype)
    given: Any = function(node, dtype)
    found = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    if len(found) != 3 or found[0] not in (0, 1, 2):
        raise ValueError(
            f"{name}: the mixed precision conversion must give [0, 1 or 2, dtype, dtype],"
            f" got {given!r}"
        )
    return int(found[0]), str(found[1]), str(found[2])
