"""Element-wise functions are right where approximations are not, in all types."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm import relax, te, tirx
from tvm_ffi import structural_map

import legalize.cpu
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.math_functions import beside_a_number, right_function
from tests.support.built import built
from tests.support.compiled import virtual_machine
from tests.support.cuda_source import cuda_source
from tests.support.math_functions import module, wrong


@pytest.mark.share(5)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_on_the_cpu(dtype: str) -> None:
    target = legalize.cpu.host_target()
    executable = virtual_machine(module(dtype), target, cpu_pipeline())
    assert wrong(dtype, executable, tvm.cpu()) == {}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_cuda_is_asked_for_what_it_has(dtype: str) -> None:
    """TVM called hsinh, hcosh and hnearbyint, which nobody defines, and had no asin."""
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    made = tvm.compile(module(dtype), target=target, relax_pipeline=cuda_pipeline())
    source = cuda_source(made.mod)
    kernels = source[source.index("__launch_bounds__") :]
    assert {"asinf", "sinhf", "coshf", "nearbyintf"} <= set(re.findall(r"\b\w+(?=\()", kernels))
    assert not re.search(r"\bh(sinh|cosh|nearbyint)\(", kernels)


def powers(dtype: str, exponents: list[float], times: int = 1) -> Any:
    """Of x, each exponent's power of its power, so many times."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((3, 40), dtype))
    with bb.function("main", [x]):
        with bb.dataflow():
            made = []
            for exponent in exponents:
                y = x
                for _ in range(times):
                    y = bb.emit(relax.op.power(y, relax.const(exponent, dtype)))
                made.append(y)
            out = bb.emit_output(relax.Tuple(made))
        bb.emit_func_output(out)
    return bb.get()


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float16", 1e-3), ("bfloat16", 8e-3), ("float32", 1e-6), ("float64", 1e-15)],
)
def test_whole_powers_are_products(dtype: str, tolerance: float) -> None:
    """The C library's function for each element alone took three times as long as the rest."""
    exponents = [*range(1, 9), *([-3.0, 2.5] if dtype != "bfloat16" else [])]  # which TVM has not
    given = [*np.linspace(-1.6, 1.6, 117).tolist(), np.nan, np.inf, -np.inf]
    rounded = torch.tensor(given, dtype=getattr(torch, dtype)).reshape(3, 40)
    target = legalize.cpu.host_target()
    machine = virtual_machine(powers(dtype, exponents), target, cpu_pipeline())
    for exponent, got in zip(
        exponents, machine["main"](tvm.runtime.from_dlpack(rounded)), strict=True
    ):
        want = rounded.double() ** exponent
        found = torch.from_dlpack(got).double()
        torch.testing.assert_close(
            found, want, rtol=tolerance, atol=tolerance / 1e3, equal_nan=True
        )


def test_a_power_of_powers() -> None:
    """Fused, it must not have its argument eight times to the power of six."""
    target, given = legalize.cpu.host_target(), np.linspace(0.999, 1.001, 120, dtype="float64")
    machine = virtual_machine(powers("float64", [7.0], 6), target, cpu_pipeline())
    got = machine["main"](tvm.runtime.tensor(given.reshape(3, 40)))[0].numpy()
    np.testing.assert_allclose(got.ravel(), given**7.0**6, rtol=1e-9)


def test_no_library_is_called_for_a_whole_power() -> None:
    with tvm.target.Target(legalize.cpu.host_target()):
        text = str(cpu_pipeline()(powers("float32", [3.0])))
    assert "pow" not in text.replace("power", "")
    with tvm.target.Target(legalize.cpu.host_target()):
        assert "pow" in str(cpu_pipeline()(powers("float32", [2.5]))).replace("power", "")


