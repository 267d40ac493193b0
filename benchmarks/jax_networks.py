"""Gradients of networks in JAX by this package: values against JAX's, and what was recognised.

    python -m benchmarks.jax_networks [--only resnet,unet] [--json FILE [--resume]]

Each network's value and gradients, by parameters and images, are compared with JAX's in float64 in
relative norm.  Its convolutions are counted: how many are gradients in JAX's program, how many of
these are the family's operators in Relax, and how many of all, forward and backward,
`byoc_cudnn.partition` offloads, of the same network in float32 and float16.
"""

from __future__ import annotations

import argparse
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import byoc_cudnn
import relay_wgrad
from benchmarks.jax_zoo import names, problem
from benchmarks.kept import Rows, add_options
from benchmarks.layout_equality import machine
from relay_wgrad.frontend import GradientGraph, from_stablehlo
from relay_wgrad.jax import value_and_grad
from relay_wgrad.ops.call_problem import family_def


def convolutions(graph: GradientGraph) -> list[str]:
    """The kinds of the family's calls."""
    values = [b.value for block in graph.module["main"].body.blocks for b in block.bindings]
    found = [family_def(v) for v in values]
    return [d.kind.value for d in found if d is not None and d.kind is not None]


def moves(graph: GradientGraph) -> int:
    """Permutations and reversals of tensors of four axes: changes of layout, weights backwards."""
    values = [b.value for block in graph.module["main"].body.blocks for b in block.bindings]
    names = ("relax.permute_dims", "relax.flip")
    return sum(
        str(getattr(getattr(v, "op", None), "name", "")) in names and int(v.ty.ndim) == 4
        for v in values
    )


def expected(text: str) -> int:
    """Convolutions in a program of StableHLO."""
    return text.count("stablehlo.convolution")


def measure(name: str) -> dict[str, Any]:
    """A row of the table."""
    loss, given = problem(name)
    step = value_and_grad(loss, given, (0, 1))
    got = jax.tree.leaves(step(*given))
    reference = jax.jit(jax.value_and_grad(loss, (0, 1)))
    forward = expected(jax.jit(loss).lower(*given).as_text())
    lowered = reference.lower(*given)
    wanted = [np.asarray(v) for v in jax.tree.leaves(lowered.compile()(*given))]
    total = float(np.sqrt(sum(float((w**2).sum()) for w in wanted)))
    worst = max(
        float(np.linalg.norm(np.asarray(g) - w)) / max(float(np.linalg.norm(w)), 1e-6 * total)
        for g, w in zip(got, wanted, strict=True)
    )
    kinds = convolutions(step.graph)
    report = step.graph.report
    assert report is not None
    row: dict[str, Any] = {
        "network": name, "error": worst, "forward": forward,
        "gradients": expected(lowered.as_text()) - forward,
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="networks by their beginnings, joined by commas")
    add_options(parser)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    relay_wgrad.register()
    facts = {"machine": machine(), "jax": jax.__version__}
    rows = Rows(parser, options, ("network",), facts)
    wanted = [(name,) for name in names() if name.startswith(tuple(options.only.split(",")))]
    rows.measure(wanted, measure)
    table = Table("network", "error", "conv.", "gradients", "recognised", "f32", "f16", "moves")
    for row in rows.of(wanted):
        shares = ["/".join(map(str, row[d])) for d in ("float32", "float16")]
        table.add_row(
            row["network"], f"{row['error']:.1e}", str(row["forward"]), str(row["gradients"]),
            str(row["recognised"]), *shares, str(row["moves"]),
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
