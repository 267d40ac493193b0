"""What a case's functions should return: PyTorch's autograd in float64, and how near is near.

The op is written with PyTorch's own: `conv2d`, `conv_transpose2d`, and for the two backward ops the
derivative that autograd makes of `conv2d`, which can be differentiated again.  Asymmetric padding
is an explicit pad, and for a transposed convolution a crop.

**Tolerances.**  Operands are drawn, rounded to their dtype once, and given to both sides, so
they are exact.  The form is trilinear: in its second derivatives too every factor of every term is
an operand, a cotangent or a direction, all exact; no rounded intermediate is ever convolved again.
What is left for a partial is the sum's rounding in the accumulator's dtype and the result's own to
its dtype: `problems.tolerance` (for f32 some 1e-6, f64 some 1e-15, f16 1e-3, bf16 8e-3, where
the last two are all the result's own rounding).  A partial of order 2 is the sum of two
such results, each rounded to the dtype before they are added in it, hence twice that.

An error is measured against the result's typical size, the root of the sum of its terms' squares,
which is the same derivative at the squared operands.  A small result by chance, a difference of
large terms, so is no failure, and a wrong index still gives an error near 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from relay_wgrad.dtypes import numpy_dtype
from relay_wgrad.layouts import permutation
from relay_wgrad.problem import ROLES, ConvKind, ConvProblem
from tests.support.problems import UNIT, canonical, tolerance

from .case import Case
from .program import DIRECTIONS, PARAMS, library_contracts, param_dtype

Arrays = dict[str, np.ndarray[Any, Any]]

_KIND_OF_RESULT = {roles[2]: kind for kind, roles in ROLES.items()}


def draw(case: Case, problem: ConvProblem, order: int, run: int) -> Arrays:
    """Values of a function's parameters, in its order, each exact in its role's dtype."""
    rng = np.random.default_rng([case.seed, run])
    names = PARAMS + (DIRECTIONS if order == 2 else ())
    arrays = {}
    for name, role in zip(names, case.operands * 2, strict=False):
        rounded = rng.standard_normal(problem.shape(role)).astype(numpy_dtype(problem.dtype(role)))
        arrays[name] = rounded.astype(numpy_dtype(param_dtype(case, role, order)))
    return arrays


def reference(
    case: Case, problem: ConvProblem, order: int, arrays: Arrays
) -> tuple[Arrays, Arrays]:
    """(wanted, typical size) of each result: `scalar`, and `out` (order 0 and 1), `a`, `b`, `u`."""
    tensors = {
        name: canonical(problem, role, arrays[name])
        for name, role in zip(PARAMS + DIRECTIONS, case.operands * 2, strict=True)
        if name in arrays
    }
    wanted = _results(case, problem, order, tensors)
    squares = _results(case, problem, order, {name: t * t for name, t in tensors.items()})
    roles = dict(zip((*PARAMS, "out"), (*case.operands, case.operands[2]), strict=True))

    def stored(name: str, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        value = tensor.detach().numpy()
        if name == "scalar":
            return value
        role = roles[name]
        return value.transpose(permutation(problem.canonical(role), problem.layout(role)))

    return (
        {name: stored(name, t) for name, t in wanted.items()},
        # Rounding can leave a sum of squares that should be zero a little below it.
        {name: np.sqrt(np.maximum(stored(name, t), 0)) for name, t in squares.items()},
    )


def _results(
    case: Case, problem: ConvProblem, order: int, given: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    leaves = [given[name].clone().requires_grad_(order > 0) for name in PARAMS]
    a, b, u = leaves
    out = _op(case, problem, a, b)
    scalar = (out * u).sum()
    if order == 0:
        return {"scalar": scalar, "out": out}
    partials = torch.autograd.grad(scalar, leaves, create_graph=order > 1)
    if order == 1:
        return {"scalar": scalar, "out": out, **dict(zip(PARAMS, partials, strict=True))}
    scalar = sum((g * given[name]).sum() for g, name in zip(partials, DIRECTIONS, strict=True))
    return {
        "scalar": scalar,
        **dict(zip(PARAMS, torch.autograd.grad(scalar, leaves), strict=True)),
    }


def _op(case: Case, problem: ConvProblem, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if problem.kind is ConvKind.FPROP:
        return _conv(problem, a, b)
    if case.is_transpose:
        return _conv_transpose(problem, a, b)
    shape = problem.canonical_shape("weight" if problem.kind is ConvKind.WGRAD else "data")
    # The operand it is differentiated by occurs linearly: its value is of no account.
    absent = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        wgrad = problem.kind is ConvKind.WGRAD
        made = _conv(problem, b, absent) if wgrad else _conv(problem, absent, b)
        return torch.autograd.grad(made, absent, a, create_graph=True)[0]


def _conv(problem: ConvProblem, data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    before, after = problem.padding[: problem.rank], problem.padding[problem.rank :]
    ends = zip(reversed(before), reversed(after), strict=True)  # PyTorch has the last axis first
    conv: Any = getattr(torch.nn.functional, f"conv{problem.rank}d")
    return conv(
        torch.nn.functional.pad(data, [width for pair in ends for width in pair]),
        weight,
        stride=problem.strides,
        dilation=problem.dilation,
        groups=problem.groups,
    )


def _conv_transpose(problem: ConvProblem, data: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    # Output padding by hand: PyTorch wants it below the stride or the dilation, and so it is, but
    # zeros after the last row make no use of its own rule.
    transposed: Any = getattr(torch.nn.functional, f"conv_transpose{problem.rank}d")
    whole = transposed(
        data, weight, stride=problem.strides, dilation=problem.dilation, groups=problem.groups
    )
    kept = [slice(None), slice(None)]
    missing: list[int] = []
    for axis, (first, size) in enumerate(
        zip(problem.padding[: problem.rank], problem.spatial, strict=True), 2
    ):
        missing[:0] = (0, max(0, first + size - whole.shape[axis]))
        kept.append(slice(first, first + size))
    return torch.nn.functional.pad(whole, missing)[tuple(kept)]


def tolerances(case: Case, problem: ConvProblem, order: int) -> dict[str, tuple[str, float]]:
    """result -> (the dtype it is rounded to, its tolerance); see the module's docstring."""
    times = 2 if order == 2 else 1
    found = {}
    for name, role in zip((*PARAMS, "out"), (*case.operands, case.operands[2]), strict=True):
        kind = problem.with_kind(_KIND_OF_RESULT[role])
        found[name] = (problem.dtype(role), times * tolerance(kind))
    # The scalar is one long sum of products with those results.
    dtype = problem.accum_dtype
    if order == 2 and library_contracts(case):
        dtype = param_dtype(case, case.operands[0], order)
    length = max(math.prod(problem.canonical_shape(role)) for role in case.operands)
    own = 2 * (8 + math.sqrt(length)) * UNIT[dtype]
    largest = max(found.values(), key=lambda x: x[1])
    found["scalar"] = (largest[0], times * largest[1] + own)
    return found


def error(
    got: np.ndarray[Any, Any], want: np.ndarray[Any, Any], typical: np.ndarray[Any, Any]
) -> float:
    """Norm of the difference over that of the typical size; infinite for any NaN or wrong shape."""
    if got.shape != want.shape:
        return math.inf
    difference = float(np.linalg.norm((got.astype(np.float64) - want).ravel()))
    if not math.isfinite(difference):
        return math.inf
    size = float(np.linalg.norm(typical.ravel()))
    return difference / size if size > 0 else (0.0 if difference == 0 else math.inf)
