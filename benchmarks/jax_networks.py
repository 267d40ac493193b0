"""Gradients of networks in JAX by this package: values against JAX's, and what was recognised.

Each network's value and gradients, by parameters and images, are compared with JAX's in float64 in
relative norm.  Its convolutions are counted: how many are gradients in JAX's program, how many of
these are the family's operators in Relax, and how many of all, forward and backward,
`byoc_cudnn.partition` offloads, of the same network in float32 and float16.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import jax
import numpy as np

import byoc_cudnn
import relay_wgrad
from benchmarks.errors import furthest
from benchmarks.onnx_training import kinds as kinds_of
from benchmarks.runner import Benchmark, Case, Measure, Row
from relay_wgrad.frontend import GradientGraph, from_stablehlo
from relay_wgrad.jax import value_and_grad
from tests.support.jax.plain_networks import NETWORKS, names, problem

CONVOLUTION = "stablehlo.convolution"


def moves(graph: GradientGraph) -> int:
    """Permutations and reversals of tensors of four axes: changes of layout, weights backwards."""
    values = [b.value for block in graph.module["main"].body.blocks for b in block.bindings]
    names = ("relax.permute_dims", "relax.flip")
    return sum(
        str(getattr(getattr(v, "op", None), "name", "")) in names and int(v.ty.ndim) == 4
        for v in values
    )


def measure(name: str) -> Row:
    """A row of the table."""
    loss, given = problem(name)
    step = value_and_grad(loss, given, (0, 1))
    got = jax.tree.leaves(step(*given))
    reference = jax.jit(jax.value_and_grad(loss, (0, 1)))
    forward = jax.jit(loss).lower(*given).as_text().count(CONVOLUTION)
    lowered = reference.lower(*given)
    wanted = [np.asarray(v) for v in jax.tree.leaves(lowered.compile()(*given))]
    kinds = [kind.value for kind in kinds_of(step.graph)]
    report = step.graph.report
    assert report is not None
    row: Row = {
        "error": furthest(map(np.asarray, got), wanted)[0], "forward": forward,
        "gradients": lowered.as_text().count(CONVOLUTION) - forward,
        "kinds": {k: kinds.count(k) for k in sorted(set(kinds))},
        "recognised": len(kinds) - forward - len(report.left), "left": len(report.left),
        "moves": moves(step.graph),
    }  # fmt: skip
    for dtype in ("float32", "float16"):
        loss, given = problem(name, dtype)
        graph = from_stablehlo(jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*given))
        _, found = byoc_cudnn.partition(graph.module)
        entries = [e for e in found.entries if e.op.startswith("conv")]
        offloaded = [e for e in entries if e.backend]
        row[dtype] = [len(offloaded), len(entries)]
        row[f"{dtype}_reasons"] = sorted({e.reason for e in entries if not e.backend})
    return row


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for name in names():
        if name.partition("-")[0] in args.suite:
            yield Case({"network": name})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    jax.config.update("jax_enable_x64", True)
    relay_wgrad.register()
    return lambda case: measure(case.key["network"])


BENCHMARK = Benchmark(
    cases, begin, suites=NETWORKS,
    columns=(
        ("network",), ("error", None, ".1e"), ("convolutions", "forward"), ("gradients",),
        ("recognised",), *((d, lambda row, d=d: "/".join(map(str, row[d])))
                           for d in ("float32", "float16")),
        ("moves",), ("reason",),
    ),
)  # fmt: skip
