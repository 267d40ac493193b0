"""JAX's functions on this package's kernels.

`conv_general_dilated`, `conv` and `conv_transpose` are `jax.lax`'s, inside `jax.jit`; `optimize`
puts them into a function that has `lax`'s.  `compiled` and `value_and_grad` compile a whole one.

Importing this imports no JAX; what it has needs it when called.
"""

from .compiled import Compiled, compiled, value_and_grad
from .convolutions import (
    conv,
    conv_general_dilated,
    conv_transpose,
    optimize,
    set_measured,
)
from .records import Record, recorded

__all__ = [
    "Compiled",
    "Record",
    "compiled",
    "conv",
    "conv_general_dilated",
    "conv_transpose",
    "optimize",
    "recorded",
    "set_measured",
    "value_and_grad",
]
