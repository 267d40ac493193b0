"""Keras' Conv2DTranspose with random filters, forward and both gradients, on our kernels.

The tests run a share of `tests/fixtures/keras.json`;
`python -m tests.relay_wgrad.conventions.test_keras_parity` all of it, in some two minutes.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import relay_wgrad
from legalize import cpu
from relay_wgrad.conventions import keras, onnx
from relay_wgrad.problem import ConvKind
from relay_wgrad.transform import grad
from tests.support.keras_cases import Array, Case, digest, load, name, operands

TARGET = cpu.host_target()
CASES = [case for case in load() if case["layer"] == "Conv2DTranspose"]
SHARE = [CASES[0], *CASES[1::17]]


def kernel(problem: Any, a: Array, b: Array) -> Array:
    """The result of this package's kernel for a problem."""
    compiled = tvm.compile(cpu.prim_func(problem, TARGET), target=TARGET)["main"]
    out = tvm.runtime.tensor(np.full(problem.shape(problem.roles[2]), np.nan))
    compiled(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    return out.numpy()


def differences(case: Case) -> list[str]:
    """Which of the results are not Keras' bit for bit, on Keras' tensors as they lie in memory."""
    found = keras.conv2d_transpose(**case["arguments"], dtype="float64")
    x, w, v = operands(case, tuple(case["output_shape"]))
    p = found.problem
    assert found.around == (0, 0, 0, 0)
    made = {
        "y": kernel(p, x, w),
        "dx": kernel(p.with_kind(ConvKind.FPROP), v, w),
        "dw": kernel(p.with_kind(ConvKind.WGRAD), x, v),
    }
    return [key for key, value in made.items() if digest(value) != case[key]]


@pytest.mark.share(5)
@pytest.mark.parametrize("case", SHARE, ids=name)
def test_kernels(case: Case) -> None:
    assert not differences(case)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[40]], ids=name)
def test_operator_and_its_gradient(case: Case, registered: None) -> None:
    """`relay_wgrad.conv2d_transpose` and `grad`, compiled: what a program of a user's does."""
    found = keras.conv2d_transpose(**case["arguments"], dtype="float64")
    x, w, v = operands(case, tuple(case["output_shape"]))
    p = found.problem
    extra = onnx.to_conv_transpose(found).arguments["output_padding"]
    named = {"x": x, "w": w, "v": v}
    params = [relax.Var(n, relax.TensorType(a.shape, "float64")) for n, a in named.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            y = builder.emit(
                relay_wgrad.conv2d_transpose(
                    params[0], params[1], strides=p.strides, padding=p.padding,
                    output_padding=extra, dilation=p.dilation, data_layout=p.grad_layout,
                    kernel_layout="HWOI", out_layout=p.data_layout,
                )
            )  # fmt: skip
            loss = builder.emit_output(relax.op.sum(relax.op.multiply(y, params[2])))
        builder.emit_func_output(loss)
    module = grad(builder.get(), "main", wrt=["x", "w"])
    machine = relax.VirtualMachine(tvm.compile(module, target=TARGET), tvm.cpu())
    _, (dx, dw) = machine["main_adjoint"](*map(tvm.runtime.tensor, (x, w, v)))
    assert (digest(dx.numpy()), digest(dw.numpy())) == (case["dx"], case["dw"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Keras' transposed convolutions on our kernels.")
    parser.add_argument("--cases", default=":", metavar="A:B", help="a range of them; else all")
    first, _, last = parser.parse_args().cases.partition(":")
    cases = CASES[int(first or 0) : int(last) if last else None]
    failures = [(name(case), found) for case in cases if (found := differences(case))]
    print(f"{len(cases)} configurations, 3 results each: {len(failures)} differ")
    for failure in failures:
        print(*failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
