"""Weight gradients raised from stock gradients of the bundled architectures, and the time.

    python -m benchmarks.raising [--models NAME,…] [--batch N] [--numbers] [--json FILE]

Each gradient is upstream's own, made before `register()`; it is raised as it is and after layout
conversion by the stock pass and by ours.  Nothing is compiled, but with --numbers: then each is run
in float64 on images of 64x64, as upstream compiles it and raised, and the largest distance of a
parameter's gradient is shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax

import relay_wgrad
from benchmarks.layout_changes import CHANNELS_LAST, best
from benchmarks.layout_equality import machine
from legalize.cpu import host_target
from relay_wgrad import output
from relay_wgrad.frontend import TrainingGraph, from_onnx
from relay_wgrad.frontend.onnx.model_source import BUNDLED
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


def measure(name: str, batch: int) -> list[dict[str, Any]]:
    stock = stock_gradient(from_onnx(name, batch=batch))
    rows = []
    for layout, convert in LAYOUTS.items():
        mod = convert(stock)
        (out, report), seconds = best(lambda given=mod: raise_conv_backward(given))
        bindings = sum(len(block.bindings) for block in mod[ADJOINT].body.blocks)
        rows.append(
            {
                "model": name, "batch": batch, "layout": layout, "bindings": bindings,
                "conv2d": convolutions(mod), "raised": len(report.raised),
                "left": len(report.left), "conv2d_after": convolutions(out), "seconds": seconds,
            }
        )  # fmt: skip
    return rows


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


def distances(name: str) -> dict[str, float]:
    """By layout: how far a gradient is from upstream's at most, relative to its norm."""
    graph = from_onnx(name, batch=2, image_size=64, dtype="float64")
    stock = stock_gradient(graph)
    want = gradients(stock, graph, registered=False)
    found = {}
    for layout, convert in LAYOUTS.items():
        got = gradients(raise_conv_backward(convert(stock))[0], graph, registered=True)
        found[layout] = max(
            float(np.linalg.norm(a - b) / np.linalg.norm(b))
            for a, b in zip(got, want, strict=True)
            if np.linalg.norm(b) > 1e-12  # else it is zero but for rounding
        )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(BUNDLED))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--numbers", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    rows = [row for name in options.models.split(",") for row in measure(name, options.batch)]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
    result: dict[str, Any] = {"machine": machine(), "rows": rows}
    if options.numbers:
        result["distances"] = {name: distances(name) for name in options.models.split(",")}
        for name, found in result["distances"].items():
            print(name, *(f"{layout}: {far:.1e}" for layout, far in found.items()))
    if options.json:
        output.write_json(options.json, result)


if __name__ == "__main__":
    main()
