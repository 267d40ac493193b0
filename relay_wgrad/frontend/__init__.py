"""Models to training graphs: `from_onnx` and what it returns.

Importing this changes nothing in TVM and needs no PyTorch.
"""

from .bundled import BUNDLED
from .graph import InputSpec, TrainingGraph
from .onnx_import import from_onnx

__all__ = ["BUNDLED", "InputSpec", "TrainingGraph", "from_onnx"]
