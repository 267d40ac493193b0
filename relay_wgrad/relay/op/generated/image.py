"""Builders of `relay.image` that are made of the operators' records."""

from . import builders

_MADE = builders("image")
globals().update(_MADE)
__all__ = list(_MADE)
