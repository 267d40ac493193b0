"""Relay's name for the module of `get` and the `register…` functions."""

from ..records.facts import OpPattern as OpPattern
from .registration import get as get
from .registration import list_op_names as list_op_names
from .registration import register as register
from .registration import register_alter_op_layout as register_alter_op_layout
from .registration import register_compute as register_compute
from .registration import register_convert_op_layout as register_convert_op_layout
from .registration import register_gradient as register_gradient
from .registration import register_infer_correct_layout as register_infer_correct_layout
from .registration import register_legalize as register_legalize
from .registration import (
    register_mixed_precision_conversion as register_mixed_precision_conversion,
)
from .registration import register_op_attr as register_op_attr
from .registration import register_pattern as register_pattern
from .registration import register_stateful as register_stateful
from .registration import unregister as unregister
