"""Passes: gradients of any order, layout conversion."""

from .convert_layout import ConvertLayout, converted_params, converted_results
from .grad import Gradient, grad
from .layout_report import LayoutChange, count_reasons, layout_changes

__all__ = [
    "ConvertLayout",
    "Gradient",
    "LayoutChange",
    "converted_params",
    "converted_results",
    "count_reasons",
    "grad",
    "layout_changes",
]
