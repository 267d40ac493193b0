"""Passes: gradients of any order, layout conversion, mixed precision, checkpointing."""

from .checkpoint import checkpoint
from .convert_layout import ConvertLayout, converted_params, converted_results
from .grad import Gradient, grad
from .layout_report import LayoutChange, count_reasons, layout_changes
from .mixed_precision import mixed_precision

__all__ = [
    "ConvertLayout",
    "Gradient",
    "LayoutChange",
    "checkpoint",
    "converted_params",
    "converted_results",
    "count_reasons",
    "grad",
    "layout_changes",
    "mixed_precision",
]
