"""The schedule rule for packs of 16 bytes: what it takes, and that its loops compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.cuda_packs import Packs
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from tests.support.cuda_source import read_back
from tests.support.partition_cases import module

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
op = relax.op
S = (2, 5, 6, 16)

pytestmark = pytest.mark.usefixtures("registered")


class OnTheHost(Packs):
    """The same loops, none of them bound to threads."""

    def bind(self, sch: Any, loop: Any, axis: str) -> None:
        """Leaves it."""


def function(operands: dict[str, Any], body: Any) -> Any:
    """The one kernel of a module."""
    with CUDA:
        mod = tvm.transform.Sequential(fused_kernels())(module(operands, body))
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    return func


def half(dtype: str) -> Any:
    return relax.const(0, dtype)


# name -> operands, what is made of them
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "mask": (
        {"x": (S, "float16"), "g": (S, "float16")},
        lambda e, x, g: e(op.where(e(op.less_equal(x, half("float16"))), half("float16"), g)),
    ),
    "bytes read": (
        {"m": (S, "bool"), "g": (S, "bfloat16")},
        lambda e, m, g: e(op.where(m, half("bfloat16"), g)),
    ),
    "bytes written": (
        {"x": (S, "bfloat16")}, lambda e, x: e(op.less_equal(x, half("bfloat16"))),
    ),
    "two sizes": (
        {"x": (S, "float16"), "b": ((16,), "float32")},
        lambda e, x, b: e(op.astype(e(op.add(e(op.astype(x, "float32")), b)), "bfloat16")),
    ),
    "by image and channel": (
        {"x": (S, "float32"), "s": ((2, 1, 1, 16), "float32"), "t": ((2, 1, 1, 1), "float32")},
        lambda e, x, s, t: e(op.add(e(op.multiply(x, s)), t)),
    ),
    "double": ({"x": (S, "float64")}, lambda e, x: e(op.sin(x))),
    "broadcast": ({"x": ((2, 1, 1, 16), "float32")}, lambda e, x: e(op.broadcast_to(x, S))),
    "padded": ({"x": (S, "float16")}, lambda e, x: e(op.nn.pad(x, (0, 0, 1, 2, 3, 0, 0, 0)))),
    "same twice": ({"x": (S, "float32")}, lambda e, x: e(op.multiply(x, e(op.exp(x))))),
    "a slice of rows": (
        {"x": (S, "float16")}, lambda e, x: e(op.strided_slice(x, [1, 2], [1, 0], [4, 5])),
    ),
    "few": ({"x": ((1, 8), "float16")}, lambda e, x: e(op.negative(x))),
    "a prime number of packs": ({"x": ((1009, 8), "float16")}, lambda e, x: e(op.negative(x))),
}  # fmt: skip


def run(func: Any, arrays: list[np.ndarray], out: np.ndarray) -> np.ndarray:
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")
    args = [tvm.runtime.tensor(a) for a in (*arrays, out)]
    built["main"](*args)
    return np.asarray(args[-1].numpy())


@pytest.mark.parametrize("name", CASES)
def test_the_numbers(name: str) -> None:
    """As without the schedule, bit for bit."""
    operands, body = CASES[name]
    func = function(operands, body)
    schedule = OnTheHost().apply(func, CUDA, False)
    assert schedule is not None
    assert "T.vectorized" in schedule.mod.script()
    rng = np.random.default_rng(0)
    arrays = [
        (rng.standard_normal(shape) > 0.5 if dtype == "bool" else rng.standard_normal(shape))
        .astype("bool" if dtype == "bool" else numpy_dtype(dtype))
        for shape, dtype in operands.values()
    ]  # fmt: skip
    # A kernel has its operands in the order in which it reads them first.
    names = [str(p.name) for p in func.params]
    order = sorted(range(len(arrays)), key=lambda i: names.index(list(operands)[i]))
    arrays = [arrays[i] for i in order]
    result = module(operands, body)["main"].ret_ty
    shape = [int(n) for n in result.shape.values]
    dtype = "bool" if str(result.dtype) == "bool" else numpy_dtype(str(result.dtype))
    got, want = (
        run(f, arrays, np.ones(shape, dtype)) for f in (schedule.mod["main"], func)
    )  # fmt: skip
    np.testing.assert_array_equal(got.view("uint8"), want.view("uint8"))


@pytest.mark.parametrize(
    ("operands", "body"),
    [
        ({"x": (S, "float16")}, lambda e, x: e(op.permute_dims(x, [0, 3, 1, 2]))),
        ({"x": ((2, 5, 6, 12), "float16")}, lambda e, x: e(op.negative(x))),  # no packs of 8
        ({"x": (S, "float16")}, lambda e, x: e(op.concat([x, x], 3))),
        ({"x": (S, "float16")}, lambda e, x: e(op.strided_slice(x, [3], [8], [16]))),
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


@pytest.mark.parametrize(("dtype", "word"), [("float16", "uint4"), ("float32", "float4")])
def test_the_source_has_accesses_of_16_bytes(dtype: str, word: str) -> None:
    """And none of what a kernel writes is read back."""
    mod = module({"x": (S, dtype), "y": (S, dtype)}, lambda e, x, y: e(op.add(e(op.exp(x)), y)))
    target = tvm.target.Target(
        {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
         "max_shared_memory_per_block": 49152, "thread_warp_size": 32}, host="llvm",
    )  # fmt: skip
    (host,) = tvm.compile(mod, target, relax_pipeline=cuda_pipeline()).mod.imports
    source = host.imports[0].inspect_source("cuda")
    assert source.count(f"*({word}*)(x_local_ptr + 0) = *({word}*)(x_ptr + ") == 1
    assert source.count(f"{word}*)") == 6
    assert read_back(source) == []
