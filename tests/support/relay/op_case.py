"""One call of an operator with its expected result, and random operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

RNG = np.random.default_rng(7)


@dataclass(frozen=True)
class Case:
    """`op(args, attrs)`; an argument that is a tuple is a tuple of tensors."""

    op: str
    args: tuple[Any, ...]
    expected: Callable[..., Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()  # arguments by which Relax has no gradient


def real(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def positive(*shape: int) -> np.ndarray:
    return (np.abs(real(*shape)) + np.float32(0.5)).astype("float32")


def unit(*shape: int) -> np.ndarray:
    return RNG.uniform(-0.9, 0.9, shape).astype("float32")


def whole(*shape: int, low: int = -9, high: int = 10, dtype: str = "int32") -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


def flags(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2, shape).astype(bool)


def by_torch(function: Callable[..., torch.Tensor]) -> Callable[..., np.ndarray]:
    return lambda *args: function(*(torch.from_numpy(a) for a in args)).numpy()
