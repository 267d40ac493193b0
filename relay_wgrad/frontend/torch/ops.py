"""The operators that `from_torch` takes: an allow-list, each row tested for value and gradient."""

from __future__ import annotations

from .call import Builder
from .index_put import PLACING
from .indexing import INDEXING
from .layers import LAYERS
from .losses import LOSSES
from .math import MATH
from .own_ops import OWN
from .products import PRODUCTS
from .random import RANDOM
from .recurrent import RECURRENT
from .resizing import RESIZING
from .shapes import FILLED, SHAPES

OPS: dict[str, Builder] = {
    **LAYERS,
    **MATH,
    **LOSSES,
    **SHAPES,
    **RANDOM,
    **RECURRENT,
    **RESIZING,
    **INDEXING,
    **PLACING,
    **PRODUCTS,
    **OWN,
}
"""Overload, as `torch.export` names it after decompositions, by `names.op_of` -> builder."""

FILLING = frozenset({*RANDOM, *FILLED, "copy.default"})
"""Those that read no value of their first operand, so that it may be one of `torch.empty`."""

HINTS: dict[str, str] = {
    "_local_scalar_dense": "a number read from a tensor is not known on import",
    "binary_cross_entropy": "take binary_cross_entropy_with_logits, of what is before the sigmoid",
    "item": "a number read from a tensor is not known on import",
    "exponential": "draw it as -torch.log(1 - torch.rand_like(x))",
    "multinomial": "draw it outside and pass it as an input",
    "randperm": "draw it outside and pass it as an input",
}
"""What to do instead of some ops that are not taken."""
