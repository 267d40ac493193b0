"""The programs that Relay 0.19 printed and ran, here: text, types, gradients, results.

    python -m benchmarks.relay_programs [--json FILE]

For each program: whether its text comes back from `astext(fromtext(text))` and the inferred types
are the printed ones; the distance of the results on the CPU from Relay's, in relative norm of the
worst output; and the times to read, to infer and to lower it.  A forward program that has a
printed gradient is also differentiated, and compared with it node for node.  Exit status 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from rich.console import Console
from rich.table import Table

import relay_wgrad
from relay_wgrad import output, relay
from relay_wgrad.relay import transform
from tests.fixtures.relay.inputs import HERE, load
from tests.support.relay.untyped import stripped

TOLERANCE = 1e-4
# Gradients of a softmax's sum, which is constant: zero but for rounding, on both sides.
ROUNDING = {"mlp_grad": 2e-6, "resnet8_cifar_grad": 2e-6}


def distance(name: str, mod: relay.IRModule) -> float | None:
    """The worst output's relative distance; absolute where the numbers are rounding alone."""
    inputs, wanted, _ = load(name)
    if not wanted:
        return None
    module = relay.graph_executor.GraphModule(relay.build(mod)["default"](tvm.cpu()))
    module.run(**inputs)
    worst = 0.0
    for i, want in enumerate(wanted):
        got = module.get_output(i).numpy()
        if got.shape != want.shape or not np.all(np.isfinite(got)):
            return float("inf")
        error, size = np.linalg.norm(got - want), float(np.linalg.norm(want))
        tiny = name in ROUNDING and size < ROUNDING[name] * np.sqrt(want.size)
        worst = max(worst, float(error) / (np.sqrt(want.size) if tiny else max(size, 1e-30)))
    return worst


def gradient(name: str, mod: relay.IRModule) -> bool | None:
    """Whether our gradient is the printed one; None where none is printed."""
    printed = HERE / f"{name.removesuffix('_fwd')}_grad.relay"
    if not name.endswith("_fwd") or not printed.exists():
        return None
    ours = transform.FirstOrderGradient()(transform.SimplifyInference()(mod))
    return relay.structural_equal(ours, relay.fromtext(printed.read_text(encoding="utf-8")))


def measured(name: str) -> dict[str, Any]:
    text = load(name)[2]
    start = time.perf_counter()
    mod = relay.fromtext(text)
    read = time.perf_counter()
    inferred = transform.InferType()(stripped(mod))
    typed = time.perf_counter()
    relay.lower(mod)
    lowered = time.perf_counter()
    calls = [n for f in mod.functions.values() for n in relay.ast.post_order(f)]
    return {
        "name": name,
        "calls": sum(isinstance(n, relay.Call) for n in calls),
        "text": relay.astext(mod) == text,
        "types": relay.astext(inferred) == relay.astext(transform.InferType()(mod)) == text,
        "gradient": gradient(name, mod),
        "distance": distance(name, mod),
        "seconds": {"read": read - start, "infer": typed - read, "lower": lowered - typed},
    }


def shown(value: bool | None) -> str:
    return {True: "equal", False: "NOT EQUAL", None: ""}[value]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows")
    args = parser.parse_args()
    relay_wgrad.register()
    relay.fromtext('#[version = "0.0.5"]\ndef @main(%x: float32) { %x }')  # the grammar's tables
    rows = [measured(path.stem) for path in sorted(HERE.glob("*.relay"))]
    table = Table(
        "program", "calls", "text", "types", "gradient", "distance", "read, infer, lower ms"
    )
    for row in rows:
        seconds = ", ".join(f"{1e3 * s:.0f}" for s in row["seconds"].values())
        error = "" if row["distance"] is None else f"{row['distance']:.1e}"
        table.add_row(row["name"], str(row["calls"]), shown(row["text"]), shown(row["types"]),
                      shown(row["gradient"]), error, seconds)  # fmt: skip
    Console(width=110).print(table)
    bad = [
        row["name"]
        for row in rows
        if not row["text"] or not row["types"] or row["gradient"] is False
        or (row["distance"] or 0) > TOLERANCE
    ]  # fmt: skip
    print(f"{len(rows)} programs, {len(bad)} that differ{': ' if bad else ''}{', '.join(bad)}")
    if args.json:
        output.write_json(args.json, rows)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
