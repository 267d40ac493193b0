"""The schedule rule for channels' sums: what it takes, and that its loops compute the sum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, te

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.cuda_reduction import ChannelSum, Windows, part_count
from tests.support.cuda_source import cuda_source, read_back
from tests.support.half_cases import RELAX
from tests.support.partition_cases import module
from tests.support.schedules import CUDA, functions, on_the_host, run

LONG = 100_352  # elements of a sum


SHAPES = [
    (4, 9, 8, 32), (1, 1, 1, 5), (3, 1, 7, 2), (7, 11, 13, 3), (2, 64, 64, 1), (1, 2, 2, 300),
    (32, 7, 7, 513), (1, 2, 2, 4),
]  # fmt: skip


@pytest.mark.share(5)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["sum", "mean", "squares"])
def test_the_numbers(shape: tuple[int, ...], kind: str) -> None:
    def body(emit: Any, x: Any) -> Any:
        if kind == "squares":
            x = emit(relax.op.multiply(x, x))
        op = relax.op.mean if kind == "mean" else relax.op.sum
        return emit(op(x, [0, 1, 2], keepdims=kind != "sum"))

    (func,) = functions({"x": shape}, body).values()
    schedule = on_the_host(ChannelSum).apply(func, CUDA, False)
    if schedule is None:  # normalized away: fewer than two axes are longer than 1
        assert math.prod(shape[:3]) == 1 or shape[3] == 1
        return
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    want = (x.astype("float64") ** (2 if kind == "squares" else 1)).sum((0, 1, 2))
    want = want / math.prod(shape[:3]) if kind == "mean" else want
    out_shape = (shape[3],) if kind == "sum" else (1, 1, 1, shape[3])
    got = run(schedule, [x], out_shape).reshape(-1)
    assert np.linalg.norm(got - want) <= 1e-6 * max(np.linalg.norm(x), np.linalg.norm(want))


@pytest.mark.parametrize("shape", [(4, 9, 8, 32), (3, 28, 28, 7), (2, 7, 7, 4), (64, 2, 9, 64)])
@pytest.mark.parametrize("kind", ["mean", "product"])
def test_sums_of_each_image(shape: tuple[int, ...], kind: str) -> None:
    """Squeeze and excitation, and its gradient."""
    rest = (shape[0], 1, 1, shape[3])

    def body(emit: Any, *given: Any) -> Any:
        if kind == "mean":
            return emit(relax.op.mean(*given, [1, 2], keepdims=True))
        made = emit(relax.op.multiply(*given))
        return emit(relax.op.collapse_sum_to(made, relax.ShapeExpr(rest)))

    names = "x" if kind == "mean" else "xy"
    (func,) = functions(dict.fromkeys(names, shape), body).values()
    schedule = on_the_host(ChannelSum).apply(func, CUDA, False)
    assert schedule is not None
    arrays = list(np.random.default_rng(0).standard_normal((len(names), *shape)).astype("float32"))
    got = run(schedule, arrays, rest)
    made = np.prod([a.astype("float64") for a in arrays], 0)
    want = (np.mean if kind == "mean" else np.sum)(made, (1, 2), keepdims=True)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(made).sum((1, 2)).max())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("channels", [24, 12])
def test_half_precision(dtype: str, channels: int) -> None:
    """Packs of eight channels where they are multiples of eight; sums in float32."""

    def body(emit: Any, x: Any) -> Any:
        return emit(relax.op.sum(emit(relax.op.astype(x, "float32")), [0, 1, 2]))

    shape = (4, 24, 25, channels)
    (func,) = functions({"x": shape}, body, dtype).values()
    schedule = on_the_host(ChannelSum).apply(func, CUDA, False)
    assert ("T.vectorized(T.int64(8))" in schedule.mod.script()) == (channels == 24)
    assert "rf" in schedule.mod.script()
    x = np.ones(shape, numpy_dtype(dtype))
    x[:, :, :, 5] = np.random.default_rng(0).standard_normal(shape[:3])
    out = run(schedule, [x], (channels,), np.float32)
    want = x.astype("float64").sum((0, 1, 2))
    np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((4, 32, 9, 8), [0, 2, 3]),  # channels are not last
        ((4, 9, 8, 32), [0, 1, 2, 3]),
        ((4, 9, 8, 32), [3]),
    ],
)
def test_other_sums_are_left_to_upstream(shape: tuple[int, ...], axes: list[int]) -> None:
    (func,) = functions({"x": shape}, lambda emit, x: emit(relax.op.sum(x, axes))).values()
    assert ChannelSum().apply(func, CUDA, False) is None


def test_other_targets_are_left() -> None:
    (func,) = functions(
        {"x": (4, 9, 8, 32)}, lambda emit, x: emit(relax.op.sum(x, [0, 1, 2]))
    ).values()
    assert ChannelSum().apply(func, tvm.target.Target("llvm"), False) is None


@pytest.mark.parametrize(("pixels", "channels"), [(100352, 64), (1568, 2048), (7, 3), (1009, 8)])
@pytest.mark.parametrize("lanes", [1, 8])
def test_parts_divide_the_pixels(pixels: int, channels: int, lanes: int) -> None:
    cut = part_count(pixels, channels, lanes)
    assert pixels % cut == 0
    assert cut == 1 or pixels // cut >= 8


def test_threads_read_neighbours() -> None:
    (func,) = functions(
        {"x": (8, 32, 32, 64)}, lambda emit, x: emit(relax.op.sum(x, [0, 1, 2]))
    ).values()
    schedule = ChannelSum().apply(func, CUDA, False)
    text = schedule.mod.script()
    assert text.count('thread="threadIdx.x"') == 2
    assert text.count('thread="threadIdx.y"') == 1  # over the parts
    assert text.count('thread="blockIdx.x"') == 2
    assert 'scope="local"' in text


TARGET = tvm.target.Target(
    {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024, "thread_warp_size": 32,
     "max_shared_memory_per_block": 49152}, host="llvm",
)  # fmt: skip


@pytest.mark.longer_cases("NCHW")
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_what_is_reduced_waits_in_registers(layout: str) -> None:
    """Max pooling's gradient took maxima of an earlier run: nvcc read them by the wrong cache."""
    shapes: dict[str, Any] = {
        "grad": (2, 8, 8, 8),
        "x": (2, 8, 16, 16) if layout == "NCHW" else (2, 16, 16, 8),
    }
    window = {"pool_size": (2, 2), "strides": (2, 2), "layout": layout}

    def body(emit: Any, grad: Any, x: Any) -> list[Any]:
        return [
            emit(relax.op.nn.max_pool2d(x, **window)),
            emit(relax.op.grad.max_pool2d_backward(grad, x, **window)),
            emit(relax.op.argmax(x, 1)),
            emit(relax.op.min(x)),
        ]

    mod = module({name: (shape, "float32") for name, shape in shapes.items()}, body)
    built = tvm.compile(mod, TARGET, relax_pipeline=cuda_pipeline())
    code = cuda_source(built.mod)
    assert code.count("__global__") > 4
    assert read_back(code) == []


