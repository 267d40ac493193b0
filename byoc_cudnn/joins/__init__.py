"""Tensors joined, cut and added along their channels, channels last: kernels of our own."""

from .call import JoinsCall, check
from .codegen import JOINS

CODEGEN, PLANS = JOINS.codegen, JOINS.plans
generate, inputs, kernels_of = JOINS.generate, JOINS.inputs, JOINS.kernels_of

__all__ = ["CODEGEN", "JOINS", "PLANS", "JoinsCall", "check", "generate", "inputs", "kernels_of"]
