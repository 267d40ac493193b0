"""Builders of `relay.annotation` that are made of the operators' records."""

from . import builders

_MADE = builders("annotation")
globals().update(_MADE)
__all__ = list(_MADE)
