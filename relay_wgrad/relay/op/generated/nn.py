"""Builders of `relay.nn` that are made of the operators' records."""

from . import builders

_MADE = builders("nn")
globals().update(_MADE)
__all__ = list(_MADE)
