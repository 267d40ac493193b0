"""Relay's operators on Relax: one table from name to attributes, type relation and builder.

    from relay_wgrad.relay.records import lookup
    op = lookup("nn.conv2d")
    op.infer([data_type, weight_type], {"padding": [1, 1, 1, 1]})

`relay.op` beside it has Relay's own path, with the builders of calls.

Convolution gradients need `relay_wgrad.register()` before they are built.
"""

from . import (
    annotation,
    conv,
    create,
    detection,
    dynamic,
    einsum,
    elementwise,
    image,
    indexing,
    loss,
    multibox,
    nn,
    normalize,
    pad,
    places,
    pool,
    random,
    reduce,
    select,
    shape,
    signal,
    sort_scan,
    space,
    sparse,
    vision,
)
from .table import REGISTRY as REGISTRY
from .table import REQUIRED as REQUIRED
from .table import Attr as Attr
from .table import RelayOp as RelayOp
from .table import attributes_of as attributes_of
from .table import lookup as lookup
from .table import show as show

# Importing a family's file fills the table.
FAMILIES = (
    elementwise,
    reduce,
    shape,
    select,
    pad,
    create,
    conv,
    nn,
    normalize,
    pool,
    loss,
    image,
    indexing,
    sort_scan,
    places,
    space,
    vision,
    detection,
    multibox,
    dynamic,
    sparse,
    signal,
    annotation,
    einsum,
    random,
)
