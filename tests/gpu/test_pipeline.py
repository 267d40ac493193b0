"""Gradients through the stock CUDA pipeline on a device, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import tvm
from tvm import relax, tirx

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.transform import grad
from tests.support import extrema, ieee
from tests.support.gpu.runner import choose_compiler
from tests.support.partition_cases import module

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

SHAPES = [(2, 8, 13, 12), (12, 4, 3, 3), (12, 1, 1), (12, 3, 3, 2)]


def network(n: Any, h: Any, w: Any, dtype: str) -> tvm.IRModule:
    """Grouped strided convolution, bias, ReLU, dilated transposed convolution, cubed and summed."""
    names = ("x", "w", "b", "t")
    shapes = [[n, 8, h, w], *map(list, SHAPES[1:])]
    x, weight, bias, back = (
        relax.Var(name, relax.TensorType(s, dtype)) for name, s in zip(names, shapes, strict=True)
    )
    bb = relax.BlockBuilder()
    with bb.function("main", [x, weight, bias, back]):
        with bb.dataflow():
            y = bb.emit(
                relax.op.nn.conv2d(x, weight, strides=(2, 1), padding=(1, 0, 2, 1), groups=2)
            )
            y = bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(y, bias))))
            y = bb.emit(
                relax.op.nn.conv2d_transpose(
                    y, back, strides=(2, 2), padding=(1, 1, 0, 1), output_padding=(1, 0),
                    dilation=(2, 1), groups=3,
                )
            )  # fmt: skip
            y = bb.emit(relax.op.multiply(bb.emit(relax.op.multiply(y, y)), y))
            out = bb.emit_output(relax.op.sum(y))
        bb.emit_func_output(out)
    return bb.get()


def reference(args: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    x, w, b, t = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in args)
    y = F.relu(F.conv2d(F.pad(x, (0, 1, 1, 2)), w, stride=(2, 1), groups=2) + b)
    full = F.conv_transpose2d(y, t, stride=2, output_padding=(1, 0), dilation=(2, 1), groups=3)
    # Padding (top 1, left 1, bottom 0, right 1) crops the unpadded result.
    y = full[:, :, 1:, 1 : full.shape[3] - 1]
    return [g.numpy() for g in torch.autograd.grad((y**3).sum(), (x, w, b, t))]


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_gradients(dtype: str, tolerance: float, symbolic: bool) -> None:
    choose_compiler()
    device = tvm.cuda(0)
    assert device.exist, "no CUDA device that TVM can use"
    sizes = [tirx.Var(v, "int64") for v in "nhw"] if symbolic else [2, 13, 12]
    target = tvm.target.Target.from_device(device)
    mod = grad(network(*sizes, dtype))
    vm = relax.VirtualMachine(tvm.compile(mod, target=target), device)
    rng = np.random.default_rng(5)
    batches = [SHAPES[0], (3, 8, 9, 14)] if symbolic else [SHAPES[0]]
    for shape in batches:
        args = [rng.standard_normal(s).astype(dtype) for s in (shape, *SHAPES[1:])]
        _, got = vm["main_adjoint"](*[tvm.runtime.tensor(a, device) for a in args])
        for mine, want in zip(got, reference(args), strict=True):
            error = np.linalg.norm(mine.numpy() - want) / np.linalg.norm(want)
            assert error <= tolerance


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(
    "shape", [(8, 28, 28, 96), (7, 13, 13, 64), (1, 33, 37, 768), (2, 50, 50, 1024)]
)
def test_sums_of_rows(shape: tuple[int, ...], dtype: str) -> None:
    """The schedule for a pixel's channels; the second run gives the same bits."""
    choose_compiler()

    def body(emit: Any, x: Any) -> Any:
        wide = emit(relax.op.astype(x, "float32"))
        squares = emit(relax.op.multiply(wide, wide))
        return [emit(relax.op.sum(each, [3], keepdims=True)) for each in (wide, squares)]

    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    mod = module({"x": (shape, dtype)}, body)
    vm = relax.VirtualMachine(
        tvm.compile(mod, target=target, relax_pipeline=cuda_pipeline()), device
    )
    x = np.random.default_rng(0).standard_normal(shape).astype(numpy_dtype(dtype))
    runs = [[r.numpy() for r in vm["main"](tvm.runtime.tensor(x, device))] for _ in range(2)]
    wide = x.astype("float64")
    for got, terms in zip(runs[0], (wide, wide**2), strict=True):
        error = np.linalg.norm(got - terms.sum(3, keepdims=True))
        assert error <= 1e-6 * np.linalg.norm(np.abs(terms).sum(3))
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("shape", [(32, 28, 28, 96), (7, 13, 11, 3), (1, 64, 64, 1000)])
def test_sums_over_pixels(shape: tuple[int, ...]) -> None:
    """The schedule for channels' sums; the second run gives the same bits."""
    choose_compiler()

    def body(emit: Any, x: Any) -> Any:
        squares = emit(relax.op.multiply(x, x))
        mean = emit(relax.op.mean(x, [0, 1, 2], keepdims=True))
        return [mean, emit(relax.op.sum(squares, [0, 1, 2]))]

    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    built = tvm.compile(module({"x": shape}, body), target=target, relax_pipeline=cuda_pipeline())
    vm = relax.VirtualMachine(built, device)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    runs = [[r.numpy() for r in vm["main"](tvm.runtime.tensor(x, device))] for _ in range(2)]
    wide = x.astype("float64")
    for got, want in zip(runs[0], (wide.mean((0, 1, 2)), (wide**2).sum((0, 1, 2))), strict=True):
        error = np.linalg.norm(got.reshape(-1) - want)
        assert error <= 1e-5 * np.linalg.norm((wide**2).mean((0, 1, 2))) + 1e-6 * np.linalg.norm(
            want
        )
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_fused_kernels_are_no_real_arithmetic(dtype: str) -> None:
    choose_compiler()
    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    assert not ieee.wrong(dtype, target, cuda_pipeline(), device)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_extrema_of_special_values(dtype: str) -> None:
    choose_compiler()
    device = tvm.cuda(0)
    target = tvm.target.Target.from_device(device)
    rows = np.array(extrema.WHOLE.get(dtype, extrema.ROWS)).astype(dtype)
    assert not extrema.wrong(rows, dtype, target, cuda_pipeline(), device)
