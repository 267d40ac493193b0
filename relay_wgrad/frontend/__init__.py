"""Models to training graphs: `from_onnx`, `from_torch`, what they return, and `to_onnx` back.

Importing this changes nothing in TVM and needs no PyTorch; `from_torch` needs it when called.
"""

from .graph import InputSpec, TrainingGraph
from .onnx.bundled import BUNDLED
from .onnx.export import to_onnx
from .onnx.importer import from_onnx
from .torch.importer import from_torch

__all__ = ["BUNDLED", "InputSpec", "TrainingGraph", "from_onnx", "from_torch", "to_onnx"]
