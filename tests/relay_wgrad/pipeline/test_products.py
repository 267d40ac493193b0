"""Matrix products on a CPU: which of them get kernels of ours, and the numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.target import Target

from legalize.cpu import host_target
from relay_wgrad import keys
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.fused_kernels import legalize_ops
from relay_wgrad.pipeline.products import cpu_products
from tests.support.compiled import virtual_machine
from tests.support.products import product

pytestmark = pytest.mark.usefixtures("registered")

HOST = host_target()
# Of the result's rounding, and of sums in float32 or float64.
ERROR = {"float64": 1e-14, "float32": 2e-6, "float16": 5e-4, "bfloat16": 4e-3}
Shape = tuple[Any, ...]
N = tirx.Var("n", "int64")


def module(
    shapes: tuple[Shape, Shape], dtype: str, turned: str = "", out: str | None = None
) -> tvm.IRModule:
    return product(shapes, dtype, turned, out, rectified=True)


def kernels(mod: tvm.IRModule, target: Target = HOST) -> list[str]:
    """Who made the kernels of a legalized module, where they are ours."""
    with target:
        mod = legalize_ops()(mod)
    found = [f.attrs.get(keys.SOURCE) for _, f in mod.functions_items() if f.attrs]
    return sorted(str(x) for x in found if x)


def error(mod: tvm.IRModule, dtype: str, turned: str = "", n: int = 5) -> float:
    """Relative, of the compiled module."""
    vm = virtual_machine(mod, HOST, cpu_pipeline())
    random, real = np.random.default_rng(3), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    given = [
        random.standard_normal([x if isinstance(x, int) else n for x in shape]).astype(real)
        for shape in ([int(s) if isinstance(s, tirx.IntImm) else s for s in p.ty.shape.values]
                      for p in mod["main"].params)
    ]  # fmt: skip
    got = vm["main"](*map(tvm.runtime.tensor, given)).numpy().astype("float64")
    a, b = (
        np.swapaxes(x, -1, -2) if name in turned else x
        for name, x in zip("ab", (x.astype("float64") for x in given), strict=True)
    )
    want = np.maximum(a @ b, 0)
    assert got.shape == want.shape
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.share(5)  # each way, in some dtype
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_two_matrices(turned: str, dtype: str) -> None:
    shapes = (50, 70), (70, 33)
    given = tuple(s[::-1] if name in turned else s for name, s in zip("ab", shapes, strict=True))
    mod = module(given, dtype, turned)  # type: ignore[arg-type]
    assert kernels(mod)
    assert error(mod, dtype, turned) <= ERROR[dtype]


@pytest.mark.share(5)  # each number of rows, in some dtype
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("rows", [1, 3, 8, 31, 64, 129])
def test_few_rows_by_a_large_weight(rows: int, dtype: str) -> None:
    """x wᵀ, where w's rows are read and x's are packed."""
    mod = module(((rows, 130), (270, 130)), dtype, "b")
    assert len(kernels(mod)) == 1
    assert error(mod, dtype, "b") <= ERROR[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_a_weights_gradient_of_few_rows(rows: int, dtype: str) -> None:
    """yᵀ x: what is large is written once, and what is packed are the few rows.  Upstream's loops
    take ten times as long.  An outer product is upstream's."""
    mod = module(((rows, 130), (rows, 270)), dtype, "a")
    assert len(kernels(mod)) == (rows > 1)
    assert error(mod, dtype, "a") <= ERROR[dtype]


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", ERROR)
@pytest.mark.parametrize("shapes", [
    ((2, 3, 33, 17), (2, 3, 17, 40)), ((6, 8, 64), (6, 64, 8)), ((N, 4, 19, 20), (N, 4, 20, 21)),
])  # fmt: skip
def test_batches(shapes: tuple[Shape, Shape], dtype: str) -> None:
    mod = module(shapes, dtype)
    assert kernels(mod) == ["llvm products"]
    assert error(mod, dtype) <= ERROR[dtype]


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("shapes", [((4, 33, 17), (4, 17, 40)), ((40, 64), (64, 40))])
def test_wide_results_of_half_operands(shapes: tuple[Shape, Shape], half: str) -> None:
    mod = module(shapes, half, out="float32")
    assert kernels(mod)
    assert error(mod, half) <= ERROR["float32"]


@pytest.mark.parametrize("shapes", [
    ((N, 64), (64, 40)), ((4, 33, 17), (17, 40)), ((2, N, 33, 64), (64, 40)),
])  # fmt: skip
def test_rows_of_several_axes_or_an_open_number(shapes: tuple[Shape, Shape]) -> None:
    mod = module(shapes, "float32")
    assert kernels(mod)
    assert error(mod, "float32", n=9) <= ERROR["float32"]


@pytest.mark.share(3)
@pytest.mark.parametrize("shapes", [
    ((3, 64), (64, 400)), ((16, 16), (16, 16)), ((4, 3, 5), (4, 5, 6)),
    ((4, 33, 17), (1, 17, 40)), ((33, 17), (4, 17, 40)), ((4, 64), (64,)),
    ((N, N), (N, 40)), ((4, N, 17), (4, 17, N)), ((0, 64), (64, 40)), ((64, 0), (0, 40)),
])  # fmt: skip
def test_what_stays_tvms(shapes: tuple[Shape, Shape]) -> None:
    """Few rows, few products, other forms: right as before."""
    mod = module(shapes, "float32")
    assert kernels(mod) == []
    if not any(0 in shape for shape in shapes):
        assert error(mod, "float32") <= ERROR["float32"]


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_whole_numbers_stay_tvms(dtype: str) -> None:
    mod = module(((4, 40, 40), (4, 40, 40)), dtype, out="int32")
    assert kernels(mod) == []


def test_another_device_is_left_alone() -> None:
    mod = module(((64, 64), (64, 64)), "float32")
    with Target("nvidia/nvidia-a100"):
        assert cpu_products()(mod).same_as(mod)
    assert cpu_products()(mod).same_as(mod)


def test_equal_products_have_one_kernel_and_convolutions_theirs() -> None:
    """A convolution of one pixel is one, with the same loops; reports are of it alone."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((32, 64), "float32"))
    w = relax.Var("w", relax.TensorType((64, 64), "float32"))
    with bb.function("main", [x, w]):
        with bb.dataflow():
            image = bb.emit(relax.op.reshape(x, (32, 1, 1, 64)))
            filters = bb.emit(relax.op.reshape(w, (64, 1, 1, 64)))
            conv = bb.emit(
                relax.op.nn.conv2d(image, filters, data_layout="NHWC", kernel_layout="OHWI")
            )
            y = bb.emit(relax.op.reshape(conv, (32, 64)))
            turned = bb.emit(relax.op.permute_dims(w))
            for _ in range(3):
                y = bb.emit(relax.op.matmul(y, turned))
            made = bb.emit_output(y)
        bb.emit_func_output(made)
    with HOST:
        mod = legalize_ops()(bb.get())
    ours = [f for _, f in mod.functions_items() if f.attrs and f.attrs.get(keys.SOURCE)]
    assert len(ours) == 2
    assert sum(keys.PROBLEM in f.attrs for f in ours) == 1
