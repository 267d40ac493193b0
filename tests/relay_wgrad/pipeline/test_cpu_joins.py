"""Element-wise kernels on a CPU that read joined tensors: vectors, and the numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target
from tvm_ffi import structural_walk

from relay_wgrad.ir import CHOICE
from relay_wgrad.pipeline.cpu import cpu_pipeline, scheduled
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from tests.support.compiled import virtual_machine
from tests.support.partition_cases import module

TARGET = Target({"kind": "llvm", "num-cores": 2})
pytestmark = pytest.mark.usefixtures("registered")
op = relax.op


def rectified(axis: int) -> Any:
    """A body: g where what is joined along an axis, scaled along the last one, is above 0.25."""

    def body(emit: Any, g: Any, scale: Any, *parts: Any) -> list[Any]:
        dtype = g.ty.dtype
        joined = emit(op.multiply(emit(op.concat(list(parts), axis)), scale))
        chosen = emit(op.greater(joined, relax.const(0.25, dtype)))
        return [emit(op.where(chosen, g, op.zeros_like(g)))]

    return body


def given(lengths: list[int], axis: int, dtype: str, pixels: int = 9) -> dict[str, Any]:
    shape: list[int] = [2, pixels, 7, 48]
    shapes = [[*shape[:axis], n, *shape[axis + 1 :]] for n in lengths]
    shape[axis] = sum(lengths)
    named = {f"part_{i}": (tuple(x), dtype) for i, x in enumerate(shapes)}
    return {"g": (tuple(shape), dtype), "scale": ((shape[-1],), dtype), **named}


def kernel(operands: dict[str, Any], body: Any) -> Any:
    """The only kernel of a body, scheduled."""
    with TARGET:
        mod = tvm.transform.Sequential(fused_kernels())(module(operands, body))
    (found,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return scheduled(found, 2)


def choices_of_lanes(func: Any) -> tuple[list[Any], list[Any]]:
    """(loops of vectors, choices that ask for the place within a vector)"""
    loops: list[Any] = []
    asked: list[Any] = []
    blocks: list[Any] = []
    structural_walk(func.body, (tirx.For, loops.append))
    structural_walk(func.body, (tvm.s_tir.SBlock, blocks.append))
    lane = next(block.iter_vars[-1].var for block in blocks if block.iter_vars)

    def seen(call: Any) -> None:
        if str(getattr(call.op, "name", "")) == CHOICE:
            names = tirx.analysis.undefined_vars(call.args[0])
            asked.extend(call for name in names if name.same_as(lane))

    structural_walk(func.body, (tvm.ir.Call, seen))
    return [loop for loop in loops if loop.kind == tirx.ForKind.VECTORIZED], asked


@pytest.mark.parametrize(
    "lengths",
    [[64, 32, 32], [64, *[16] * 12], [8, 24, 16], [12, 4, 20], [96, 96], [96, 32], [32, 8]],
    ids=str,
)
def test_vectors_ask_once(lengths: list[int]) -> None:
    vectors, asked = choices_of_lanes(kernel(given(lengths, 3, "float32", 64), rectified(3)))
    assert vectors
    assert not asked


@pytest.mark.parametrize("lengths", [[5, 7, 12], [33, 31], [3, 1]], ids=str)
def test_others_have_no_vectors(lengths: list[int]) -> None:
    vectors, _ = choices_of_lanes(kernel(given(lengths, 3, "float32", 512), rectified(3)))
    assert not vectors


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    ("lengths", "axis"),
    [
        ([64, 32, 32], 3),
        ([64, *[16] * 12], 3),
        ([8, 24, 16], 3),
        ([12, 4, 20], 3),
        ([5, 7, 12], 3),
        ([96, 32], 3),
        ([32], 3),
        ([4, 8, 20], 1),
        ([16, 16, 32], 2),
        ([1, 3], 0),
    ],
    ids=str,
)
def test_the_numbers(lengths: list[int], axis: int, dtype: str) -> None:
    operands = given(lengths, axis, dtype, 64)
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))
        for shape, _ in operands.values()
    ]
    vm = virtual_machine(module(operands, rectified(axis)), TARGET, cpu_pipeline())
    found = vm["main"](*map(tvm.runtime.tensor, values))
    got = (found if hasattr(found, "numpy") else found[0]).numpy()
    g, scale, *parts = values
    assert (got == np.where(np.concatenate(parts, axis) * scale > 0.25, g, 0)).all()


def test_slices_of_what_is_joined() -> None:
    """As a gradient takes them: from places that are no multiples of a part's width too."""

    def body(emit: Any, a: Any, b: Any, c: Any) -> list[Any]:
        joined = emit(op.concat([a, b, c], 1))
        cuts = [emit(op.strided_slice(joined, [1], [x], [y])) for x, y in ((32, 96), (5, 69))]
        return [emit(op.add(*cuts))]

    operands = {name: ((600, n), "float32") for name, n in zip("abc", (32, 64, 32), strict=True)}
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(shape).astype("float32") for shape, _ in operands.values()]
    vm = virtual_machine(module(operands, body), TARGET, cpu_pipeline())
    found = vm["main"](*map(tvm.runtime.tensor, values))
    joined = np.concatenate(values, 1)
    got = (found if hasattr(found, "numpy") else found[0]).numpy()
    assert (got == joined[:, 32:96] + joined[:, 5:69]).all()
