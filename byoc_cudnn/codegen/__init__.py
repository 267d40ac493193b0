"""Code generation: what each backend makes of the functions that a partition gave it."""

from ..backends.cudnn import CODEGEN
from .cudnn import PLANS, generate, register

__all__ = ["CODEGEN", "PLANS", "generate", "register"]
