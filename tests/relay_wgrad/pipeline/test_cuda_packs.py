"""The schedule rule for packs of 16 bytes: what it takes, and that its loops compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.cuda_packs import Packs
from tests.support.cuda_source import cuda_source, read_back
from tests.support.element_cases import (
    CASES,
    CUDA,
    SM_90,
    S,
    arrays_of,
    function,
    op,
    result_of,
    run,
)
from tests.support.partition_cases import module
from tests.support.schedules import on_the_host

pytestmark = pytest.mark.usefixtures("registered")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", CASES)
def test_the_numbers(name: str) -> None:
    """As without the schedule, bit for bit."""
    operands, body = CASES[name]
    func = function(operands, body)
    schedule = on_the_host(Packs).apply(func, CUDA, False)
    assert schedule is not None
    assert "T.vectorized" in schedule.mod.script()
    arrays = arrays_of(operands)
    # A kernel has its operands in the order in which it reads them first.
    names = [str(p.name) for p in func.params]
    order = sorted(range(len(arrays)), key=lambda i: names.index(list(operands)[i]))
    arrays = [arrays[i] for i in order]
    got, want = (
        run(f, arrays, result_of(operands, body)) for f in (schedule.mod["main"], func)
    )  # fmt: skip
    np.testing.assert_array_equal(got.view("uint8"), want.view("uint8"))


@pytest.mark.parametrize(
    ("operands", "body"),
    [
        ({"x": (S, "float16")}, lambda e, x: e(op.permute_dims(x, [0, 3, 1, 2]))),
        ({"x": ((2, 5, 6, 13), "float16")}, lambda e, x: e(op.negative(x))),  # no packs
        ({"x": (S, "float16")}, lambda e, x: e(op.concat([x, x], 3))),
        ({"x": (S, "float16")}, lambda e, x: e(op.strided_slice(x, [3], [4], [12]))),
        ({"x": (S, "float16")}, lambda e, x: e(op.nn.pad(x, (0, 0, 0, 0, 0, 0, 8, 0)))),
        ({"x": (S, "float32")}, lambda e, x: e(op.sum(x, [3]))),
        ({"x": ((), "float32")}, lambda e, x: e(op.negative(x))),
        ({"x": (S, "bool")}, lambda e, x: e(op.logical_not(x))),
    ],
)  # fmt: skip
def test_other_kernels_are_left_to_upstream(operands: Any, body: Any) -> None:
    assert Packs().apply(function(operands, body), CUDA, False) is None


def test_other_targets_and_symbolic_sizes_are_left() -> None:
    func = function({"x": (S, "float16")}, lambda e, x: e(op.negative(x)))
    assert Packs().apply(func, tvm.target.Target("llvm"), False) is None
    symbolic = function(
        {"x": ((tirx.Var("n", "int64"), 16), "float16")}, lambda e, x: e(op.negative(x))
    )
    assert Packs().apply(symbolic, CUDA, False) is None


def test_parts_of_a_split() -> None:
    """A kernel for each, of the sum that they are parts of."""
    func = function(
        {"x": (S, "float16"), "y": (S, "float16")},
        lambda e, x, y: e(op.split(e(op.add(x, y)), [8], 3)),
    )
    schedule = on_the_host(Packs).apply(func, CUDA, False)
    x, y = np.random.default_rng(0).standard_normal((2, *S)).astype("float16")
    main = schedule.mod["main"].with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": main}), "llvm")
    parts = [np.zeros((*S[:3], 8), "float16") for _ in range(2)]
    args = [tvm.runtime.tensor(a) for a in (x, y, *parts)]
    built["main"](*args)
    got = np.concatenate([a.numpy() for a in args[2:]], 3)
    np.testing.assert_array_equal(got, x + y)


@pytest.mark.parametrize(("dtype", "word"), [("float16", "uint4"), ("float32", "float4")])
def test_the_source_has_accesses_of_16_bytes(dtype: str, word: str) -> None:
    """And none of what a kernel writes is read back."""
    mod = module({"x": (S, dtype), "y": (S, dtype)}, lambda e, x, y: e(op.add(e(op.exp(x)), y)))
    source = cuda_source(tvm.compile(mod, SM_90, relax_pipeline=cuda_pipeline()).mod)
    assert source.count(f"*({word}*)(x_local_ptr + 0) = *({word}*)(x_ptr + ") == 1
    assert source.count(f"{word}*)") == 6
    assert read_back(source) == []


def test_what_padding_asks_is_asked_before_the_tensor_is_read() -> None:
    """A pixel of the border has no place on it."""
    operands = {"x": (S, "float16"), "y": ((S[0], S[1] + 2, S[2] + 2, S[3]), "float16")}
    body = lambda e, x, y: e(op.add(e(op.nn.pad(x, (0, 0, 1, 1, 1, 1, 0, 0))), y))  # noqa: E731
    built = tvm.compile(module(operands, body), SM_90, relax_pipeline=cuda_pipeline())
    lines = [line.strip() for line in cuda_source(built.mod).splitlines()]
    reading = [i for i, line in enumerate(lines) if "(x_ptr + " in line]
    assert reading
    assert all(lines[i - 1].startswith("if (") for i in reading)


def test_rows_of_18_halves_are_accesses_of_four_bytes() -> None:
    shape = (2, 5, 6, 18)
    mod = module(
        {"x": (shape, "float16"), "y": (shape, "float16")}, lambda e, x, y: e(op.add(x, y))
    )
    source = cuda_source(tvm.compile(mod, SM_90, relax_pipeline=cuda_pipeline()).mod)
    assert source.count("*(half2*)(x_local_ptr + 0) = *(half2*)(x_ptr + ") == 1
