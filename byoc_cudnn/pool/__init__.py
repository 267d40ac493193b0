"""Max pooling and its gradient on the GPU, channels last: kernels of our own, at memory's rate."""

from .call import PoolCall, check
from .codegen import POOLS

CODEGEN, PLANS = POOLS.codegen, POOLS.plans
generate, inputs, kernels_of = POOLS.generate, POOLS.inputs, POOLS.kernels_of

__all__ = ["CODEGEN", "PLANS", "POOLS", "PoolCall", "check", "generate", "inputs", "kernels_of"]
