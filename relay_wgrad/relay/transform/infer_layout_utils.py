"""Relay's name for the module of `InferCorrectLayoutOutput`."""

from ..layout_rules.own import InferCorrectLayoutOutput as InferCorrectLayoutOutput
from ..layout_rules.own import layout as layout
