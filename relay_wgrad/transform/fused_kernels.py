"""The public path of `fused_kernels`, which is in `pipeline.fused_kernels`."""

from ..pipeline.fused_kernels import fused_kernels, legalize_ops

__all__ = [
    "fused_kernels",
    "legalize_ops",
]
