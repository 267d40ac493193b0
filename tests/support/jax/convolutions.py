"""Random convolutions of JAX and their gradients, as programs of StableHLO.

    python -m tests.support.jax.convolutions --count 2000 [--seed 0] [--repro "…"]

compares values and both gradients of each with JAX's in float64, evaluated by
`tests.support.jax.evaluator`, and counts what was recognised.  A failing case is one line.
"""

from __future__ import annotations

import argparse
import ast
import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
from jax import lax

import relay_wgrad
from relay_wgrad.frontend import GradientGraph, from_stablehlo
from relay_wgrad.ops.call_problem import family_def
from tests.support.jax.evaluator import evaluated
from tests.support.problems import relative_error

Array = np.ndarray[Any, Any]
PLAIN = {"xla_disable_hlo_passes": "algsimp"}
"""XLA 0.10's simplifier ends the process for some windows with negative padding."""


@dataclass(frozen=True)
class Case:
    """One call of `lax.conv_general_dilated`."""

    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    numbers: tuple[str, str, str]
    groups: int = 1
    images: int = 1

    @property
    def plain(self) -> bool:
        """Whether it is what frameworks call a convolution: no dilated image, no images' groups."""
        return max(self.lhs_dilation) == 1 and self.images == 1

    def __call__(self, x: Any, w: Any) -> Any:
        return lax.conv_general_dilated(
            x, w, self.stride, self.padding, self.lhs_dilation, self.rhs_dilation, self.numbers,
            self.groups, self.images,
        )  # fmt: skip


def repro(case: Case) -> str:
    return repr(asdict(case))


def parse(line: str) -> Case:
    return Case(**ast.literal_eval(line))


def random_case(rng: np.random.Generator) -> Case:
    """A case with a result that is not empty."""
    while True:
        rank = int(rng.choice([1, 2, 3], p=[0.1, 0.8, 0.1]))
        mode = rng.choice(["", "groups", "images"], p=[0.55, 0.35, 0.1])
        g = int(rng.integers(2, 4)) if mode else 1

        def some(low: int, high: int, often: int | None = None, rank: int = rank) -> list[int]:
            drawn = [int(v) for v in rng.integers(low, high + 1, rank)]
            if often is None:
                return drawn
            return [often] * rank if rng.random() < 0.6 else drawn

        n, c, k = (int(v) for v in rng.integers(1, 4, 3))
        if mode == "groups" and rng.random() < 0.4:
            c = 1  # depthwise
        sizes, taps = some(1, 9), some(1, 4)
        stride, rhs_dilation = some(1, 3, 1), some(1, 3, 1)
        lhs_dilation = some(1, 3) if rng.random() < 0.2 else [1] * rank
        kind = rng.random()
        low = -2 if kind < 0.25 else 0
        padding = [(int(a), int(b)) for a, b in rng.integers(low, 4, (rank, 2))]
        if kind > 0.7:
            padding = [(a, a) for a, _ in padding]
        pixels = [
            ((s - 1) * d + 1 + sum(p) - r * (t - 1) - 1) // st + 1
            for s, d, p, r, t, st in zip(
                sizes, lhs_dilation, padding, rhs_dilation, taps, stride, strict=True
            )
        ]
        spread = [(s - 1) * d + 1 for s, d in zip(sizes, lhs_dilation, strict=True)]
        left = [s + min(p[0], 0) + min(p[1], 0) for s, p in zip(spread, padding, strict=True)]
        if min(pixels) < 1 or min(left) < 1 or math.prod(sizes) > 400:
            continue
        letters = ["", "W", "HW", "DHW"][rank]
        if rng.random() < 0.5:
            numbers = [x + letters for x in ("NC", "OI", "NC")]
            if rng.random() < 0.6:
                numbers = [f"N{letters}C", f"{letters}IO", f"N{letters}C"]
        else:
            numbers = ["".join(rng.permutation(list(x + letters))) for x in ("NC", "OI", "NC")]
        letters = "".join(x for x in numbers[1] if x in letters)  # JAX counts them in rhs' order
        lhs = dict(zip(letters, sizes, strict=True)) | {"C": c * g if mode == "groups" else c}
        lhs |= {"N": n * g if mode == "images" else n}
        rhs = dict(zip(letters, taps, strict=True)) | {"I": c, "O": k * g}
        return Case(
            tuple(lhs[x] for x in numbers[0]), tuple(rhs[x] for x in numbers[1]), tuple(stride),
            tuple(padding), tuple(lhs_dilation), tuple(rhs_dilation),
            (numbers[0], numbers[1], numbers[2]),
            g if mode == "groups" else 1, g if mode == "images" else 1,
        )  # fmt: skip


def function(case: Case) -> Any:
    """(x, w, dy) to the convolution and both gradients."""

    def run(x: Any, w: Any, dy: Any) -> Any:
        y, back = jax.vjp(case, x, w)
        return (y, *back(dy))

    return run


def arguments(case: Case, seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal(case.lhs), rng.standard_normal(case.rhs)
    return [x, w, rng.standard_normal(jax.eval_shape(case, x, w).shape)]


def kinds(graph: GradientGraph) -> list[str]:
    """The kinds of the convolutions that are left, in order."""
    values = [b.value for block in graph.module["main"].body.blocks for b in block.bindings]
    found = [family_def(value) for value in values]
    return [d.kind.value for d in found if d is not None and d.kind is not None]


def compared(case: Case) -> tuple[float, GradientGraph]:
    """(the largest error of value and gradients, the graph)."""
    given = arguments(case)
    lowered = jax.jit(function(case)).lower(*given)
    graph = from_stablehlo(lowered)
    made = evaluated(graph.module, graph.arguments(given))
    got = graph.results(given, made)
    wanted = [np.asarray(v) for v in lowered.compile(PLAIN)(*given)]
    return max(relative_error(np.asarray(g), w) for g, w in zip(got, wanted, strict=True)), graph


def verdict(case: Case) -> str:
    """ "wrong", "raised", "other" (right, and of another kind than meant) or "left"."""
    error, graph = compared(case)
    if not error < 1e-10:
        return "wrong"
    assert graph.report is not None
    if graph.report.left:
        return "left"
    if case.plain and sorted(kinds(graph)) != ["dgrad", "fprop", "wgrad"]:
        return "other"
    return "raised"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repro", type=parse)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    relay_wgrad.register()
    if options.repro is not None:
        print(verdict(options.repro), *compared(options.repro))
        return
    counts: Counter[str] = Counter()
    for index in range(options.count):
        case = random_case(np.random.default_rng([options.seed, index]))
        try:
            found = verdict(case)
        except Exception as error:
            found = f"failed: {type(error).__name__}"
            print(error, flush=True)
        counts[f"{'plain' if case.plain else 'other'}: {found}"] += 1
        if not found.endswith("raised"):
            print(index, found, repro(case), flush=True)
        if index % 100 == 99:
            print(index + 1, dict(counts), flush=True)
            jax.clear_caches()
    print(dict(counts))


if __name__ == "__main__":
    main()
