"""Models to training graphs: `from_onnx`, `from_torch`, what they return; others' gradient graphs:
`from_aot`, `from_onnx_training`, `from_stablehlo`; older TVM's scripts: `from_relax_script`; and
back: `to_onnx`, `gradient_to_onnx`.

Importing this changes nothing in TVM and needs no PyTorch; `from_torch` needs it when called.
"""

from ..lazy_package import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
