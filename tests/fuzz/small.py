"""Generator: kernels of problems of a few pixels, where quotients of loops' digits decide.

    python -m tests.fuzz.small --minutes 60

A case is a family of kernels and a handful of problems, compiled as one module: sides of 1 to 8
pixels with strides, dilation and padding up to 4, batches of 1 to 4, few channels.  TVM simplifies
(v % 4 + 1) // 2 of a loop's variable v wrongly, so what a kernel divides must never have that form;
whether it does shows for few sizes only, and small ones are the ones that can all be tried.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from relay_wgrad.problem import ConvKind, ConvProblem

from .harness import Generator, main

FAMILIES = ("host", "x86-64-v2", "x86-64-v3", "generic", "cuda")
PROBLEMS = 12
"""Of one case: compiling them together costs a third."""
LAYOUTS = ("NCHW/OIHW/NCHW", "NHWC/HWIO/NHWC", "NHWC/OHWI/NHWC", "NCHW/HWIO/NHWC")


def _problem(rng: np.random.Generator) -> str:
    def pick(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    while True:
        groups = pick(1, 3) if rng.random() < 0.3 else 1
        c, k = groups * pick(1, 2), groups * pick(1, 3)
        stride, dilation = (pick(1, 4), pick(1, 3)), (pick(1, 4), pick(1, 4))
        problem = ConvProblem(
            ConvKind(("fprop", "dgrad", "wgrad")[pick(0, 2)]), pick(1, 4), c, pick(1, 8),
            pick(1, 8), k, pick(1, 3), pick(1, 3), stride, tuple(pick(0, 4) for _ in range(4)),
            dilation, groups,
        )  # fmt: skip
        if problem.p >= 1 and problem.q >= 1:
            layout = LAYOUTS[pick(0, len(LAYOUTS) - 1)]
            dtype = ("f32", "f64")[pick(0, 1)]
            words = [x for x in problem.repro().split() if not x.startswith(("layout=", "dtype="))]
            return " ".join([*words, f"layout={layout}", f"dtype={dtype}/{dtype}/{dtype}"])


def case(seed: int, index: int) -> str:
    rng = np.random.default_rng([seed, index])
    family = FAMILIES[index % len(FAMILIES)]
    return " | ".join([family, *(_problem(rng) for _ in range(PROBLEMS))])


def labels(line: str) -> dict[str, str]:
    return {"family": line.partition(" | ")[0]}


def _functions(family: str, problem: ConvProblem) -> tuple[Any, Any]:
    """(kernel, target)"""
    import tvm
    from tvm import te

    from legalize import cpu, cuda
    from legalize.generic import cpu_schedule, te_conv

    plain = tvm.target.Target({"kind": "llvm", "num-cores": 1})
    if family == "generic":
        given = [te.placeholder(problem.shape(r), problem.dtype(r), r) for r in problem.roles[:2]]
        func = te.create_prim_func([*given, te_conv(problem, *given)])
        return cpu_schedule(func.with_attr("global_symbol", "main")), plain
    if family == "cuda":
        gpu = tvm.target.Target({"kind": "cuda", "arch": "sm_90"}, host="llvm")
        return cuda.prim_func(problem, gpu, simulate=True), plain
    target = cpu.host_target()
    if family != "host":
        target = tvm.target.Target({"kind": "llvm", "mcpu": family, "num-cores": 2})
    return cpu.prim_func(problem, target), target


def check(line: str) -> str | None:
    import tvm

    from tests.support.problems import (
        poisoned,
        random_operands,
        relative_error,
        tolerance,
        torch_reference,
    )

    family, *lines = line.split(" | ")
    problems = [ConvProblem.parse(x) for x in lines]
    made = [_functions(family, problem) for problem in problems]
    module = tvm.IRModule(
        {f"f{i}": func.with_attr("global_symbol", f"f{i}") for i, (func, _) in enumerate(made)}
    )
    library = tvm.compile(module, target=made[0][1])
    wrong = []
    for i, problem in enumerate(problems):
        a, b = random_operands(problem, np.random.default_rng(i))
        out = tvm.runtime.tensor(poisoned(problem))
        library[f"f{i}"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
        want = torch_reference(problem, a, b)
        error = relative_error(out.numpy(), want)
        # A result of one or two numbers may be a difference of large terms.
        terms = np.linalg.norm(torch_reference(problem, abs(a), abs(b)))
        if not error * np.linalg.norm(want) <= tolerance(problem) * terms:
            repro = GENERATOR.command(f"{family} | {lines[i]}")
            wrong.append(f"off by {error:.1e}: {repro}")
    return "\n".join(wrong) or None


GENERATOR = Generator(
    "small", "kernels of problems of a few pixels, against PyTorch in float64", case=case,
    labels=labels, check=check,
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(main(GENERATOR))