@pytest.mark.usefixtures("registered")
def test_one_result_is_written_by_one_thread() -> None:
    """The maximum of everything was what 255 threads without an element had in their registers."""
    mod = module({"x": ((5, 4), "float64")}, lambda emit, x: [emit(relax.op.max(x))])
    built = tvm.compile(mod, TARGET, relax_pipeline=cuda_pipeline())
    code = cuda_source(built.mod)
    search = code.split(" max_kernel(", 2)[2].split("__global__")[0]
    assert "widened_red_local_ptr" in search
    assert "threadIdx" not in search


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("batch", "alone"), [(8, True), (1, False)])
def test_a_thread_has_a_window(batch: int, alone: bool) -> None:
    """Average pooling had a block of threads for each 2x2 pixels; where results are few it may."""
    window = {"pool_size": (2, 2), "strides": (2, 2), "layout": "NHWC"}
    mod = module(
        {"x": ((batch, 32, 32, 32), "float32")},
        lambda emit, x: [emit(relax.op.nn.avg_pool2d(x, **window))],
    )
    built = tvm.compile(mod, TARGET, relax_pipeline=cuda_pipeline())
    code = cuda_source(built.mod)
    assert read_back(code) == []
    assert ("__shfl" not in code and "__syncthreads" not in code) == alone


def scratch(schedule: Any) -> int:
    """Tensors of global memory that a kernel has besides its operands and its result."""
    made = [line for line in schedule.mod.script().splitlines() if "sblock_alloc_buffer" in line]
    return sum('scope="local"' not in line for line in made)


@pytest.mark.parametrize("padded", [True, False])
def test_what_follows_a_window_has_its_sum_in_registers(padded: bool) -> None:
    shape = (4, 28, 28, 16)

    def body(emit: Any, x: Any) -> Any:
        options = {"layout": "NHWC", "count_include_pad": padded}
        y = emit(relax.op.nn.avg_pool2d(x, (3, 3), (1, 1), (1, 1, 1, 1), **options))
        return emit(relax.op.exp(y))

    (func,) = functions({"x": shape}, body).values()
    schedule = on_the_host(Windows).apply(func, CUDA, False)
    assert scratch(schedule) == 0
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    pooled = torch.nn.functional.avg_pool2d(
        torch.tensor(x).double().permute(0, 3, 1, 2), 3, 1, 1, count_include_pad=padded
    )
    want = pooled.exp().permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(run(schedule, [x], shape), want, rtol=1e-5)


def test_what_two_sums_are_read_by_stays_behind_them() -> None:
    shape = (64, 32, 16, 9)

    def total(t: Any) -> Any:
        k = te.reduce_axis((0, 9), name="k")
        return te.compute(shape[:3], lambda *i: te.sum(t(*i, k), axis=k), name="total")

    x, y = (te.placeholder(shape, name=name) for name in "xy")
    sums = total(x), total(y)
    product = te.compute(shape[:3], lambda *i: sums[0](*i) * sums[1](*i), name="product")
    func = te.create_prim_func([x, y, product])
    schedule = on_the_host(Windows).apply(func, CUDA, False)
    assert scratch(schedule) == 2
    a, b = np.random.default_rng(0).standard_normal((2, *shape)).astype("float32")
    want = a.astype("float64").sum(3) * b.astype("float64").sum(3)
    np.testing.assert_allclose(run(schedule, [a, b], shape[:3]), want, rtol=0, atol=1e-4)


@pytest.mark.share(4)
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("row", RELAX, ids=lambda row: row.key)
def test_a_half_reduction_becomes_device_code(row: Any) -> None:
    """Batch normalization's did not: its mean had gone into the kernel of the running mean, and the
    variance read what nothing had written."""
    given = {
        f"x{i}": (shape, "int64" if kind in ("labels", "index") else "float16")
        for i, (shape, kind) in enumerate(row.specs(LONG))
    }
    mod = module(given, lambda emit, *args: [emit(row.call(relax.op, list(args), LONG))])
    built = tvm.compile(mod, TARGET, relax_pipeline=cuda_pipeline())
    assert "__global__" in cuda_source(built.mod)
