"""Models to training graphs: `from_onnx`, `from_torch`, what they return, and `to_onnx` back.

Importing this changes nothing in TVM and needs no PyTorch; `from_torch` needs it when called.
"""

from .bundled import BUNDLED
from .graph import InputSpec, TrainingGraph
from .onnx_export import to_onnx
from .onnx_import import from_onnx
from .torch_import import from_torch

__all__ = ["BUNDLED", "InputSpec", "TrainingGraph", "from_onnx", "from_torch", "to_onnx"]
