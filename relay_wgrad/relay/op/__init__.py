"""Relay 0.19's path `relay.op`: builders of calls, and the registration of operators.

Modules and names in here are upstream's; what an operator is (attributes, type, lowering to Relax)
is in `relay.records`, of which upstream has no counterpart.
"""

from ..expr import const as const
from ..records.facts import OpPattern as OpPattern
from . import annotation as annotation
from . import contrib as contrib
from . import image as image
from . import indexing, reduce, tensor, transform
from . import nn as nn
from . import op as op
from . import random as random
from . import vision as vision
from .indexing import *  # noqa: F403
from .reduce import *  # noqa: F403
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
from .tensor import *  # noqa: F403
from .transform import *  # noqa: F403

# The builders, which `relay` has too.
BUILDERS = [*tensor.__all__, *reduce.__all__, *transform.__all__, *indexing.__all__]
