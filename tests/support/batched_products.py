"""Batched products: random ones as Relax modules, NumPy's numbers for them and for calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import tvm
from numpy.lib.stride_tricks import as_strided
from torch import nn
from tvm import relax

from byoc_cudnn.batched_products import BatchedProductsCall, Matrices
from relay_wgrad.dtypes import FLOATS, HALVES, numpy_dtype

op = relax.op
LIMITS = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-6, "float64": 1e-14}
"""How far a result may be from float64's, relative to its norm: one rounding of one element."""


def _matrices(flat: np.ndarray, at: Matrices, count: int, rows: int, columns: int) -> np.ndarray:
    steps = (at.step, 1, at.lead) if at.turned else (at.step, at.lead, 1)
    lies = [n * flat.itemsize for n in steps]
    return as_strided(flat, (count, rows, columns), lies)


def computed(call: BatchedProductsCall, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Writes a call's result into c, of which every element is written; sums are float64."""
    count, of = call.b or c.size // (call.m * call.n), call.places
    first = _matrices(a.reshape(-1), of[0], count, call.m, call.k).astype("float64")
    second = _matrices(b.reshape(-1), of[1], count, call.k, call.n).astype("float64")
    _matrices(c.reshape(-1), of[2], count, call.m, call.n)[...] = (first @ second).astype(c.dtype)


def packed(call: BatchedProductsCall) -> Any:
    """The call as a function of TVM's tensors on the CPU."""

    def run(a: Any, b: Any, c: Any) -> None:
        out = np.full(c.shape, np.nan, numpy_dtype(str(c.dtype)))
        computed(call, a.numpy(), b.numpy(), out)
        c.copyfrom(out)

    return run


@dataclass
class Random:
    """A product of random sizes, of operands that are given as other tensors, and its result as
    another: each by a permutation, an operand's batch merged or of one matrix for several."""

    seed: int
    dtype: str = ""
    text: str = ""
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.dtype = self.dtype or str(rng.choice(FLOATS))
        self.wide = self.dtype in HALVES and bool(rng.integers(2))
        self.rounded = self.wide and bool(rng.integers(2))
        outer = [int(n) for n in rng.integers(1, 5, rng.integers(0, 4))]
        self.m, self.n, self.k = (int(n) for n in rng.integers(2, 40, 3))
        self.sides = [self._side(rng, outer, at) for at in ((self.m, self.k), (self.k, self.n))]
        self.back = self._order(rng, len(outer) + 2)

    def _side(self, rng: Any, outer: Sequence[int], last: tuple[int, int]) -> Any:
        """Sizes as they are multiplied, the permutation that makes them, whether axes are merged
        before."""
        kept = outer if rng.integers(3) else outer[rng.integers(len(outer) + 1) :]
        sizes = [1 if rng.integers(6) == 0 else n for n in kept] + list(last)
        order = self._order(rng, len(sizes))
        merged = len(sizes) > 3 and bool(rng.integers(3) == 0)
        return sizes, order, merged

    @staticmethod
    def _order(rng: Any, rank: int) -> list[int]:
        kind = int(rng.integers(3))
        plain = list(range(rank))
        if kind == 0:
            return plain
        return (
            [*plain[:-2], rank - 1, rank - 2]
            if kind == 1
            else [int(n) for n in rng.permutation(rank)]
        )

    def module(self) -> tvm.IRModule:
        bb = relax.BlockBuilder()
        given = []
        for name, (sizes, order, merged) in zip("ab", self.sides, strict=True):
            before = [0] * len(sizes)
            for axis, source in enumerate(order):
                before[source] = sizes[axis]
            shape = [before[0] * before[1], *before[2:]] if merged else before
            given.append((relax.Var(name, relax.TensorType(shape, self.dtype)), before))
        with bb.function("main", [var for var, _ in given]):
            with bb.dataflow():
                made = []
                for (var, before), (_, order, merged) in zip(given, self.sides, strict=True):
                    whole = bb.emit(op.reshape(var, before)) if merged else var
                    made.append(bb.emit(op.permute_dims(whole, order)))
                y = bb.emit(op.matmul(*made, out_dtype="float32" if self.wide else None))
                y = bb.emit(op.astype(y, self.dtype)) if self.rounded else y
                order = self.back if len(self.back) == y.ty.ndim else [*range(y.ty.ndim)]
                out = bb.emit_output(op.permute_dims(y, order))
            bb.emit_func_output(out)
        self.order = order
        return bb.get()

    def operands(self) -> list[np.ndarray]:
        rng, kind = np.random.default_rng(self.seed), numpy_dtype(self.dtype)
        return [
            rng.standard_normal([int(n) for n in p.ty.shape.values]).astype(kind)
            for p in self.module()["main"].params
        ]

    def wanted(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """In float64."""
        self.module()
        sides = []
        for array, (sizes, order, _) in zip(arrays, self.sides, strict=True):
            before = [0] * len(sizes)
            for axis, source in enumerate(order):
                before[source] = sizes[axis]
            sides.append(array.astype("float64").reshape(before).transpose(order))
        return (sides[0] @ sides[1]).transpose(self.order)


def apart(got: np.ndarray, wanted: np.ndarray) -> float:
    """Relative, in norm."""
    return float(
        np.linalg.norm(got.astype("float64") - wanted) / max(np.linalg.norm(wanted), 1e-30)
    )


class Attention(nn.Module):
    """A block of attention over tokens: q, k and v of one layer, with a bias for pairs."""

    def __init__(self, heads: int = 3, features: int = 8, tokens: int = 10) -> None:
        super().__init__()
        width = heads * features
        self.heads = heads
        self.embed = nn.Linear(6, width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.pairs = nn.Parameter(0.1 * torch.randn(heads, tokens, tokens))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        weights = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1) + self.pairs
        y = (weights.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c)
        x = x + self.proj(y)
        y = nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0]
        return self.head((x + torch.einsum("nik,njk,njc->nic", x, x, y) * 0.01).mean(1))
