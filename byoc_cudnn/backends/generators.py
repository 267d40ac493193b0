"""Code generation: what each backend makes of the functions that a partition gave it."""

from .cudnn import codegen as cudnn
from .cudnn.check import CODEGEN
from .cudnn.codegen import PLANS, generate
from .cutlass import codegen as cutlass

ALL_PLANS = (cudnn.PLANS, cutlass.PLANS)
"""What generated sources export besides their regions, by which they are told from TVM's own."""


def register() -> None:
    """Makes all code generators known to TVM; again is no error."""
    cudnn.register()
    cutlass.register()


__all__ = ["ALL_PLANS", "CODEGEN", "PLANS", "generate", "register"]
