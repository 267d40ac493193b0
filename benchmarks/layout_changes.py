"""Layout changes left in gradients, and the time to get there: the stock pass and ours.

    python -m benchmarks.layout_changes [--models NAME,…] [--relay NAME,…] [--depths N,…]
                                        [--limit SECONDS] [--json FILE] [--plot FILE]

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
from rich.console import Console
from rich.table import Table
from tvm import relax
from tvm.ir import Op

import relay_wgrad
from benchmarks.layout_equality import machine
from relay_wgrad import opdef, output
from relay_wgrad.frontend import from_onnx
from relay_wgrad.frontend.onnx.model_source import BUNDLED
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


def show(rows: list[dict[str, Any]], title: str, console: Console) -> None:
    table = Table(title=title)
    shown = [reason for reason in REASONS if any(reason in row["reasons"] for row in rows)]
    for column in ("", "bindings", "Relay 0.19", "stock", "stock + rules", "ours", *shown,
                   "params kept in NHWC", "grad s", "ours s", "stock s"):  # fmt: skip
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        table.add_row(
            row["name"],
            str(row["bindings"]),
            str(row.get("relay", "-")),
            str(row.get("stock", "-")),
            str(row.get("stock_with_rules", "-")),
            str(row["left"]),
            *(str(row["reasons"].get(reason, 0)) for reason in shown),
            str(row["left_with_converted_parameters"]),
            f"{row['grad_seconds']:.2f}",
            f"{row['seconds']:.2f}",
            f"{row['stock_seconds']:.2f}" if "stock_seconds" in row else "-",
        )
    console.print(table)
    for reason in shown:
        console.print(f"  {reason}: {REASONS[reason]}")


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """p of the least-squares fit seconds ~ size**p."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Time by depth on linear scales: gradient and conversion; conversion by either pass."""
    try:
        import matplotlib  # type: ignore[import-not-found]

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError as error:
        raise SystemExit(f"--plot needs matplotlib: {error}") from error
    depths = [row["depth"] for row in rows]
    gradient = [row["grad_seconds"] for row in rows]
    both = [row["grad_seconds"] + row["seconds"] for row in rows]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6))
    # What linear would be: the line from the origin that fits best.  Points above it at the right
    # end, and below it on the left, would be growth faster than that.
    slope = float(np.dot(depths, both) / np.dot(depths, depths))
    left.plot([0, depths[-1]], [0, slope * depths[-1]], ":", color="gray", label="a straight line")
    left.plot(depths, both, "o-", label="gradient and conversion")
    left.plot(depths, gradient, "s-", label="gradient alone")
    for key, label in (("stock_seconds", "stock ConvertLayout"), ("seconds", "ours")):
        known = [(row["depth"], row[key]) for row in rows if key in row]
        right.plot(*zip(*known, strict=True), "o-", label=label)
    right.set_title("conversion alone", fontsize=10)
    left.set_title("relay_wgrad.transform: grad, ConvertLayout", fontsize=10)
    for axes in (left, right):
        axes.set(xlabel="convolutions", ylabel="CPU seconds", xlim=(0, None), ylim=(0, None))
        axes.legend(fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(BUNDLED))
    parser.add_argument("--relay", default=",".join(NETWORKS), metavar="NAMES")
    parser.add_argument("--depths", default=",".join(map(str, DEPTHS)))
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for the stock pass")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--plot", metavar="FILE")
    args = parser.parse_args()
    relay_wgrad.register()
    measure("warm-up", chain(5), None, Stock())
    console = Console(width=180)
    models = []
    for name in filter(None, args.relay.split(",")):
        row = measure(name, relay_network(name), None, Stock())
        models.append({**row, "relay": layout_transforms(f"{name}_grad_nhwc")})
    for name in filter(None, args.models.split(",")):
        graph = from_onnx(name)
        models.append(measure(name, graph.module, graph.trainable, Stock()))
    if models:
        show(models, "Layout changes in gradients, NCHW to NHWC", console)
    depths = [int(depth) for depth in args.depths.split(",") if depth]
    stock = Stock(args.limit)
    chains = [
        {"depth": depth, **measure(f"{depth} convolutions", chain(depth), None, stock)}
        for depth in depths
    ]
    if chains:
        show(chains, "A chain of convolutions", console)
    fits = {}
    if len(chains) > 1:
        for key in ("grad_seconds", "seconds", "stock_seconds"):
            known = [(row["depth"], row[key]) for row in chains if key in row]
            if len(known) > 1:
                fits[key] = exponent(*zip(*known, strict=True))
                console.print(f"{key} ~ depth ** {fits[key]:.2f}")
    if args.json:
        result = {"models": models, "chains": chains, "exponents": fits}
        output.write_json(args.json, {**machine(), **result})
    if args.plot:
        plot(chains, args.plot)


if __name__ == "__main__":
    main()
