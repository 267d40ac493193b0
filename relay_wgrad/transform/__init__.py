"""Passes: gradients of any order."""

from .grad import Gradient, grad

__all__ = ["Gradient", "grad"]
