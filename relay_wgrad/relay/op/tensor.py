"""Operators on each element, of one argument or of two that broadcast, and those beside them, all
made of their records."""

from .generated.tensor import *  # noqa: F403
from .generated.tensor import __all__ as __all__
