"""The ATen ops that `from_torch` takes: an allow-list, each row tested for value and gradient."""

from __future__ import annotations

from .call import Builder
from .layers import LAYERS
from .math import MATH
from .random import RANDOM
from .shapes import SHAPES

OPS: dict[str, Builder] = {**LAYERS, **MATH, **SHAPES, **RANDOM}
"""ATen overload, as `torch.export` names it after decompositions -> builder."""

_ASSIGNED = "assignment to a part of a tensor; make a new one by torch.where or torch.cat"

HINTS: dict[str, str] = {
    "_local_scalar_dense": "a number read from a tensor is not known on import",
    "item": "a number read from a tensor is not known on import",
    "copy": _ASSIGNED,
    "div": "rounding has no gradient: use torch.floor(x / y)",
    "exponential": "draw it as -torch.log(1 - torch.rand_like(x))",
    "index": "use index_select, or slices",
    "multinomial": "draw it outside and pass it as an input",
    "randperm": "draw it outside and pass it as an input",
    "select_scatter": _ASSIGNED,
    "slice_scatter": _ASSIGNED,
}
"""What to do instead of some ops that are not taken."""
