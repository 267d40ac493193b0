"""Code generation: what each backend makes of the functions that a partition gave it."""

from .cudnn import CODEGEN, PLANS, generate, register

__all__ = ["CODEGEN", "PLANS", "generate", "register"]
