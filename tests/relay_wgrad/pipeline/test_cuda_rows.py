"""The schedule rule for sums along the last axis: what it takes, and its loops' numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.cuda_reduction import ChannelSum
from relay_wgrad.pipeline.cuda_rows import RowSum, threads_of
from tests.support.partition_cases import module
from tests.support.schedules import CUDA, functions, on_the_host, run


def statistics(emit: Any, x: Any, mean: Any, gamma: Any) -> Any:
    """A sum like those of a layer normalization's gradient."""
    wide = emit(relax.op.astype(x, "float32"))
    centred = emit(relax.op.subtract(wide, mean))
    product = emit(relax.op.multiply(emit(relax.op.multiply(centred, centred)), gamma))
    return relax.op.sum(product, [3], keepdims=True)


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "shape", [(5, 17, 13, 96), (1, 1025, 1, 64), (3, 19, 19, 192), (2, 30, 20, 768)]
)
def test_the_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    rest = (*shape[:3], 1)
    bb = relax.BlockBuilder()
    given = [
        relax.Var(name, relax.TensorType(s, d))
        for name, s, d in (("x", shape, dtype), ("m", rest, "float32"), ("g", shape[3:], "float32"))
    ]
    with bb.function("main", given):
        with bb.dataflow():
            out = bb.emit_output(statistics(bb.emit, *given))
        bb.emit_func_output(out)
    passes = [relax.transform.LegalizeOps(), relax.transform.AnnotateTIROpPattern(),
              relax.transform.FuseOps(), relax.transform.FuseTIR()]  # fmt: skip
    with CUDA:
        mod = tvm.transform.Sequential(passes)(bb.get())
    (func,) = (f for f in mod.functions.values() if not isinstance(f, relax.Function))
    schedule = on_the_host(RowSum).apply(func, CUDA, False)
    assert schedule is not None
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(numpy_dtype(dtype))
    mean, gamma = (rng.standard_normal(s).astype("float32") for s in (rest, shape[3:]))
    want = ((x.astype("float64") - mean) ** 2 * gamma).sum(3, keepdims=True)
    got = run(schedule, [x, mean, gamma], rest, "float32")
    assert np.linalg.norm(got - want) <= 1e-6 * np.linalg.norm(want)


def taken(shape: tuple[int, ...], axes: list[int], dtype: str = "float16") -> bool:
    def body(emit: Any, x: Any) -> Any:
        return emit(relax.op.sum(emit(relax.op.astype(x, "float32")), axes))

    (func,) = functions({"x": shape}, body, dtype).values()
    return RowSum().apply(func, CUDA, False) is not None


def test_what_is_taken() -> None:
    assert taken((64, 32, 96), [2])
    assert not taken((64, 2, 96), [2])  # few rows
    assert not taken((64, 32, 95), [2])  # no packs
    assert not taken((64, 32, 96), [1])  # another axis
    assert not taken((2048, 8 * 32 * 65), [1])  # longer than a warp should have


def test_a_product_of_matrices_is_none() -> None:
    def body(emit: Any, x: Any, y: Any) -> Any:
        return emit(relax.op.matmul(x, emit(relax.op.permute_dims(y))))

    for func in functions({"x": (2048, 64), "y": (2048, 64)}, body).values():
        assert RowSum().apply(func, CUDA, False) is None


def test_threads_of_a_row() -> None:
    """Three packs for each, where there are so many; never a part of a pack."""
    assert [threads_of(n) for n in (12, 24, 48, 96, 1024, 8, 5)] == [4, 8, 16, 32, 32, 2, 1]


@pytest.mark.parametrize(("costly", "parts"), [(False, 8192), (True, 16384)])
def test_a_sum_of_costly_terms_has_more_threads(costly: bool, parts: int) -> None:
    """Arithmetic is its limit, not memory."""

    def body(emit: Any, x: Any) -> Any:
        wide = emit(relax.op.astype(x, "float32"))
        return emit(relax.op.sum(emit(relax.op.exp(wide)) if costly else wide, [0, 1, 2]))

    (func,) = functions({"x": (16, 128, 128, 64)}, body, "float16").values()
    text = ChannelSum().apply(func, CUDA, False).mod.script()
    assert f"alloc_buffer((T.int64({parts}), T.int64(64))" in text


def test_a_reshape_is_no_kernel() -> None:
    """A schedule of packs would hide from upstream's analysis that it is one."""

    def body(emit: Any, x: Any, w: Any) -> Any:
        rows = emit(relax.op.sum(x, [3]))
        return emit(relax.op.matmul(emit(relax.op.reshape(rows, (128, 64))), w))

    mod = module({"x": ((2, 8, 512, 64), "float32"), "w": ((64, 8), "float32")}, body)
    with CUDA:
        passed = cuda_pipeline()(mod)
    names = [gv.name_hint for gv, func in passed.functions_items()]
    assert "matmul" in names
    assert "reshape" not in names
