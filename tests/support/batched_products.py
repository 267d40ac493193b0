"""Batched products: random ones as Relax modules, NumPy's numbers for them and for calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tvm
from numpy.lib.stride_tricks import as_strided
from torch import nn
from tvm import relax

from byoc_cudnn.batched_products import BatchedProductsCall, Matrices
from byoc_cudnn.batched_products.lower import lower_batched_products
from relay_wgrad.dtypes import FLOATS, HALVES, numpy_dtype
from relay_wgrad.graph.walk import bindings_of
from relay_wgrad.ir import op_name

op = relax.op
LIMITS = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-6, "float64": 1e-14}
"""How far a result may be from float64's, relative to its norm: one rounding of one element."""


def _matrices(flat: np.ndarray, at: Matrices, count: int, rows: int, columns: int) -> np.ndarray:
    steps = (at.step, 1, at.lead) if at.turned else (at.step, at.lead, 1)
    lies = [n * flat.itemsize for n in steps]
    return as_strided(flat[at.first :], (count, rows, columns), lies)


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


_PARTS = 3


@dataclass(frozen=True)
class Side:
    """An operand's sizes, and what it is made of: a tensor whose first two axes are one if
    `merged`, of which along axis `cut` the part of that number is taken, permuted by `order`."""

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    merged: bool
    cut: int | None
    part: int

    @property
    def before(self) -> list[int]:
        """The sizes before the permutation."""
        return [self.sizes[self.order.index(axis)] for axis in range(len(self.sizes))]

    @property
    def whole(self) -> list[int]:
        """And before the cut."""
        return [n * _PARTS if i == self.cut else n for i, n in enumerate(self.before)]

    @property
    def given(self) -> list[int]:
        """And before the reshape."""
        first, second, *rest = self.whole
        return [first * second, *rest] if self.merged else self.whole

    def emit(self, bb: relax.BlockBuilder, x: Any) -> Any:
        x = bb.emit(op.reshape(x, self.whole)) if self.merged else x
        if self.cut is not None:
            x = bb.emit(relax.TupleGetItem(bb.emit(op.split(x, _PARTS, self.cut)), self.part))
        return bb.emit(op.permute_dims(x, list(self.order)))

    def computed(self, array: np.ndarray) -> np.ndarray:
        array = array.astype("float64").reshape(self.whole)
        if self.cut is not None:
            array = np.split(array, _PARTS, self.cut)[self.part]
        return array.transpose(self.order)


class Random:
    """A product of random sizes, of operands that are given as other tensors, and its result as
    another by a permutation."""

    def __init__(self, seed: int, dtype: str = "") -> None:
        rng = np.random.default_rng(seed)
        self.seed, self.dtype = seed, dtype or str(rng.choice(FLOATS))
        self.wide = self.dtype in HALVES and bool(rng.integers(2))
        self.rounded = self.wide and bool(rng.integers(2))
        outer = [int(n) for n in rng.integers(1, 5, rng.integers(0, 4))]
        m, n, k = (int(n) for n in rng.integers(2, 40, 3))
        self.sides = [_side(rng, outer, last) for last in ((m, k), (k, n))]
        self.back = _order(rng, max(len(side.sizes) for side in self.sides))

    def module(self) -> tvm.IRModule:
        bb = relax.BlockBuilder()
        given = [
            relax.Var(name, relax.TensorType(side.given, self.dtype))
            for name, side in zip("ab", self.sides, strict=True)
        ]
        with bb.function("main", given):
            with bb.dataflow():
                made = [side.emit(bb, x) for side, x in zip(self.sides, given, strict=True)]
                y = bb.emit(op.matmul(*made, out_dtype="float32" if self.wide else None))
                y = bb.emit(op.astype(y, self.dtype)) if self.rounded else y
                out = bb.emit_output(op.permute_dims(y, list(self.back)))
            bb.emit_func_output(out)
        return bb.get()

    def operands(self) -> list[np.ndarray]:
        rng, kind = np.random.default_rng(self.seed), numpy_dtype(self.dtype)
        return [rng.standard_normal(side.given).astype(kind) for side in self.sides]

    def wanted(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """In float64."""
        a, b = (side.computed(array) for side, array in zip(self.sides, arrays, strict=True))
        return (a @ b).transpose(self.back)

    @property
    def limit(self) -> float:
        return LIMITS["float32" if self.wide and not self.rounded else self.dtype]


def _side(rng: Any, outer: Sequence[int], last: tuple[int, int]) -> Side:
    kept = outer if rng.integers(3) else outer[rng.integers(len(outer) + 1) :]
    sizes = (*(1 if rng.integers(6) == 0 else n for n in kept), *last)
    cut = int(rng.integers(len(sizes))) if rng.integers(3) == 0 else None
    merged = len(sizes) > 3 and bool(rng.integers(3) == 0)
    return Side(sizes, _order(rng, len(sizes)), merged, cut, int(rng.integers(_PARTS)))


def _order(rng: Any, rank: int) -> tuple[int, ...]:
    """None, the last two axes exchanged, or any."""
    *outer, rows, columns = plain = range(rank)
    anyhow = tuple(int(n) for n in rng.permutation(rank))
    return (tuple(plain), (*outer, columns, rows), anyhow)[int(rng.integers(3))]


def alone(seeds: Iterable[int], dtype: str = "") -> dict[str, Random]:
    """Those random products, by names of functions, that become a call and nothing else."""
    found = {}
    for seed in seeds:
        case = Random(seed, dtype)
        made, _ = lower_batched_products(case.module(), 90)
        if {op_name(b.value) for b in bindings_of(made["main"])} == {"relax.call_dps_packed"}:
            found[f"of_{seed}"] = case
    return found


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
