"""Passes: gradients of any order, layout conversion, mixed precision, checkpointing, blocks."""

from .checkpoint import checkpoint
from .grad import Gradient, grad
from .layout.convert import ConvertLayout, converted_params, converted_results
from .layout.report import LayoutChange, count_reasons, layout_changes
from .mixed_precision import mixed_precision
from .raising.report import RaiseEntry, RaiseReport
from .raising.transform import RaiseConvBackward, raise_conv_backward
from .space_to_depth import DepthEntry, SpaceToDepth, space_to_depth

__all__ = [
    "ConvertLayout",
    "DepthEntry",
    "Gradient",
    "LayoutChange",
    "RaiseConvBackward",
    "RaiseEntry",
    "RaiseReport",
    "SpaceToDepth",
    "checkpoint",
    "converted_params",
    "converted_results",
    "count_reasons",
    "grad",
    "layout_changes",
    "mixed_precision",
    "raise_conv_backward",
    "space_to_depth",
]
