"""Passes: gradients of any order, layout conversion, mixed precision, checkpointing."""

from .checkpoint import checkpoint
from .convert_layout import ConvertLayout, converted_params, converted_results
from .grad import Gradient, grad
from .layout_report import LayoutChange, count_reasons, layout_changes
from .mixed_precision import mixed_precision
from .raise_pass import RaiseConvBackward, raise_conv_backward
from .raise_report import RaiseEntry, RaiseReport

__all__ = [
    "ConvertLayout",
    "Gradient",
    "LayoutChange",
    "RaiseConvBackward",
    "RaiseEntry",
    "RaiseReport",
    "checkpoint",
    "converted_params",
    "converted_results",
    "count_reasons",
    "grad",
    "layout_changes",
    "mixed_precision",
    "raise_conv_backward",
]
