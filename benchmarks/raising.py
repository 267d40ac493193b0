"""Weight gradients raised from stock gradients of the bundled architectures, and the time.

Each gradient is upstream's own, made before `register()`; it is raised as it is and after layout
conversion by the stock pass and by ours.  Nothing is compiled, but with --numbers: then each is run
in float64 on images of 64x64, as upstream compiles it and raised, and the largest distance of a
parameter's gradient is shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
import tvm
from tvm import relax

import relay_wgrad
from benchmarks.layout_changes import CHANNELS_LAST, best
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from legalize.cpu import host_target
from relay_wgrad.frontend import BUNDLED, TrainingGraph, from_onnx
from relay_wgrad.transform import ConvertLayout, raise_conv_backward

ADJOINT = "main_adjoint"
LAYOUTS = {
    "NCHW": lambda mod: mod,
    "stock NHWC": relax.transform.ConvertLayout(
        {name: CHANNELS_LAST[name] for name in ("relax.nn.conv2d", "relax.nn.conv2d_transpose")}
    ),
    "our NHWC": lambda mod: ConvertLayout("NHWC")(mod),
}


def stock_gradient(graph: TrainingGraph) -> tvm.IRModule:
    """Upstream's gradient by all trainable parameters; ours are registered afterwards."""
    relay_wgrad.unregister()
    try:
        params = {str(p.name): p for p in graph.module["main"].params}
        wanted = [params[weight] for weight in graph.trainable]
        mod = relax.transform.Gradient("main", require_grads=wanted)(graph.module)
    finally:
        relay_wgrad.register()
    return tvm.IRModule({ADJOINT: mod[ADJOINT]})


def convolutions(mod: tvm.IRModule) -> int:
    values = [b.value for block in mod[ADJOINT].body.blocks for b in block.bindings]
    calls = [v for v in values if isinstance(v, relax.Call)]
    return sum(str(getattr(call.op, "name", "")) == "relax.nn.conv2d" for call in calls)


def measure(name: str, layout: str, batch: int) -> Row:
    mod = LAYOUTS[layout](stock_gradient(from_onnx(name, batch=batch)))
    (out, report), seconds = best(lambda: raise_conv_backward(mod))
    bindings = sum(len(block.bindings) for block in mod[ADJOINT].body.blocks)
    return {
        "bindings": bindings, "conv2d": convolutions(mod), "raised": len(report.raised),
        "left": len(report.left), "conv2d_after": convolutions(out), "seconds": seconds,
    }  # fmt: skip


def gradients(mod: tvm.IRModule, graph: TrainingGraph, registered: bool) -> list[np.ndarray]:
    """By all trainable parameters, compiled by this package's rules or by upstream's."""
    values = graph.random_batch(0)
    arrays = [values[spec.name] for spec in graph.inputs] + list(graph.params.values())
    if not registered:
        relay_wgrad.unregister()
    try:
        executable = tvm.compile(mod, target=host_target())
    finally:
        relay_wgrad.register()
    machine = relax.VirtualMachine(executable, tvm.cpu())
    out = machine[ADJOINT](*(tvm.runtime.tensor(np.asarray(a)) for a in arrays))
    return [gradient.numpy() for gradient in out[1]]


def distance(name: str, layout: str) -> float:
    """How far a gradient is from upstream's at most, relative to its norm."""
    graph = from_onnx(name, batch=2, image_size=64, dtype="float64")
    stock = stock_gradient(graph)
    want = gradients(stock, graph, registered=False)
    got = gradients(raise_conv_backward(LAYOUTS[layout](stock))[0], graph, registered=True)
    return max(
        float(np.linalg.norm(a - b) / np.linalg.norm(b))
        for a, b in zip(got, want, strict=True)
        if np.linalg.norm(b) > 1e-12  # else it is zero but for rounding
    )


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for model in args.suite:
        for layout in LAYOUTS:
            yield Case({"model": model, "batch": args.batch, "layout": layout})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()

    def one(case: Case) -> Row:
        model, batch, layout = case.key.values()
        row = measure(model, layout, batch)
        return row | ({"distance": distance(model, layout)} if args.numbers else {})

    return one


BENCHMARK = Benchmark(
    cases, begin, suites=BUNDLED,
    options={"batch": Option(2, "images"),
             "numbers": Option(False, "run each, and compare with upstream's")},
    columns=(("model",), ("layout",), ("bindings",), ("conv2d",), ("raised",), ("left",),
             ("conv2d after", "conv2d_after"), ("seconds", None, ".2f"),
             ("distance", None, ".1e"), ("reason",)),
)  # fmt: skip
