"""JAX's functions by this package's compilers: `value_and_grad`, `compiled`.

Importing this imports no JAX; what it has needs it when called.
"""

from .compiled import Compiled, compiled, value_and_grad

__all__ = ["Compiled", "compiled", "value_and_grad"]
