"""The operators, one home each.

`FAMILY`: the convolution family; `NORMS`: training batch normalization; `ALL`: all that registers.
"""

from __future__ import annotations

from ..opdef import OpDef
from . import (
    auxiliary,
    batch_norm_train,
    batch_norm_train_backward,
    conv2d,
    conv2d_backward_data,
    conv2d_backward_weight,
    conv2d_transpose,
    conv3d,
    resample,
)

FAMILY: dict[str, OpDef] = {
    d.name: d
    for d in (
        conv2d.DEF,
        conv2d_transpose.DEF,
        conv2d_backward_weight.DEF,
        conv2d_backward_data.DEF,
        *conv3d.DEFS,
    )
}
NORMS: dict[str, OpDef] = {d.name: d for d in (batch_norm_train.DEF, batch_norm_train_backward.DEF)}
ALL: tuple[OpDef, ...] = (*FAMILY.values(), *NORMS.values(), resample.DEF, *auxiliary.DEFS)
