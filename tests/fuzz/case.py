"""A case of the fuzzer: an op, a problem, the sizes that are symbolic, the seed of the values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from relay_wgrad.attrs import rank_of
from relay_wgrad.dtypes import FLOATS
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.problems import random_problem

# op -> which derivative of the trilinear form it computes
OPS = {
    f"conv{rank}d{rest}": kind
    for rank in (2, 3)
    for rest, kind in (
        ("", ConvKind.FPROP),
        ("_transpose", ConvKind.DGRAD),
        ("_backward_weight", ConvKind.WGRAD),
        ("_backward_data", ConvKind.DGRAD),
    )
}
ORDERS = (0, 1, 2)
MAX_FLOP = 2e6
SYMBOLIC_SHARE = 0.15
_EXTRA = ("seed", "sym", "also")


@dataclass(frozen=True)
class Case:
    """One op on one problem.

    `symbolic` holds those of the letters n, h, w whose sizes the compiled function leaves open; it
    is called with the problem's sizes and with those of `also` (n, h, w).  For conv2d_transpose the
    operand's P and Q are open in place of h and w, which follow from them.  A depth is never open.
    """

    op: str
    problem: ConvProblem
    seed: int = 0
    symbolic: str = ""
    also: tuple[int, int, int] | None = None

    @property
    def is_transpose(self) -> bool:
        return self.op.endswith("_transpose")

    def line(self, order: int) -> str:
        """The case and an order on one line; `parse` reads it back."""
        extra = f" sym={self.symbolic} also={','.join(map(str, self.also))}" if self.also else ""
        return f"{self.op} {order} {self.problem.repro()} seed={self.seed}{extra}"

    @property
    def problems(self) -> tuple[ConvProblem, ConvProblem]:
        """What is run, one after the other: the problem twice, or its two sizes."""
        if self.also is None:
            return self.problem, self.problem
        n, h, w = self.also
        return self.problem, replace(self.problem, n=n, h=h, w=w)

    @property
    def operands(self) -> tuple[str, str, str]:
        """The roles of a, b and u: of the op's operands and its result."""
        return self.problem.roles


def parse(line: str) -> tuple[Case, int]:
    """Reads what `Case.line` wrote.  Raises ValueError naming what is wrong with it."""
    op, order, *words = line.split() + [""] * (2 - len(line.split()))
    if op not in OPS:
        raise ValueError(f"a line starts with an op, one of {', '.join(OPS)}; got {line!r}")
    if order not in {str(x) for x in ORDERS}:
        raise ValueError(f"after the op comes an order, 0, 1 or 2; got {order!r} in {line!r}")
    extra = {w.partition("=")[0]: w.partition("=")[2] for w in words if w.startswith(_fields())}
    problem = ConvProblem.parse(" ".join(w for w in words if not w.startswith(_fields())))
    if problem.kind is not OPS[op]:
        raise ValueError(f"{op} is a {OPS[op].value}, the problem is a {problem.kind.value}")
    symbolic, also = extra.get("sym", ""), extra.get("also")
    if bool(symbolic) != bool(also) or not set(symbolic) <= set("nhw"):
        raise ValueError(f"sym= (letters of nhw) and also=n,h,w come together; got {line!r}")
    sizes = tuple(int(x) for x in also.split(",")) if also else None
    if sizes is not None and len(sizes) != 3:
        raise ValueError(f"also={also!r}: expected n,h,w")
    return Case(op, problem, int(extra.get("seed", "0")), symbolic, sizes), int(order)


def _fields() -> tuple[str, ...]:
    return tuple(f"{key}=" for key in _EXTRA)


def random_case(
    op: str, seed: int, index: int, *, dtypes: Sequence[str] = FLOATS, max_flop: float = MAX_FLOP
) -> Case:
    """The `index`-th case of an op under a seed: the same one whatever else is run.

    All ops of as many dimensions get the same problem and values, as they compute with the same
    three kernels, whose compilation is what a case costs.
    """
    rng = np.random.default_rng([seed, index])
    problem = random_problem(rng, OPS[op], dtypes=dtypes, max_flop=max_flop, rank=rank_of(op))
    if rng.random() < 0.06:  # one filter a group: rare among the channel numbers drawn
        problem = replace(problem, k=problem.groups)
    if rng.random() < 0.03:
        problem = replace(problem, n=1, c=problem.groups)
    case = Case(op, problem, seed=int(rng.integers(2**31)))
    return _made_symbolic(case, rng) if rng.random() < SYMBOLIC_SHARE else case


def _made_symbolic(case: Case, rng: np.random.Generator) -> Case:
    problem = case.problem
    letters = ("n", "hw", "nhw", "h", "w", "nw")
    symbolic = letters[int(rng.integers(len(letters)))]
    n, h, w = problem.n, problem.h, problem.w
    if "n" in symbolic:
        n = int(rng.integers(1, 5))
    # A transposed convolution's output padding is fixed: its result grows by whole strides.
    steps = problem.strides[-2:] if case.is_transpose else (1, 1)
    if "h" in symbolic:
        h += steps[0] * int(rng.integers(1, 6))
    if "w" in symbolic:
        w += steps[1] * int(rng.integers(1, 6))
    return replace(case, symbolic=symbolic, also=(n, h, w))
