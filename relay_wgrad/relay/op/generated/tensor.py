"""Builders of `relay` itself that are made of the operators' records."""

from . import builders

_MADE = builders("")
globals().update(_MADE)
__all__ = list(_MADE)
