"""Weight gradients raised from stock gradients of the bundled architectures, and the time.

    python -m benchmarks.raising [--models NAME,…] [--batch N] [--json FILE]

Each gradient is upstream's own, made before `register()`; it is raised as it is and after layout
conversion by the stock pass and by ours.  Nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

import tvm
from rich.console import Console
from rich.table import Table
from tvm import relax

import relay_wgrad
from benchmarks.layout_changes import CHANNELS_LAST, best
from benchmarks.layout_equality import machine
from relay_wgrad.frontend import from_onnx
from relay_wgrad.frontend.bundled import BUNDLED
from relay_wgrad.transform import ConvertLayout, raise_conv_backward

ADJOINT = "main_adjoint"
LAYOUTS = {
    "NCHW": lambda mod: mod,
    "stock NHWC": relax.transform.ConvertLayout(
        {name: CHANNELS_LAST[name] for name in ("relax.nn.conv2d", "relax.nn.conv2d_transpose")}
    ),
    "our NHWC": lambda mod: ConvertLayout("NHWC")(mod),
}


def stock_gradient(name: str, batch: int) -> tvm.IRModule:
    """Upstream's gradient by all trainable parameters; ours are registered afterwards."""
    graph = from_onnx(name, batch=batch)
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
    stock = stock_gradient(name, batch)
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


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(BUNDLED))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    rows = [row for name in options.models.split(",") for row in measure(name, options.batch)]
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine(), "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
