"""Generator: an infinity, NaN or the largest number in one place, through each family of kernels.

python -m tests.fuzz.special --minutes 60
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tvm
from tvm import te

from relay_wgrad.problem import ConvKind, ConvProblem
from tests.fuzz.harness import Generator, main
from tests.support.problems import poisoned, random_problem
from tests.support.special_values import wrong

FAMILIES = ("host", "x86-64-v2", "x86-64-v3", "generic", "cuda")
"""The host's direct kernels, those of other CPUs, plain expressions, CUDA's kernels as loops."""

MAX_FLOP = 1e6


def kernel(family: str, problem: ConvProblem) -> Any:
    """A compiled kernel of (first operand, second operand, result)."""
    from legalize import cpu, cuda
    from legalize.generic import te_conv

    if family == "host":
        target = cpu.host_target()
        return tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    if family == "generic":
        given = [te.placeholder(problem.shape(r), problem.dtype(r), r) for r in problem.roles[:2]]
        func = te.create_prim_func([*given, te_conv(problem, *given)])
    elif family == "cuda":
        gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
        func = cuda.prim_func(problem, gpu, simulate=True)
    else:
        target = tvm.target.Target({"kind": "llvm", "mcpu": family})
        return tvm.compile(cpu.prim_func(problem, target), target=target)["main"]
    return tvm.compile(func.with_attr("global_symbol", "main"), target="llvm")["main"]


def runner(compiled: Any, problem: ConvProblem) -> Any:
    def run(operands: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        out = tvm.runtime.tensor(poisoned(problem))
        compiled(*[tvm.runtime.tensor(x) for x in operands], out)
        result: np.ndarray[Any, Any] = out.numpy()
        return result

    return run


def case(seed: int, index: int) -> str:
    rng = np.random.default_rng([seed, index])
    kind = list(ConvKind)[int(rng.integers(3))]
    family = FAMILIES[int(rng.integers(len(FAMILIES)))]
    problem = random_problem(rng, kind, max_flop=MAX_FLOP)
    return f"{family} {int(rng.integers(2**31))} {problem.repro()}"


def labels(line: str) -> dict[str, str]:
    family, _, kind, *words = line.split()
    dtype = next((w[6:] for w in words if w.startswith("dtype=")), "f32/f32/f32")
    return {"family": family, "kind": kind, "dtype": dtype.split("/")[0]}


def check(line: str) -> str | None:
    family, seed, text = line.split(" ", 2)
    problem = ConvProblem.parse(text)
    found = wrong(problem, runner(kernel(family, problem), problem), int(seed))
    return "\n".join(found) or None


GENERATOR = Generator(
    "special", "infinities, NaN and largest numbers against sums over taps", case=case,
    labels=labels, check=check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
