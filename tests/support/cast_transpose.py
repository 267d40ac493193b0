"""Casts and transpositions of many tensors, as NumPy does them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from byoc_cudnn.cast_transpose import CastTransposeCall, Transposition
from relay_wgrad.dtypes import numpy_dtype

op = relax.op


def moved(
    call: CastTransposeCall, arrays: Sequence[np.ndarray], scale: float = 1.0
) -> list[np.ndarray]:
    """The results of a call, flat: each element is rounded once."""
    return [
        (placed(move, array).astype("float32") * np.float32(scale)).astype(numpy_dtype(call.result))
        for move, array in zip(call.tensors, arrays, strict=True)
    ]


def placed(move: Transposition, array: np.ndarray) -> np.ndarray:
    """The elements in their new order, flat, zeros where there is none."""
    whole = array.reshape(move.sizes)
    for axis, (width, filled) in enumerate(move.fills):
        packs = np.moveaxis(whole, axis, 0)
        packs = packs.reshape(-1, width, *packs.shape[1:])
        new = np.zeros((packs.shape[0], filled, *packs.shape[2:]), array.dtype)
        new[:, :width] = packs[:, :filled]
        whole = np.moveaxis(new.reshape(-1, *packs.shape[2:]), 0, axis)
    return whole.swapaxes(1, 2).ravel()


class Chain:
    """Steps at random from a tensor to what is made of it: reshapes, a permutation, packs of an
    axis filled up or cut, a cast, a product with a scalar."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = [int(n) for n in rng.choice([1, 2, 3, 4, 6, 8, 9], int(rng.integers(2, 5)))]
        self.steps: list[tuple[Any, ...]] = []
        shape = list(self.sizes)
        for _ in range(int(rng.integers(1, 4))):
            kind = str(rng.choice(["reshape", "permute", "fill", "cut"]))
            if kind == "reshape":
                shape = _factored(rng, int(np.prod(shape)))
                self.steps.append((kind, list(shape)))
            elif kind == "permute" and not any(step == "permute" for step, *_ in self.steps):
                axes = [int(a) for a in rng.permutation(len(shape))]
                shape = [shape[a] for a in axes]
                self.steps.append((kind, axes))
            elif kind in ("fill", "cut"):
                axis = int(rng.integers(len(shape)))
                size = shape[axis] + (int(rng.integers(1, 5)) if kind == "fill" else -1)
                if min(size, shape[axis]) > 1:
                    shape = [*shape[:axis], size, *shape[axis + 1 :]]
                    self.steps.append((kind, axis, size))
        self.shape = shape
        self.cast_at = int(rng.integers(0, len(self.steps) + 1))

    def __str__(self) -> str:
        return f"{self.sizes} {self.steps}, cast at {self.cast_at}"

    def emit(self, bb: relax.BlockBuilder, value: Any, to: str, scale: Any = None) -> Any:
        """What is made of a tensor: cast, and multiplied in float32."""
        for i, (kind, *how) in enumerate([*self.steps, ("end",)]):
            value = bb.emit(op.astype(value, to)) if i == self.cast_at else value
            if kind == "reshape":
                value = bb.emit(op.reshape(value, how[0]))
            elif kind == "permute":
                value = bb.emit(op.permute_dims(value, how[0]))
            elif kind == "fill":
                value = with_zeros(bb, value, *how)
            elif kind == "cut":
                parts = bb.emit(op.split(value, [how[1]], how[0]))
                value = bb.emit(relax.TupleGetItem(parts, 0))
        return value if scale is None else bb.emit(op.multiply(value, scale))


def with_zeros(bb: relax.BlockBuilder, value: Any, axis: int, size: int) -> Any:
    """A tensor with zeros at an axis' end."""
    shape = [int(n) for n in value.ty.shape.values]
    shape[axis] = size - shape[axis]
    zeros = bb.emit(op.zeros(shape, str(value.ty.dtype)))
    return bb.emit(op.concat([value, zeros], axis))


def _factored(rng: np.random.Generator, count: int) -> list[int]:
    """Sizes whose product is a number."""
    sizes = []
    while count > 1 and len(sizes) < 4:
        size = int(rng.choice([n for n in range(1, count + 1) if count % n == 0]))
        sizes.append(size)
        count //= size
    return [*sizes, count]


def chains(seed: int, to_float: bool) -> tuple[tvm.IRModule, list[Chain]]:
    """A function of twelve chains: of parameters, whose results are used twice; or of what is
    computed, whose results are the function's, scaled."""
    bb = relax.BlockBuilder()
    made = [Chain(seed * 100 + i) for i in range(12)]
    source, to = ("float16", "float32") if to_float else ("float32", "float16")
    params = [
        relax.Var(f"w{i}", relax.TensorType(chain.sizes, source)) for i, chain in enumerate(made)
    ]
    factor = relax.Var("factor", relax.TensorType((), "float32"))
    with bb.function("main", [*params, factor]):
        with bb.dataflow():
            outputs = []
            for chain, value in zip(made, params, strict=True):
                given = bb.emit(op.negative(value)) if to_float else value
                end = chain.emit(bb, given, to, factor if to_float else None)
                used = end if to_float else op.add(end, end)
                outputs.append(bb.emit_output(used))
        bb.emit_func_output(relax.Tuple(outputs))
    return bb.get(), made


def step(shapes: Sequence[tuple[int, ...]], scaled: bool, half: str = "float16") -> tvm.IRModule:
    """Weights are cast and turned; what is made of each is cast back, scaled and turned."""
    bb = relax.BlockBuilder()
    weights = [relax.Var(f"w{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    factor = relax.Var("factor", relax.TensorType((), "float32"))
    with bb.function("main", [*weights, factor]):
        with bb.dataflow():
            turned = [
                bb.emit(op.astype(bb.emit(op.permute_dims(w, [0, 2, 3, 1])), half)) for w in weights
            ]
            inverse = bb.emit(op.divide(relax.const(3.0), factor))
            outputs = []
            for value in [bb.emit(op.negative(t)) for t in turned]:
                back = bb.emit(op.astype(value, "float32"))
                back = bb.emit(op.multiply(back, inverse)) if scaled else back
                outputs.append(bb.emit_output(op.permute_dims(back, [0, 3, 1, 2])))
        bb.emit_func_output(relax.Tuple(outputs))
    return bb.get()
