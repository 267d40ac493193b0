"""Normalization in training on the GPU: kernels of our own, at memory's rate.

`NormCall` describes a call, `check` decides on it, `generate` writes the host's C++ for calls and
`inputs` has nvcc build the kernels that it is linked with.
"""

from .call import ACTIVATIONS, NormCall, check
from .codegen import NORMS, workspace_bytes

CODEGEN, PLANS = NORMS.codegen, NORMS.plans
generate, inputs, kernels_of = NORMS.generate, NORMS.inputs, NORMS.kernels_of

__all__ = [
    "ACTIVATIONS", "CODEGEN", "NORMS", "PLANS", "NormCall", "check", "generate", "inputs",
    "kernels_of", "workspace_bytes",
]  # fmt: skip
