"""Relay's text: `fromtext` and `astext`."""

from .parser import fromtext
from .printer import astext

__all__ = ["astext", "fromtext"]