@pytest.mark.parametrize("name", ["tanh", "atanh", "sigmoid", "sinh"])
def test_of_itself_many_times(name: str) -> None:
    """Fused, it is one expression, which must not have an argument twice to the power of twelve."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 33), "float32"))
    with bb.function("main", [x]):
        with bb.dataflow():
            y = x
            for _ in range(12):
                y = bb.emit(getattr(relax.op, name)(relax.op.multiply(y, relax.const(0.5))))
            out = bb.emit_output(y)
        bb.emit_func_output(out)
    target = legalize.cpu.host_target()
    machine = virtual_machine(bb.get(), target, cpu_pipeline())
    given = np.random.default_rng(0).standard_normal((4, 33)).clip(-1.9, 1.9).astype("float32")
    want = given.astype("float64")
    functions = {"sigmoid": lambda v: 1 / (1 + np.exp(-v)), "atanh": np.arctanh}
    for _ in range(12):
        want = functions.get(name, getattr(np, name, None))(0.5 * want)
    got = machine["main"](tvm.runtime.tensor(given)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5)


def _on_the_cpu(node: tvm.ir.Call) -> tvm.ir.Call:
    """CUDA's functions by the CPU's."""
    of = {"__expf": "expf", "copysignf": "copysignf"}
    name = node.args[0].value if str(node.op.name) == "tirx.call_pure_extern" else ""
    if name == "__fdividef":
        return node.args[1] / node.args[2]
    return tirx.call_pure_extern("float32", of[name], *node.args[1:]) if name in of else node


@pytest.mark.parametrize("name", ["erf", "exp", "sigmoid", "below", "twice below"])
def test_approximations_are_far_within_a_half(name: str) -> None:
    """What CUDA's kernels of halves compute, in float32: a thousandth of what a bfloat16 rounds."""
    a = te.placeholder((4096,), "float32", name="a")

    def element(i: Any) -> Any:
        half, one = (tirx.const(v, "float32") for v in (0.5, 1.0))
        if name == "below":
            return beside_a_number(half + tirx.erf(a(i)) * half)
        if name == "twice below":
            return beside_a_number(one + tirx.erf(a(i)))
        return right_function(getattr(tirx, name)(a(i)), "cuda", rounded=True)

    quick = te.compute(a.shape, element, name="quick")
    kernel = te.create_prim_func([a, quick])
    kernel = kernel.with_body(structural_map(kernel.body, [(tvm.ir.Call, _on_the_cpu)]))
    rng = np.random.default_rng(0)
    x = np.concatenate([
        rng.uniform(-6, 6, 2048), rng.choice((-1, 1), 2040) * np.exp(rng.uniform(-40, 0, 2040)),
        [np.nan, np.inf, -np.inf, 0.0, 0.5, -0.5, 40.0, -40.0],
    ]).astype("float32")  # fmt: skip
    got = np.full(4096, np.nan, "float32")
    out = tvm.runtime.tensor(got)
    tvm.compile(kernel, target="llvm")(tvm.runtime.tensor(x), out)
    got = out.numpy()
    wide = torch.tensor(x).double()
    if "below" in name:
        want = (1 + torch.erf(wide)).numpy() * (1 if "twice" in name else 0.5)
        np.testing.assert_allclose(got, want, rtol=0, atol=5e-7)
        return
    with np.errstate(over="ignore"):
        want = getattr(torch, name)(wide).numpy().astype("float32")
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-37)  # of what float32 has no 1 over


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_kernel_of_halves_has_no_branch_for_erf(dtype: str) -> None:
    """Nor its value twice: nvcc sees that two of one argument are equal."""
    x = relax.Var("x", relax.TensorType((4, 64), dtype))

    def body(emit: Any) -> Any:
        wide = emit(relax.op.astype(x, "float32"))
        y = emit(relax.op.nn.gelu(wide))
        return emit(relax.op.astype(emit(relax.op.multiply(y, emit(relax.op.exp(y)))), dtype))

    target = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
    source = cuda_source(
        tvm.compile(built([x], body), target=target, relax_pipeline=cuda_pipeline()).mod
    )
    kernels = source[source.index("__launch_bounds__") :]
    exact = bool(re.search(r"\berff\(", kernels)) and bool(re.search(r"\bexpf\(", kernels))
    quick = "__expf(" in kernels and "copysignf(" in kernels
    assert (exact, quick) == ((True, False) if dtype == "float32" else (False, True))


def test_sums_of_vectors_keep_erf() -> None:
    """Of rows of GELU's results, as a layer's normalization has them behind a linear layer: TVM's
    rule has vectors, of which its compiler cannot make what the approximation names."""
    shapes = {"x": ((64, 1152), "float16"), "b": ((1152,), "float32")}
    x, b = (relax.Var(n, relax.TensorType(*ty)) for n, ty in shapes.items())

    def body(emit: Any) -> Any:
        sum_ = emit(relax.op.add(emit(relax.op.astype(x, "float32")), b))
        half = emit(relax.op.astype(emit(relax.op.nn.gelu(sum_)), "float16"))
        return emit(relax.op.sum(emit(relax.op.astype(half, "float32")), [1]))

    target = tvm.target.Target(
        {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
         "max_shared_memory_per_block": 49152, "thread_warp_size": 32}, host="llvm"
    )  # fmt: skip
    made = tvm.compile(built([x, b], body), target=target, relax_pipeline=cuda_pipeline())
    assert re.search(r"\berff\(", cuda_source(made.mod))
