"""Relay's name for the module of places in a text."""

from .spans import SourceName as SourceName
from .spans import Span as Span
