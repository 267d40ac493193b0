"""Element-wise functions of one argument, each over the numbers that approximations are wrong at.

log is asked for near 1, tanh and its like near 0, sin and cos far from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import tvm
from tvm import relax

from relay_wgrad.ops.elementwise import ALL, RECORDS, RELAX
from tests.support.built import built

# Relax' name: between which numbers.
FUNCTIONS: dict[str, tuple[float, float]] = {
    name: RECORDS[name].domain
    for name in RELAX
    if RECORDS[name].operands == 1 and RECORDS[name].takes == "f" and RECORDS[name].slope
    and hasattr(torch, name)
} | {"square": ALL}  # fmt: skip
_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
_COUNT = 4096
_ALLOWED = 4.0  # units of the last place; CUDA promises 1 to 4


def module(dtype: str) -> tvm.IRModule:
    """All functions, each of a tensor of its own."""
    given = [relax.Var(name, relax.TensorType((_COUNT,), dtype)) for name in FUNCTIONS]
    pairs = list(zip(FUNCTIONS, given, strict=True))
    return built(given, lambda emit: relax.Tuple([emit(getattr(relax.op, n)(x)) for n, x in pairs]))


def operands(dtype: str, seed: int = 0) -> list[torch.Tensor]:
    """A third each: anywhere within the bounds, near 0 and near 1 where those are."""
    rng = np.random.default_rng(seed)
    # Half precision has neither the largest numbers nor the least: float32's, within its range.
    most, least = (3e4, 1e-3) if dtype == "float16" else (1e30, 1e-30)
    result = []
    for lower, upper in FUNCTIONS.values():
        low, high = max(lower, -most), min(upper, 10.0 if dtype == "float16" else upper, most)
        spread = (
            np.exp(rng.uniform(np.log(max(low, least)), np.log(high), _COUNT))
            if low > 0 else rng.uniform(low, high, _COUNT)
        )  # fmt: skip
        small = np.exp(rng.uniform(np.log(least), 0, _COUNT)) * rng.choice((-1, 1), _COUNT)
        near = 1 + np.exp(rng.uniform(-12, -1, _COUNT)) * rng.choice((-1, 1), _COUNT)
        third = np.arange(_COUNT) % 3
        x = np.where(third == 0, spread, np.where(third == 1, small, near))
        x = np.where((x >= low) & (x <= high), x, spread)
        result.append(torch.tensor(x).to(getattr(torch, dtype)))
    return result


def as_tvm(x: torch.Tensor, device: Any) -> Any:
    if x.dtype is torch.bfloat16:
        return tvm.runtime.tensor(x.view(torch.int16).numpy().view("bfloat16"), device)
    return tvm.runtime.tensor(x.numpy(), device)


def wrong(dtype: str, vm: relax.VirtualMachine, device: Any) -> dict[str, float]:
    """The functions that are more than a few units of the last place off, and by how many."""
    given = operands(dtype)
    found = errors(
        dtype, given, [y.numpy() for y in vm["main"](*(as_tvm(x, device) for x in given))]
    )
    return {name: error for name, error in found.items() if not error <= _ALLOWED}


def errors(dtype: str, given: list[torch.Tensor], got: list[Any]) -> dict[str, float]:
    """By function: the largest error in units of the last place of the right value."""
    found = {}
    for name, x, y in zip(FUNCTIONS, given, got, strict=True):
        want = getattr(torch, name)(x.double()).numpy()
        # ml_dtypes' bfloat16 is a type that PyTorch does not take.
        y = np.asarray(y).astype("float64")
        least = np.finfo("float16" if dtype == "float16" else "float32").tiny
        size = np.maximum(np.abs(want), least)
        unit = 2.0 ** (np.floor(np.log2(size)) - _BITS[dtype])
        found[name] = float(np.max(np.abs(y - want) / unit))
    return found
