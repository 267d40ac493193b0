"""Builders of `relay.random` that are made of the operators' records."""

from . import builders

_MADE = builders("random")
globals().update(_MADE)
__all__ = list(_MADE)
