"""Code generation: what each backend makes of the functions that a partition gave it."""

from ..backends.cudnn import CODEGEN
from . import cudnn, cutlass
from .cudnn import PLANS, generate

ALL_PLANS = (cudnn.PLANS, cutlass.PLANS)
"""What generated sources export besides their regions, by which they are told from TVM's own."""


def register() -> None:
    """Makes all code generators known to TVM; again is no error."""
    cudnn.register()
    cutlass.register()


__all__ = ["ALL_PLANS", "CODEGEN", "PLANS", "generate", "register"]
