"""What stock TVM makes of a weight gradient, for comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script import relax as R

from benchmarks.cpu_timing import best
from relay_wgrad.problem import ConvProblem
from tests.support.problems import random_operands, relative_error, tolerance, torch_reference


def composite(row: dict[str, Any], target: tvm.target.Target) -> dict[str, Any]:
    """The stock gradient of Relax's conv2d for a row's problem, with one image, as it is slow.

    NCHW, compiled by the stock pipeline; ungrouped only, as upstream's gradient.
    """
    one = replace(
        ConvProblem.parse(row["problem"]), n=1, data_layout="NCHW", kernel_layout="OIHW",
        grad_layout="NCHW",
    )  # fmt: skip
    g, x = (
        relax.Var(role, R.Tensor(one.canonical_shape(role), "float32")) for role in ("grad", "data")
    )
    bb = relax.BlockBuilder()
    with bb.function("main", [g, x]):
        # As upstream's gradient writes it: batch and channels change places, strides become
        # dilation; a slice drops what the stride does not reach.
        dw = relax.op.nn.conv2d(
            x, g, strides=one.dilation, padding=one.padding, dilation=one.strides,
            data_layout="CNHW", kernel_layout="IOHW", out_layout="CNHW",
        )  # fmt: skip
        dw = relax.op.strided_slice(dw, [2, 3], [0, 0], [one.r, one.s])
        bb.emit_func_output(bb.emit(dw))
    vm = relax.VirtualMachine(tvm.compile(bb.get(), target=target), tvm.cpu())
    a, b = random_operands(one, np.random.default_rng(0))
    operands = tvm.runtime.tensor(a), tvm.runtime.tensor(b)
    error = relative_error(vm["main"](*operands).numpy(), torch_reference(one, a, b))
    (seconds,) = best([lambda: vm["main"](*operands)], 1)
    return {
        "problem": one.repro(),
        "ok": error <= 3 * tolerance(one),
        "gflops": one.flop / seconds / 1e9,
    }
