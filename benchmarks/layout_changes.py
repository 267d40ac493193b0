"""Layout changes left in gradients, and the time to get there: the stock pass and ours.

For the nine architectures that `onnx` ships, for two networks that Relay 0.19 converted too (the
gradient of every parameter, the image among them), and for chains of convolutions with bias, ReLU
and residuals.  "stock" is `relax.transform.ConvertLayout` with the family named and only the
family's rules registered, "stock + rules" the same with the rules that `register()` adds for other
ops.  On chains the stock pass is left out where it would take longer than the limit.  Nothing is
compiled.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Op

import relay_wgrad
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad import opdef
from relay_wgrad.frontend import BUNDLED, from_onnx
from relay_wgrad.layout_rules.stock import ADDED
from relay_wgrad.registry import LEVEL
from relay_wgrad.transform import ConvertLayout, count_reasons, grad, layout_changes
from relay_wgrad.transform.layout.report import REASONS
from tests.support.layout_cases import chain
from tests.support.relay.fixtures import layout_transforms
from tests.support.relay.networks import NETWORKS, relay_network

CHANNELS_LAST = {
    "relax.nn.conv2d": ["NHWC", "OHWI"],
    "relax.nn.conv2d_transpose": ["NHWC", "IHWO"],
    "relax.nn.conv2d_backward_weight": ["NHWC", "OHWI"],
    "relax.nn.conv2d_backward_data": ["NHWC", "OHWI"],
}
ADJOINT = "main_adjoint"
DEPTHS = (50, 100, 200, 400, 700, 1000)
GROWTH = 2.0  # of the stock pass's time with the length of the program, to predict the next


@contextmanager
def without_added_rules() -> Iterator[None]:
    """Upstream's ops with upstream's rules only."""
    rules = {name: Op.get(name).get_attr(opdef.INFER_LAYOUT) for name in ADDED}
    for name in rules:
        Op.get(name).reset_attr(opdef.INFER_LAYOUT)
    try:
        yield
    finally:
        for name, rule in rules.items():
            tvm.ir.register_op_attr(name, opdef.INFER_LAYOUT, rule, LEVEL)


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    """What is made, and the CPU seconds: passes run on one thread, and other work disturbs less."""
    start = time.process_time()
    made = make()
    return made, time.process_time() - start


def best(make: Callable[[], Any]) -> tuple[Any, float]:
    """The same, the best of three: other work on the machine only ever adds."""
    runs = [timed(make) for _ in range(3)]
    return runs[0][0], min(seconds for _, seconds in runs)


class Stock:
    """The stock pass; given a limit, until it would get slower than that."""

    def __init__(self, limit: float = float("inf")) -> None:
        self.limit = limit
        self.last = (0.0, 1)  # seconds, length

    def __call__(self, module: tvm.IRModule, length: int) -> dict[str, Any]:
        """Counts and seconds, or nothing where it would pass the limit."""
        seconds, before = self.last
        if seconds * (length / before) ** GROWTH > self.limit:
            return {}
        alone = tvm.IRModule({ADJOINT: module[ADJOINT]})
        convert = relax.transform.ConvertLayout(CHANNELS_LAST)
        with without_added_rules():
            bare = convert(alone)
        ruled, seconds = timed(lambda: convert(alone))
        self.last = (seconds, length)
        original = module[ADJOINT]
        return {
            "stock": len(layout_changes(bare[ADJOINT], original)),
            "stock_with_rules": len(layout_changes(ruled[ADJOINT], original)),
            "stock_between": count_reasons(layout_changes(ruled[ADJOINT], original))["between"],
            "stock_seconds": seconds,
        }


def measure(
    name: str, module: tvm.IRModule, wrt: Sequence[str] | None, stock: Stock
) -> dict[str, Any]:
    convert = ConvertLayout("NHWC", functions=[ADJOINT])
    adjoint, grad_seconds = best(lambda: grad(module, "main", wrt=wrt))
    after, seconds = best(lambda: convert(adjoint))
    relax.analysis.well_formed(after)
    before = adjoint[ADJOINT]
    changes = layout_changes(after[ADJOINT], before)
    length = len(before.body.blocks[0].bindings)
    kept = ConvertLayout("NHWC", functions=[ADJOINT], params="convert")(adjoint)
    return {
        "name": name,
        "bindings": length,
        "grad_seconds": grad_seconds,
        "seconds": seconds,
        "left": len(changes),
        "reasons": dict(count_reasons(changes)),
        "left_with_converted_parameters": len(layout_changes(kept[ADJOINT], before)),
        **stock(adjoint, length),
    }


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """p of the least-squares fit seconds ~ size**p."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for name in NETWORKS if "relay" in args.suite else ():
        yield Case({"name": name}, lambda n=name: {
            **measure(n, relay_network(n), None, Stock()),
            "relay": layout_transforms(f"{n}_grad_nhwc"),
        })  # fmt: skip
    for name in BUNDLED if "onnx" in args.suite else ():
        yield Case({"name": name}, lambda n=name: _of_onnx(n))
    stock = Stock(args.limit)
    for depth in map(int, args.depths) if "chains" in args.suite else ():
        name = f"{depth} convolutions"
        yield Case({"name": name}, lambda n=name, d=depth: {
            "depth": d, **measure(n, chain(d), None, stock)
        })  # fmt: skip


def _of_onnx(name: str) -> Row:
    graph = from_onnx(name)
    return measure(name, graph.module, graph.trainable, Stock())


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    measure("warm-up", chain(5), None, Stock())
    return lambda case: case.what()


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """How times grow with the depth of chains, and what the reasons mean."""
    for key in ("grad_seconds", "seconds", "stock_seconds"):
        known = [(row["depth"], row[key]) for row in rows if "depth" in row and key in row]
        if len(known) > 1:
            yield f"{key} ~ depth ** {exponent(*zip(*known, strict=True)):.2f}"
    for reason in REASONS:
        if any(reason in row["reasons"] for row in rows):
            yield f"{reason}: {REASONS[reason]}"


BENCHMARK = Benchmark(
    cases, begin, suites=("relay", "onnx", "chains"), summary=summary,
    options={
        "depths": Option(tuple(map(str, DEPTHS)), "convolutions of a chain"),
        "limit": Option(20.0, "seconds for the stock pass on a chain"),
    },
    columns=(
        ("", "name"), ("bindings",), ("Relay 0.19", "relay"), ("stock",),
        ("stock + rules", "stock_with_rules"), ("ours", "left"),
        *((reason, f"reasons.{reason}") for reason in REASONS),
        ("params kept in NHWC", "left_with_converted_parameters"),
        ("grad s", "grad_seconds", ".2f"), ("ours s", "seconds", ".2f"),
        ("stock s", "stock_seconds", ".2f"), ("reason",),
    ),
)  # fmt: skip
