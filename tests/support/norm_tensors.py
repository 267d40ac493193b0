"""Operands and results of normalizations' kernels, for those that run on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from byoc_cudnn.norm import NormCall
from tests.support.cuda_emulated import DTYPES, aligned

ROWS = {"float16": 5e-4, "bfloat16": 4e-3, "float32": 5e-7, "float64": 1e-14}
SUMS = {"float16": 1e-6, "bfloat16": 1e-6, "float32": 1e-6, "float64": 1e-14}


class Tensors(dict[str, np.ndarray]):
    """Random operands by name, made when they are asked for, and results full of NaN."""

    def __init__(
        self, shape: tuple[int, ...], dtype: str, windows: tuple[int, ...] = (), groups: int = 0
    ) -> None:
        self.shape, self.windows, self.rows, self.groups = shape, windows, DTYPES[dtype], groups
        self.sums = np.float64 if dtype == "float64" else np.float32
        self.rng = np.random.default_rng(0)

    def ready(self, call: NormCall) -> Tensors:
        for name in call.operands:
            if name not in self:
                self[name] = self._random(name)
        for name in call.results:
            self[name] = self._poisoned(name)
        return self

    def _size(self, name: str) -> tuple[Any, tuple[int, ...]]:
        if name in ("mask", "index"):
            packs = -(-self.shape[-1] * np.dtype(self.rows).itemsize // 16)
            return np.uint8, self.windows if name == "index" else (*self.shape[:-1], packs)
        if name.rstrip("234") in ("x", "residual", "dx", "dresidual", "more", "skip", "total"):
            return self.rows, self.shape
        if name in ("y", "dy", "dy2"):
            return self.rows, self.windows or self.shape
        if self.groups and name in ("mean", "rstd"):
            return self.sums, (self.shape[0], self.groups)
        return self.sums, self.shape[-1:]

    def _random(self, name: str) -> np.ndarray:
        dtype, shape = self._size(name)
        return aligned((1.5 * self.rng.standard_normal(shape) + 0.3).astype(dtype))

    def _poisoned(self, name: str) -> np.ndarray:
        dtype, shape = self._size(name)
        return aligned(np.full(shape, 90 if dtype is np.uint8 else np.nan, dtype))

    def wide(self, name: str) -> np.ndarray:
        value = self[name].astype("float64")
        return value.reshape(-1, value.shape[-1]) if value.ndim > 1 else value
