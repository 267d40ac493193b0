"""The operators, one home each.

`FAMILY`: the convolution family; `LINES`: upstream's convolutions of one dimension, whose gradients
are the family's; `NORMS`: training normalizations; `ALL`: all that registers.
"""

from __future__ import annotations

from ..opdef import OpDef
from ..ranks import OWN
from . import (
    auxiliary,
    batch_norm_train,
    batch_norm_train_backward,
    conv,
    conv_backward_data,
    conv_backward_weight,
    conv_transpose,
    group_norm_train,
    group_norm_train_backward,
    process_mean,
    resample,
)

_HOMES = (conv, conv_transpose, conv_backward_weight, conv_backward_data)
FAMILY: dict[str, OpDef] = {
    home.DEFS[rank].name: home.DEFS[rank] for rank in OWN for home in _HOMES
}
LINES: dict[str, OpDef] = {home.DEFS[1].name: home.DEFS[1] for home in (conv, conv_transpose)}
_NORMS = (batch_norm_train, batch_norm_train_backward, group_norm_train, group_norm_train_backward)
NORMS: dict[str, OpDef] = {home.DEF.name: home.DEF for home in _NORMS}
ALL: tuple[OpDef, ...] = (
    *FAMILY.values(), *LINES.values(), *NORMS.values(), resample.DEF, process_mean.DEF,
    *auxiliary.DEFS,
)  # fmt: skip
