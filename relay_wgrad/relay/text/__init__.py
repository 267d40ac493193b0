"""Relay's text: `fromtext`, `parse` and `astext`."""

from .parser import fromtext, parse
from .printer import astext

__all__ = ["astext", "fromtext", "parse"]
