"""Models to training graphs: `from_onnx`, `from_torch`, what they return; others' gradient graphs:
`from_aot`, `from_onnx_training`, `from_stablehlo`; older TVM's scripts: `from_relax_script`; and
back: `to_onnx`, `gradient_to_onnx`.

Importing this changes nothing in TVM and needs no PyTorch; `from_torch` needs it when called.
"""

from .gradient_graph import GradientGraph
from .graph import InputSpec, TrainingGraph
from .loss import L1, LOSSES, MSE, BCEWithLogits, CrossEntropy, Huber, Loss, SmoothL1
from .onnx.bundled import BUNDLED
from .onnx.export import to_onnx
from .onnx.importer import from_onnx
from .onnx.step import gradient_to_onnx
from .onnx.training import from_onnx_training
from .onnx.writing.function import function_to_onnx
from .relax_script import from_relax_script
from .stablehlo.importer import from_stablehlo
from .torch.aot import from_aot
from .torch.importer import from_torch

__all__ = [
    "BUNDLED", "L1", "LOSSES", "MSE", "BCEWithLogits", "CrossEntropy", "GradientGraph", "Huber",
    "InputSpec", "Loss", "SmoothL1", "TrainingGraph", "from_aot", "from_onnx",
    "from_onnx_training", "from_relax_script", "from_stablehlo", "from_torch", "function_to_onnx",
    "gradient_to_onnx", "to_onnx",
]  # fmt: skip
