"""Element-wise kernels as the tests on CPUs and GPUs build them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.pipeline.fused_kernels import fused_kernels
from tests.support.partition_cases import module

CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
SM_90 = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
     "max_shared_memory_per_block": 49152, "thread_warp_size": 32}, host="llvm",
)  # fmt: skip
op = relax.op
S = (2, 5, 6, 16)


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
    "halves by a float of each channel": (
        {"x": ((9, 4, 6, 16), "bfloat16"), "s": ((9, 1, 1, 16), "float32")},
        lambda e, x, s: e(
            op.astype(e(op.multiply(e(op.astype(x, "float32")), s)), "bfloat16")
        ),
    ),
    "double": ({"x": (S, "float64")}, lambda e, x: e(op.sin(x))),
    "broadcast": ({"x": ((2, 1, 1, 16), "float32")}, lambda e, x: e(op.broadcast_to(x, S))),
    "padded": ({"x": (S, "float16")}, lambda e, x: e(op.nn.pad(x, (0, 0, 1, 2, 3, 0, 0, 0)))),
    "same twice": ({"x": (S, "float32")}, lambda e, x: e(op.multiply(x, e(op.exp(x))))),
    "a slice of rows": (
        {"x": (S, "float16")}, lambda e, x: e(op.strided_slice(x, [1, 2], [1, 0], [4, 5])),
    ),
    "a slice of channels": (
        {"x": (S, "float16")}, lambda e, x: e(op.strided_slice(x, [3], [8], [16])),
    ),
    "rows of packs of eight bytes": (
        {"x": ((2, 5, 6, 12), "float16"), "y": ((2, 5, 6, 12), "float16")},
        lambda e, x, y: e(op.nn.relu(e(op.add(x, y)))),
    ),
    "rows of packs of four bytes": (
        {"x": ((3, 7, 5, 18), "bfloat16"), "y": ((3, 7, 5, 18), "bfloat16")},
        lambda e, x, y: e(op.where(e(op.less_equal(x, half("bfloat16"))), half("bfloat16"), y)),
    ),
    "rows of packs of two floats": (
        {"x": ((3, 7, 26), "float16"), "s": ((26,), "float32")},
        lambda e, x, s: e(op.astype(e(op.multiply(e(op.astype(x, "float32")), s)), "float16")),
    ),
    "few": ({"x": ((1, 8), "float16")}, lambda e, x: e(op.negative(x))),
    "a prime number of packs": ({"x": ((1009, 8), "float16")}, lambda e, x: e(op.negative(x))),
}  # fmt: skip


def run(func: Any, arrays: list[np.ndarray], out: np.ndarray) -> np.ndarray:
    built = tvm.compile(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}), "llvm")
    args = [tvm.runtime.tensor(a) for a in (*arrays, out)]
    built["main"](*args)
    return np.asarray(args[-1].numpy())


def arrays_of(operands: dict[str, Any]) -> list[np.ndarray]:
    """Random operands, seeded."""
    rng = np.random.default_rng(0)
    found = []
    for shape, dtype in operands.values():
        values = rng.standard_normal(shape)
        found.append(values > 0.5 if dtype == "bool" else values.astype(numpy_dtype(dtype)))
    return found


def result_of(operands: dict[str, Any], body: Any) -> np.ndarray:
    """A place for the result, of ones."""
    ty = module(operands, body)["main"].ret_ty
    dtype = "bool" if str(ty.dtype) == "bool" else numpy_dtype(str(ty.dtype))
    return np.ones([int(n) for n in ty.shape.values], dtype)


N = (3, 7, 5)
JOINS: dict[str, tuple[dict[str, Any], Any]] = {
    f"{count} joined": (
        {f"x{i}": ((*N, 8 * (i % 3 + 1)), "bfloat16") for i in range(count)},
        lambda e, *x: e(op.concat(x, 3)),
    )
    for count in (2, 3, 9)
}
ALL = {**CASES, **JOINS}


def together(cases: dict[str, tuple[dict[str, Any], Any]]) -> tuple[tvm.IRModule, list[Any]]:
    """One module of all cases, which is compiled once, and its operands."""
    given, cuts = {}, []
    for i, (operands, _) in enumerate(cases.values()):
        given |= {f"{name}_{i}": what for name, what in operands.items()}
        cuts.append(len(operands))

    def body(emit: Any, *every: Any) -> list[Any]:
        rest = iter(every)
        bodies = [one for _, one in cases.values()]
        return [
            one(emit, *(next(rest) for _ in range(n))) for one, n in zip(bodies, cuts, strict=True)
        ]

    arrays = [a for operands, _ in cases.values() for a in arrays_of(operands)]
    return module(given, body), arrays
