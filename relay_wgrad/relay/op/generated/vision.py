"""Builders of `relay.vision` that are made of the operators' records."""

from . import builders

_MADE = builders("vision")
globals().update(_MADE)
__all__ = list(_MADE)
