"""A second opinion on kernels: the same problem by the composite and TVM's own rules.

Nothing of this package's kernels is in it: a weight gradient becomes tile/reshape/conv2d/sum, a
data gradient a transposed convolution, and upstream's legalization compiles them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from relay_wgrad.attrs import ConvAttrs
from relay_wgrad.ops.algebra import emit_dgrad, emit_fprop, emit_wgrad
from relay_wgrad.problem import ConvKind, ConvProblem

from .composite import Composite, StockLegalize

FAST, STOCK = "fast_", "stock_"


@dataclass
class Opinion:
    """Agreement and times of one problem: this package's kernel and the stock composite."""

    problem: ConvProblem
    error: float  # ||fast - stock|| / ||stock||
    seconds: float
    stock_seconds: float


def problem_function(problem: ConvProblem, symbol: str) -> relax.Function:
    """A Relax function of the problem's two operands that is the one op."""
    a = ConvAttrs(
        problem.strides, problem.padding, problem.dilation, problem.groups,
        problem.data_layout, problem.kernel_layout, problem.grad_layout,
        out_dtype=problem.dtype(problem.roles[2]),
        kernel_size=(problem.r, problem.s) if problem.kind is ConvKind.WGRAD else None,
    )  # fmt: skip
    first, second, _ = problem.roles
    operands = [
        relax.Var(role, relax.TensorType(list(problem.shape(role)), problem.dtype(role)))
        for role in (first, second)
    ]
    bb = relax.BlockBuilder()
    with bb.function(symbol, operands):
        with bb.dataflow():
            if problem.kind is ConvKind.FPROP:
                value = emit_fprop(operands[0], operands[1], a)
            elif problem.kind is ConvKind.WGRAD:
                value = emit_wgrad(operands[0], operands[1], a)
            else:
                value = emit_dgrad(
                    operands[0], operands[1], relax.ShapeExpr(list(problem.shape("data"))), a
                )
            out = bb.emit_output(value)
        bb.emit_func_output(out)
    return bb.get()[symbol]


def random_operands(problem: ConvProblem, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Seeded normal values for the two operands, in the problem's layouts and dtypes."""
    rng = np.random.default_rng(seed)
    dtypes = {"bfloat16": ml_dtypes.bfloat16}
    return [
        rng.standard_normal(problem.shape(role)).astype(
            dtypes.get(problem.dtype(role), problem.dtype(role))
        )
        for role in problem.roles[:2]
    ]


def build(problems: Sequence[ConvProblem], target: Target, *, stock: bool) -> Any:
    """A virtual machine with one function per problem, named by FAST or STOCK and its index."""
    prefix = STOCK if stock else FAST
    names = [f"{prefix}{i}" for i in range(len(problems))]
    mod = tvm.IRModule(
        {name: problem_function(p, name) for name, p in zip(names, problems, strict=True)}
    )
    if stock:
        with target:
            mod = StockLegalize()(Composite(weight=True, data=True)(mod))
    return relax.VirtualMachine(tvm.compile(mod, target=target), tvm.cpu())


def timed(run: Any, repeat: int) -> tuple[Any, float]:
    """The result, and the median of `repeat` runs after one that does not count."""
    result, times = run(), []
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        times.append(time.perf_counter() - start)
    return result, statistics.median(times)


def second_opinion(
    problem: ConvProblem, index: int, fast: Any, stock: Any, repeat: int = 5
) -> Opinion:
    """Runs one problem both ways on the same random operands.

    The stock way runs once: it takes long enough for one run to be a measurement.
    """
    operands = [tvm.runtime.tensor(x) for x in random_operands(problem, index)]
    start = time.perf_counter()
    want = stock[f"{STOCK}{index}"](*operands)
    stock_seconds = time.perf_counter() - start
    got, seconds = timed(lambda: fast[f"{FAST}{index}"](*operands), repeat)
    a, b = got.numpy().astype("float64"), want.numpy().astype("float64")
    error = float(np.linalg.norm(a - b) / max(np.linalg.norm(b), np.finfo("float64").tiny))
    return Opinion(problem, error, seconds, stock_seconds)
