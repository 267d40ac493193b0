"""The public path of `OPS`, which is in `frontend.onnx.ops`."""

from .onnx.ops import OPS

__all__ = [
    "OPS",
]
