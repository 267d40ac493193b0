"""Which operators `ToMixedPrecision` computes in the lower precision, as Relay 0.19 has it.

`relay.op.register_mixed_precision_conversion` sets another answer for an operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ast import Call, Op
from ..op.registration import get_attr

MIXED_PRECISION_ALWAYS = 0
"""Faster by more than its casts cost."""
MIXED_PRECISION_FOLLOW = 1
"""In the lower precision if all its operands are."""
MIXED_PRECISION_NEVER = 2
"""Its numbers may leave the range, or lose too much of what they are."""

KEY = "FTVMMixedPrecisionConversionType"
_ALWAYS = """
    nn.batch_matmul nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d
    nn.conv3d_transpose nn.dense"""
_FOLLOW = """
    add argmax argmin argwhere broadcast_to_like cast cast_like clip concatenate copy divide
    dyn.broadcast_to dyn.full dyn.reshape dyn.strided_slice dyn.tile expand_dims fast_erf fast_exp
    fast_tanh full greater greater_equal image.resize2d less less_equal max maximum min minimum
    multiply nn.adaptive_max_pool1d nn.adaptive_max_pool2d nn.adaptive_max_pool3d nn.avg_pool1d
    nn.avg_pool2d nn.avg_pool3d nn.batch_flatten nn.batch_norm nn.bias_add nn.depth_to_space
    nn.dropout nn.global_max_pool2d nn.leaky_relu nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.pad
    nn.prelu nn.relu reshape scatter scatter_elements scatter_nd shape_of sigmoid split sqrt
    squeeze strided_slice subtract take tanh tile transpose where zeros"""
_NEVER = """
    arange erf exp mean nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d
    nn.cross_entropy nn.cross_entropy_with_logits nn.global_avg_pool2d nn.l2_normalize
    nn.layer_norm nn.softmax power sum variance"""
DEFAULT_ALWAYS_LIST, DEFAULT_FOLLOW_LIST, DEFAULT_NEVER_LIST = (
    names.split() for names in (_ALWAYS, _FOLLOW, _NEVER)
)
_DEFAULT = {
    **dict.fromkeys(DEFAULT_ALWAYS_LIST, MIXED_PRECISION_ALWAYS),
    **dict.fromkeys(DEFAULT_FOLLOW_LIST, MIXED_PRECISION_FOLLOW),
    **dict.fromkeys(DEFAULT_NEVER_LIST, MIXED_PRECISION_NEVER),
}


def conversion(node: Call, dtype: str) -> tuple[int, str, str] | None:
    """How a call of an operator is converted; None if nothing says.

    (one of the three, the dtype in which it accumulates, its result's dtype)

    Raises ValueError for what a registered function must not give.
    """
    assert isinstance(node.op, Op)
    name = node.op.name
    function = get_attr(name, KEY)
    if function is None:
        return (_DEFAULT[name], dtype, dtype) if name in _DEFAULT else None
    given: Any = function(node, dtype)
    found = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    if len(found) != 3 or found[0] not in (0, 1, 2):
        raise ValueError(
            f"{name}: the mixed precision conversion must give [0, 1 or 2, dtype, dtype],"
            f" got {given!r}"
        )
    return int(found[0]), str(found[1]), str(found[2])
