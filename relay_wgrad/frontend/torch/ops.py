"""The ATen ops that `from_torch` takes: an allow-list, each row tested for value and gradient."""

from __future__ import annotations

from .call import Builder
from .indexing import INDEXING
from .layers import LAYERS
from .math import MATH
from .products import PRODUCTS
from .random import RANDOM
from .resizing import RESIZING
from .shapes import SHAPES

OPS: dict[str, Builder] = {
    **LAYERS,
    **MATH,
    **SHAPES,
    **RANDOM,
    **RESIZING,
    **INDEXING,
    **PRODUCTS,
}
"""ATen overload, as `torch.export` names it after decompositions -> builder."""

_ASSIGNED = "assignment to a part of a tensor; make a new one by torch.where or torch.cat"

HINTS: dict[str, str] = {
    "_local_scalar_dense": "a number read from a tensor is not known on import",
    "item": "a number read from a tensor is not known on import",
    "exponential": "draw it as -torch.log(1 - torch.rand_like(x))",
    "index_put": _ASSIGNED,
    "multinomial": "draw it outside and pass it as an input",
    "randperm": "draw it outside and pass it as an input",
}
"""What to do instead of some ops that are not taken."""
