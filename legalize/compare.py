"""Second opinions on kernels: some rows in float64, or all by the composite and TVM's own rules.

Nothing of this package's kernels is in either.  The rows are NumPy's matrix products (`sampled`),
and compile nothing.  In the composite a weight gradient becomes tile/reshape/conv2d/sum, a data
gradient a transposed convolution, and upstream's legalization compiles them: for a ResNet-50 its
runs take minutes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from relay_wgrad.attrs import ConvAttrs
from relay_wgrad.building.disk_cache import DiskCache
from relay_wgrad.building.program import build
from relay_wgrad.operands import poisoned, random_operands
from relay_wgrad.ops.algebra import dgrad_call, fprop_call, wgrad_call
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.timing import shortest

from . import sampled
from .composite import Composite, StockLegalize

LONG = 0.25  # seconds
_WHILE = 0.05  # seconds: several slices of the scheduler's time
TINY = float(np.finfo("float64").tiny)


@dataclass
class Opinion:
    """Agreement and times of one problem: a kernel of ours beside another way.

    error : ||ours - theirs|| / ||theirs||, of what was compared.
    seconds, stock_seconds : of one run alone, ours and the stock composite's; NaN where that was
        not run, and nothing timed.
    """

    problem: ConvProblem
    error: float
    seconds: float = math.nan
    stock_seconds: float = math.nan


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
                value = fprop_call(operands[0], operands[1], a)
            elif problem.kind is ConvKind.WGRAD:
                value = wgrad_call(operands[0], operands[1], a)
            else:
                value = dgrad_call(
                    operands[0], operands[1], relax.ShapeExpr(list(problem.shape("data"))), a
                )
            out = bb.emit_output(value)
        bb.emit_func_output(out)
    return bb.get()[symbol]


def build_stock(problems: Sequence[ConvProblem], target: Target) -> Any:
    """A virtual machine with the stock function of each problem, `stock_<index>`."""
    names = [f"stock_{i}" for i in range(len(problems))]
    mod = tvm.IRModule(
        {name: problem_function(p, name) for name, p in zip(names, problems, strict=True)}
    )
    with target:
        mod = StockLegalize()(Composite(weight=True, data=True)(mod))
    # An option of its lowering, as it is by default: so the lowering is TVM's own, whole.
    with tvm.transform.PassContext(config={"tirx.disable_cse_tir": False}):
        executable, _, _ = build(mod, target, relax.get_pipeline("default"), DiskCache())
    return relax.VirtualMachine(executable, tvm.cpu())


def by_rows(problem: ConvProblem, kernel: Callable[..., Any], index: int) -> Opinion:
    """Runs a kernel once on random operands, and compares `sampled.rows` of its result.

    kernel : takes the two operands and the result, which is full of NaN before: where one is left,
        in whatever row, the error is NaN.
    """
    rng = np.random.default_rng(index)
    given = random_operands(problem, rng)
    operands, out = _operands(problem, given)
    kernel(*operands, out)
    result = out.numpy()
    got, want = sampled.rows(problem, given, result, rng)
    error = _relative(got, want) if np.isfinite(result.astype("float64")).all() else math.nan
    return Opinion(problem, error)


def by_composite(
    problem: ConvProblem, kernel: Callable[..., Any], stock: Any, index: int, repeat: int = 5
) -> Opinion:
    """Runs one problem both ways on the same random operands.

    `kernel` takes the two operands and the result, which is full of NaN before.  Both are timed by
    the shortest of some runs after one that does not count; the stock way, which may take seconds,
    by fewer.
    """
    given = random_operands(problem, np.random.default_rng(index))
    operands, out = _operands(problem, given)
    run_stock = stock[f"stock_{index}"]
    start = time.perf_counter()
    want = run_stock(*operands).numpy().astype("float64")
    first = time.perf_counter() - start
    # One long run is a measurement; a short one may be a cold start.
    stock_seconds = first if first > LONG else min(first, timed(lambda: run_stock(*operands), 2))
    seconds = timed(lambda: kernel(*operands, out), repeat)
    error = _relative(out.numpy().astype("float64"), want)
    return Opinion(problem, error, seconds, stock_seconds)


def _operands(problem: ConvProblem, given: Sequence[Any]) -> tuple[list[Any], Any]:
    """A kernel's operands, and a result full of NaN."""
    return [tvm.runtime.tensor(x) for x in given], tvm.runtime.tensor(poisoned(problem))


def _relative(got: Any, want: Any) -> float:
    return float(np.linalg.norm(got - want) / max(np.linalg.norm(want), TINY))


def timed(run: Callable[[], Any], repeat: int) -> float:
    """The shortest time of `repeat` runs or more, in seconds: small ones are run for a while."""
    return shortest(run, repeat, _WHILE).seconds
