"""The operators, one home each.  `FAMILY`: the convolution family; `ALL`: all that registers."""

from __future__ import annotations

from ..opdef import OpDef
from . import auxiliary, conv2d, conv2d_backward_data, conv2d_backward_weight, conv2d_transpose

FAMILY: dict[str, OpDef] = {
    d.name: d
    for d in (
        conv2d.DEF,
        conv2d_transpose.DEF,
        conv2d_backward_weight.DEF,
        conv2d_backward_data.DEF,
    )
}
ALL: tuple[OpDef, ...] = (*FAMILY.values(), *auxiliary.DEFS)
