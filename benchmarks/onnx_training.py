"""ONNX training graphs of small networks by this package, beside PyTorch's autograd.

Each network's step is written with `ConvGrad` and its kin, and `from_onnx_training` reads
it.  Loss and gradients are compared with PyTorch's in float64: each in relative norm or that to a
millionth of all gradients'; those in float32, ours and PyTorch's, all together.  Counted are the
data and weight gradients for which `ConvGrad` nodes have names, those that are the family's
operators in Relax, and how many convolutions of all, forward and backward, `byoc_cudnn.partition`
offloads.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
import torch
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad
from benchmarks.errors import distance, furthest
from benchmarks.networks import QUICK
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.frontend import GradientGraph, from_onnx_training
from relay_wgrad.ops.call_problem import family_def
from relay_wgrad.problem import ConvKind
from tests.support.onnx.networks import FAMILIES, SIZES, step


def asked(model: onnx.ModelProto) -> int:
    """Data and weight gradients that `ConvGrad` nodes have names for."""
    nodes = [node for node in model.graph.node if node.op_type == "ConvGrad"]
    return sum(bool(name) for node in nodes for name in node.output[:2])


def kinds(graph: GradientGraph) -> list[ConvKind]:
    """Of the family's calls."""
    values = [b.value for block in graph.module["main"].body.blocks for b in block.bindings]
    found = [family_def(v) for v in values]
    return [d.kind for d in found if d is not None and d.kind is not None]


def results(graph: GradientGraph, inputs: dict[str, np.ndarray], dtype: str) -> list[np.ndarray]:
    """The graph's, on a CPU."""
    target = tvm.target.Target(QUICK)
    vm = relax.VirtualMachine(tvm.compile(graph.module, target), tvm.cpu())
    given = [*inputs.values(), *graph.state.values()]
    kept = [np.asarray(a, order="C") for a in graph.arguments(given)]
    made = vm["main"](*[
        tvm.runtime.tensor(a.astype(dtype) if a.dtype.kind == "f" else a) for a in kept
    ])  # fmt: skip
    return [value.numpy() for value in graph.results(given, list(made))]


def measure(name: str) -> Row:
    """A row of the table."""
    model, inputs, wanted = step(name)
    want = list(wanted.values())
    row: Row = {"asked": asked(model)}
    for dtype in ("float64", "float32"):
        graph = from_onnx_training(model, dtype=dtype)
        got = results(graph, inputs, dtype)
        row[dtype] = furthest(got, want)[0] if dtype == "float64" else distance(got, want)
    row["pytorch"] = distance(step(name, torch.float32)[2].values(), want)
    found = kinds(graph)
    row["recognised"] = sum(kind is not ConvKind.FPROP for kind in found)
    _, report = byoc_cudnn.partition(graph.module)
    entries = [e for e in report.entries if e.op.startswith("conv")]
    return row | {
        "convolutions": len(found), "offloaded": sum(bool(e.backend) for e in entries),
        "reasons": sorted({e.reason for e in entries if not e.backend}),
    }  # fmt: skip


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for size in args.sizes:
        for family in args.suite:
            yield Case({"network": f"{family}, {size}"})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    return lambda case: measure(case.key["network"])


BENCHMARK = Benchmark(
    cases, begin, suites=FAMILIES, options={"sizes": Option(tuple(SIZES), "", SIZES)},
    columns=(("network",), ("float64", None, ".1e"), ("float32", None, ".1e"),
             ("PyTorch's", "pytorch", ".1e"), ("gradients", "asked"), ("recognised",),
             ("convolutions",), ("taken", "offloaded"), ("reason",)),
)  # fmt: skip
