"""The generic tensor expressions, their CPU schedule, and the CUDA kernels' logic, without a GPU.

Every result is compared with PyTorch's in float64.  Destinations start as NaN, so an element that
is not written fails.  The CUDA kernels run here as serial loops over blocks and threads (see
`legalize.cuda.emitters`): the indices, predicates and tiles are those of the device's form, only
the order of execution and the barriers are not.  Their compiled form is tested in tests/gpu.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, te, tirx

from legalize.cuda import gemm
from legalize.cuda import prim_func as cuda_kernel
from legalize.cuda.implicit_gemm import view_of
from legalize.cuda.plan import Plan, plan_of
from legalize.generic import cpu_schedule, te_conv
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.problems import (
    CORNERS,
    poisoned,
    random_operands,
    random_problem,
    relative_error,
    tolerance,
    torch_reference,
)

KINDS = list(ConvKind)
CUDA = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")


def build(funcs: list[tirx.PrimFunc], target: Any = "llvm") -> Any:
    named = {f"f{i}": f.with_attr("global_symbol", f"f{i}") for i, f in enumerate(funcs)}
    return tvm.compile(tvm.IRModule(named), target=target)


def error_of(run: Callable[..., None], problem: ConvProblem, *sizes: int) -> float:
    """Error over tolerance, of a function (first, second, *sizes, result)."""
    a, b = random_operands(problem, np.random.default_rng(1))
    out = tvm.runtime.tensor(poisoned(problem))
    run(tvm.runtime.tensor(a), tvm.runtime.tensor(b), *sizes, out)
    return relative_error(out.numpy(), torch_reference(problem, a, b)) / tolerance(problem)


def wrong(funcs: list[tirx.PrimFunc], problems: list[ConvProblem]) -> list[str]:
    module = build(funcs)
    errors = [error_of(module[f"f{i}"], p) for i, p in enumerate(problems)]
    return [
        f"{p.repro()}: {e:.2g} times the tolerance"
        for p, e in zip(problems, errors, strict=True)
        if not e <= 1
    ]


def expression(problem: ConvProblem) -> tirx.PrimFunc:
    a, b = (
        te.placeholder(problem.shape(role), problem.dtype(role), role) for role in problem.roles[:2]
    )
    return te.create_prim_func([a, b, te_conv(problem, a, b)])


def problems_of(kind: ConvKind, count: int, seed: int, max_flop: float) -> list[ConvProblem]:
    rng = np.random.default_rng(seed)
    drawn = [random_problem(rng, kind, max_flop=max_flop) for _ in range(count)]
    return drawn + [ConvProblem.parse(line.format(kind.value)) for line in CORNERS]


@pytest.mark.longer_cases("ConvKind.WGRAD")
@pytest.mark.share(2)
@pytest.mark.parametrize("kind", KINDS)
def test_expression(kind: ConvKind) -> None:
    problems = problems_of(kind, 40, 11, 4e6)
    assert wrong([expression(p) for p in problems], problems) == []


@pytest.mark.share(5)
@pytest.mark.parametrize("kind", KINDS)
def test_cpu_schedule(kind: ConvKind) -> None:
    problems = problems_of(kind, 30, 12, 4e6)
    funcs = [cpu_schedule(expression(p)) for p in problems]
    assert all(f.attrs["tirx.is_scheduled"] for f in funcs)
    assert wrong(funcs, problems) == []


# ---- symbolic sizes ------------------------------------------------------------------------------

SYMBOLIC = (
    ConvProblem.parse(
        "fprop n=1 c=6 h=9 w=9 k=16 r=3 s=3 stride=2,1 pad=1,0,2,1 dil=1,2 groups=2"
        " layout=NHWC/HWIO/NHWC"
    ),
    ConvProblem.parse(
        "fprop n=1 c=5 h=9 w=9 k=7 r=2 s=3 stride=1,3 pad=0,1,1,1 layout=NCHW/OIHW/NCHW"
        " dtype=f32/f32/f16"
    ),
)


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("base", SYMBOLIC, ids=["nhwc", "nchw"])
@pytest.mark.parametrize("kind", KINDS)
def test_symbolic_sizes(kind: ConvKind, base: ConvProblem, scheduled: bool) -> None:
    n, h, w = (tirx.Var(name, "int64") for name in "nhw")
    symbolic = replace(base, kind=kind, n=n, h=h, w=w)
    a, b = (
        te.placeholder(symbolic.shape(role), symbolic.dtype(role), role)
        for role in symbolic.roles[:2]
    )
    size = [h, w] if kind is ConvKind.DGRAD else []
    out = te_conv(symbolic, a, b, size or None)
    func = te.create_prim_func([a, b, *size, out], "int64")
    module = build([cpu_schedule(func) if scheduled else func])
    for sizes in ((1, 7, 9), (3, 16, 5), (2, 11, 12)):
        problem = replace(base, kind=kind, n=sizes[0], h=sizes[1], w=sizes[2])
        given = sizes[1:] if kind is ConvKind.DGRAD else ()
        assert error_of(module["f0"], problem, *given) <= 1, problem.repro()


@pytest.mark.parametrize("kind", KINDS)
def test_relax_call_te_with_symbolic_sizes(kind: ConvKind) -> None:
    """Variables are renamed by call_te; the expression takes its sizes from the operands."""
    n, h, w = (tirx.Var(name, "int64") for name in "nhw")
    base = replace(SYMBOLIC[0], kind=kind)
    symbolic = replace(base, n=n, h=h, w=w)
    bb = relax.BlockBuilder()
    x, y = (
        relax.Var(role, relax.TensorType(symbolic.shape(role), symbolic.dtype(role)))
        for role in symbolic.roles[:2]
    )
    # Something must bind H and W, which dgrad's operands do not.
    size = relax.Var("size", relax.ShapeType([h, w]))
    with bb.function("main", [x, y, size]):
        given = [relax.ShapeExpr([h, w])] if kind is ConvKind.DGRAD else []
        call = bb.call_te(
            lambda a, b, data_size=None: te_conv(symbolic, a, b, data_size), x, y, *given
        )
        bb.emit_func_output(bb.emit(call))
    module = bb.get()
    vm = relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())
    for sizes in ((1, 7, 9), (2, 12, 8)):
        problem = replace(base, n=sizes[0], h=sizes[1], w=sizes[2])
        a, b = random_operands(problem, np.random.default_rng(2))
        got = vm["main"](
            tvm.runtime.tensor(a), tvm.runtime.tensor(b), tvm.runtime.ShapeTuple(sizes[1:])
        )
        error = relative_error(got.numpy(), torch_reference(problem, a, b))
        assert error <= tolerance(problem), problem.repro()


# ---- the CUDA kernels ----------------------------------------------------------------------------


@pytest.mark.longer_cases("ConvKind.F")
@pytest.mark.share(5)
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_kernels_thread_by_thread(kind: ConvKind) -> None:
    problems = problems_of(kind, 24, 13, 1e6)
    assert wrong([cuda_kernel(p, CUDA, simulate=True) for p in problems], problems) == []


@pytest.mark.share(7)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tile", gemm.TILES, ids=lambda t: f"{t.bm}x{t.bn}")
def test_cuda_tiles_and_splits(kind: ConvKind, tile: gemm.Tile) -> None:
    """Each tile with more rows and columns than it has, and a sum split with a remainder."""
    line = "n=2 c=19 h=13 w=12 k=37 r=3 s=3 stride=2,1 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
    first = ConvProblem.parse(f"{kind.value} {line}")
    second = replace(first, grad_layout="NCHW", kernel_layout="OIHW", k=9, c=30)
    cases = [(p, Plan(tile, 0, splits)) for p in (first, second) for splits in (1, 3)]
    funcs = [cuda_kernel(p, CUDA, simulate=True, choice=choice) for p, choice in cases]
    assert wrong(funcs, [p for p, _ in cases]) == []


@pytest.mark.share(5)
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_direct_kernel(kind: ConvKind) -> None:
    line = "n=3 c=6 h=13 w=12 k=12 r=3 s=2 stride=2,1 pad=1,1,1,1 groups=6"
    first = ConvProblem.parse(f"{kind.value} {line}")
    second = replace(first, data_layout="NHWC", grad_layout="NHWC")
    choices = [Plan(None, outputs, splits) for outputs in (256, 32, 1) for splits in (1, 3)]
    cases = [(p, choice) for p in (first, second) for choice in choices]
    funcs = [cuda_kernel(p, CUDA, simulate=True, choice=choice) for p, choice in cases]
    assert wrong(funcs, [p for p, _ in cases]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_cuda_symbolic_batch(kind: ConvKind) -> None:
    n = tirx.Var("n", "int64")
    base = replace(SYMBOLIC[0], kind=kind, h=9, w=10, c=20, k=24)
    for layout in ("NHWC", "HWNC"):
        base = replace(base, data_layout=layout, grad_layout=layout)
        module = build([cuda_kernel(replace(base, n=n), CUDA, simulate=True)])
        for count in (1, 6):
            problem = replace(base, n=count)
            assert error_of(module["f0"], problem) <= 1, problem.repro()


def cuda_source(funcs: list[tirx.PrimFunc]) -> str:
    return str(build(funcs, CUDA).mod.imports[0].inspect_source("cuda"))


@pytest.mark.share(5)
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_compiles(kind: ConvKind, tmp_path: Path) -> None:
    """To source always; to machine code where there is an nvcc."""
    problems = problems_of(kind, 6, 14, 1e8)[:6]
    source = cuda_source([cuda_kernel(p, CUDA) for p in problems])
    for i in range(len(problems)):
        assert f"f{i}_kernel" in source
    # Static shared memory is at most 48 KiB; two tiles of float64 are the most that is used.
    most = max(tile.bm + tile.bn + 2 * gemm.SKEW for tile in gemm.TILES)
    assert gemm.BK * most * 8 <= 48 * 1024
    if (nvcc := shutil.which("nvcc")) is None:
        return
    (tmp_path / "k.cu").write_text(source)
    command = [nvcc, "-cubin", "-O1", "-arch=sm_90", "-o", "k.cubin", "k.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_cuda_barriers() -> None:
    """Two a step: after filling the tiles, and before they are filled again."""
    problem = ConvProblem.parse("fprop n=64 c=64 h=56 w=56 k=128 r=3 s=3 pad=1,1,1,1")
    assert plan_of(view_of(problem), CUDA).splits == 1
    source = cuda_source([cuda_kernel(problem, CUDA)])
    assert source.count("__syncthreads()") == 2
    depthwise = ConvProblem.parse("wgrad n=8 c=96 h=14 w=14 k=96 r=3 s=3 groups=96")
    source = cuda_source([cuda_kernel(depthwise, CUDA, choice=Plan(None, 32, 1))])
    # Eight threads share a sum: three halvings, each after a barrier that all threads reach.
    assert source.count("\n  __syncthreads();") == 3
    assert source.count("__syncthreads()") == 3


@pytest.mark.parametrize("kind", KINDS)
def test_cuda_large_tensors_have_64_bit_indices(kind: ConvKind) -> None:
    small = ConvProblem.parse(
        f"{kind.value} n=8 c=64 h=256 w=256 k=64 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
    )
    large = replace(small, n=1024)  # 2^32 elements
    for problem in (small, large, replace(large, c=64, k=64, groups=64)):
        source = cuda_source([cuda_kernel(problem, CUDA)])
        body = source[source.index('extern "C"') :]
        assert ("int64_t" in body or "long" in body) == (problem is not small)


@pytest.mark.parametrize("kind", KINDS)
def test_cuda_kernel_survives_the_relax_pipeline(kind: ConvKind) -> None:
    problem = ConvProblem.parse(f"{kind.value} n=2 c=16 h=14 w=14 k=32 r=3 s=3 pad=1,1,1,1")
    bb = relax.BlockBuilder()
    x, y = (
        relax.Var(role, relax.TensorType(problem.shape(role), problem.dtype(role)))
        for role in problem.roles[:2]
    )
    with bb.function("main", [x, y]):
        kernel = bb.add_func(cuda_kernel(problem, CUDA), "conv")
        result = problem.roles[2]
        ty = relax.TensorType(problem.shape(result), problem.dtype(result))
        out = bb.emit(relax.call_tir(kernel, [x, y], out_ty=ty))
        # An elementwise neighbour would be fused into the kernel if that were not opaque.
        bb.emit_func_output(bb.emit(relax.op.nn.relu(out)))
    executable = tvm.compile(bb.get(), target=CUDA)
    assert executable is not None


@pytest.mark.parametrize("kind", KINDS)
def test_generic_expression_on_cuda(kind: ConvKind) -> None:
    """The symbolic fallback is scheduled by TVM's own rules."""
    n = tirx.Var("n", "int64")
    problem = replace(SYMBOLIC[0], kind=kind, n=n, h=9, w=9)
    bb = relax.BlockBuilder()
    x, y = (
        relax.Var(role, relax.TensorType(problem.shape(role), problem.dtype(role)))
        for role in problem.roles[:2]
    )
    with bb.function("main", [x, y]):
        bb.emit_func_output(bb.emit(bb.call_te(lambda a, b: te_conv(problem, a, b), x, y)))
    assert tvm.compile(bb.get(), target=CUDA) is not None
