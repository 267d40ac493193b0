"""The programs that Relay 0.19 printed and ran, here: text, types, gradients, results.

For each program: whether its text comes back from `astext(fromtext(text))` and the inferred types
are the printed ones; the distance of the results on the CPU from Relay's, in relative norm of the
worst output; and the times to read, to infer and to lower it.  A forward program that has a
printed gradient is also differentiated, and compared with it node for node.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tvm

import relay_wgrad
from benchmarks.runner import Benchmark, Case, Measure, Row
from relay_wgrad import relay
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


def measured(name: str) -> Row:
    text = load(name)[2]
    start = time.perf_counter()
    mod = relay.fromtext(text)
    read = time.perf_counter()
    inferred = transform.InferType()(stripped(mod))
    typed = time.perf_counter()
    relay.lower(mod)
    lowered = time.perf_counter()
    calls = [n for f in mod.functions.values() for n in relay.ast.post_order(f)]
    row: Row = {
        "calls": sum(isinstance(n, relay.Call) for n in calls),
        "text": relay.astext(mod) == text,
        "types": relay.astext(inferred) == relay.astext(transform.InferType()(mod)) == text,
        "gradient": gradient(name, mod),
        "distance": distance(name, mod),
        "seconds": {"read": read - start, "infer": typed - read, "lower": lowered - typed},
    }
    wrong = [what for what in ("text", "types", "gradient") if row[what] is False]
    wrong += ["distance"] * ((row["distance"] or 0) > TOLERANCE)
    return row | ({"reason": f"differs in {', '.join(wrong)}"} if wrong else {})


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for path in sorted(HERE.glob("*.relay")):
        yield Case({"name": path.stem})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    relay.fromtext('#[version = "0.0.5"]\ndef @main(%x: float32) { %x }')  # the grammar's tables
    return lambda case: measured(case.key["name"])


BENCHMARK = Benchmark(
    cases, begin,
    columns=(
        ("program", "name"), ("calls",), ("text",), ("types",), ("gradient",),
        ("distance", None, ".1e"),
        *((f"{what} ms", f"seconds.{what}", ".0f", 1e3) for what in ("read", "infer", "lower")),
        ("reason",),
    ),
)  # fmt: skip
