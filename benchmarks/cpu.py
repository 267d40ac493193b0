"""The CPU kernels against PyTorch (oneDNN) on the convolutions of known networks.

    python -m benchmarks.cpu [--suite resnet50,vgg16] [--quick] [--kinds wgrad]
                             [--layouts NHWC,NCHW] [--batch 8] [--threads N] [--no-winograd]
                             [--stock] [--json FILE [--resume] [--time-budget SECONDS]]

Float32.  For each layer and each of fprop, dgrad and wgrad: our time, PyTorch's (the better of
contiguous and channels_last tensors), their ratio (below 1: ours is faster), GFLOP/s, and the
fraction of two ceilings measured in the same run: the rate of multiply-adds in registers, and the
bandwidth of a copy.  All take turns in one process with the same number of threads, the shortest
time of some rounds counts, and every timed result is checked.  The last line has the geometric
means of the ratios over layers and the worst ratio.

`--quick`: the layers of each suite that take a twentieth of its work or more, and fewer rounds.
`--resume`: rows that FILE has already are kept.  `--time-budget`: no new layer after so many
seconds; call again with `--resume` for the rest.  `--stock`: TVM's stock composite for wgrad too.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import tvm
import tvm_ffi
from rich.console import Console
from rich.table import Table

from benchmarks.cpu_stock import composite
from benchmarks.cpu_timing import best, cpu_model
from benchmarks.gpu_timing import by_torch
from benchmarks.kept import Rows, add_options
from legalize import cpu
from legalize.cpu.roofline import ceilings
from relay_wgrad.cores import configure_threads
from relay_wgrad.layouts import ACTIVATION, KERNEL, permutation
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.layers import LAYOUTS, SUITES, Layer, suite
from tests.support.problems import poisoned, random_operands, relative_error, tolerance

Row = dict[str, Any]
# Two kernels' sums against each other, and Winograd's transforms, which lose a digit.
_SLACK, _WINOGRAD = 3, 1e-5


def measure(layer: Layer, problem: ConvProblem, rounds: int, target: tvm.target.Target) -> Row:
    """Times of one problem of a layer, ours and PyTorch's, and whether the results agree."""
    a, b = random_operands(problem, np.random.default_rng(0))
    result = problem.roles[2]
    start = time.perf_counter()
    function = cpu.prim_func(problem, target)
    kernel = tvm.compile(function, target=target)["main"]
    compiled = time.perf_counter() - start
    operands = tvm.runtime.tensor(a), tvm.runtime.tensor(b)
    out = tvm.runtime.tensor(poisoned(problem))
    kernel(*operands, out)
    arrays = {
        **dict(zip(problem.roles[:2], (a, b), strict=True)),
        result: np.empty_like(out.numpy()),
    }
    theirs = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        tensors = {
            role: torch.from_numpy(_canonical(problem, role, x)).contiguous(
                memory_format=memory_format
            )
            for role, x in arrays.items()
        }
        theirs.append(by_torch(problem, tensors, layer.transposed))
    want = theirs[0]().contiguous().numpy()
    error = relative_error(_canonical(problem, result, out.numpy()), want.astype(np.float64))
    ours, *others = best([lambda: kernel(*operands, out), *theirs], rounds)
    return {
        "ok": error <= _SLACK * tolerance(problem) + _WINOGRAD,
        "error": error,
        "compile_s": compiled,
        "extra_bytes": extra_bytes(function),
        "ms": ours * 1e3,
        "torch_ms": min(others) * 1e3,
        "ratio": ours / min(others),
        "gflops": problem.flop / ours / 1e9,
        "torch_gflops": problem.flop / min(others) / 1e9,
        "gbytes": problem.bytes / ours / 1e9,
    }


def extra_bytes(function: tvm.tirx.PrimFunc) -> int:
    """Bytes of memory that a kernel takes beyond operands and result, for one thread."""
    total = 0

    def visit(node: tvm.tirx.AllocBuffer) -> None:
        nonlocal total
        if node.buffer.scope() == "global":
            bytes_ = np.dtype(str(node.buffer.dtype)).itemsize
            total += math.prod(int(x) for x in node.buffer.shape) * bytes_

    tvm_ffi.structural_walk(function.body, [(tvm.tirx.AllocBuffer, visit)], order="post")
    return total


def _canonical(problem: ConvProblem, role: str, array: np.ndarray[Any, Any]) -> Any:
    axes = permutation(problem.layout(role), KERNEL if role == "weight" else ACTIVATION)
    return array.transpose(axes)


FIELDS = ("suite", "problem", "threads", "winograd")
"""What tells one row from another."""


def chosen(args: argparse.Namespace) -> list[tuple[str, Layer, ConvProblem]]:
    """(suite, layer, problem) of every row, in the order of the table."""
    found = []
    for name in args.suite.split(","):
        for layout in args.layouts.split(","):
            layers = suite(name, args.batch, "f32", layout, LAYOUTS)
            if args.quick:
                work = [x.count * x.problem.flop for x in layers]
                layers = [x for x, w in zip(layers, work, strict=True) if w >= sum(work) / 20]
            found += [(name, x, p) for x in layers for p in x.problems(args.kinds.split(","))]
    return found


def summary(rows: Sequence[Row]) -> str:
    """The last line: geometric means of our time over PyTorch's, and the worst."""
    words = []
    for kind in (ConvKind.WGRAD, ConvKind.DGRAD, ConvKind.FPROP):
        ratios = [row["ratio"] for row in rows if row["kind"] == kind.value]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        words.append(f"{kind.value}={mean:.3f}")
    worst = max(row["ratio"] for row in rows) if rows else math.nan
    return " ".join(["geomean_ratio", *words, f"worst={worst:.3f}"])


def print_tables(rows: Sequence[Row], machine: Row, console: Console) -> None:
    for name in dict.fromkeys(row["suite"] for row in rows):
        table = Table(title=f"{name}, batch {rows[0]['batch']}, {rows[0]['threads']} threads")
        for column in (
            "layer", "kind", "layout", "times", "ms", "PyTorch", "ratio", "GFLOP/s", "FMA", "mem",
            "ok",
        ):  # fmt: skip
            table.add_column(column, justify="left" if column in ("layer", "kind") else "right")
        mine = [row for row in rows if row["suite"] == name]
        for row in mine:
            table.add_row(
                row["layer"], row["kind"], row["layout"], str(row["count"]), f"{row['ms']:.2f}",
                f"{row['torch_ms']:.2f}", f"{row['ratio']:.2f}", f"{row['gflops']:.0f}",
                f"{row['gflops'] / machine['fma_gflops']:.2f}",
                f"{row['gbytes'] / machine['copy_gbytes']:.2f}", "yes" if row["ok"] else "NO",
            )  # fmt: skip
        console.print(table)
        most = max(mine, key=lambda row: row["extra_bytes"])
        console.print(
            f"{name}: at most {most['extra_bytes'] / 2**20:.1f} MiB beyond operands and result, by"
            f" {most['kind']} of {most['layer']}"
        )
        for kind in dict.fromkeys(row["kind"] for row in mine):
            ours, theirs = (
                sum(row[x] * row["count"] for row in mine if row["kind"] == kind)
                for x in ("ms", "torch_ms")
            )
            console.print(
                f"{name} {kind}, all layers as often as they occur: {ours:.1f} ms, PyTorch"
                f" {theirs:.1f} ms, ratio {ours / theirs:.2f}"
            )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--suite", default=",".join(SUITES))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--kinds", default="fprop,dgrad,wgrad")
    parser.add_argument("--layouts", default="NHWC")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--no-winograd", action="store_true")
    parser.add_argument("--stock", action="store_true")
    add_options(parser)
    args = parser.parse_args(argv)
    for what, names, known in (
        ("suite", args.suite, SUITES), ("kind", args.kinds, [x.value for x in ConvKind]),
        ("layout", args.layouts, LAYOUTS),
    ):  # fmt: skip
        for name in names.split(","):
            if name not in known:
                parser.error(f"{what} {name!r}: expected some of {', '.join(known)}")
    if args.threads:
        os.environ["TVM_NUM_THREADS"] = str(args.threads)
    threads = configure_threads()
    torch.set_num_threads(threads)
    target = cpu.host_target(threads, allow_winograd=not args.no_winograd)
    console = Console(width=110)
    most = ceilings(target, threads)
    machine = {
        "cpu": cpu_model(), "date": datetime.date.today().isoformat(), "threads": threads,
        "fma_gflops": most.flops / 1e9, "copy_gbytes": most.bytes / 1e9,
        "torch": torch.__version__, "tvm": tvm.__version__, "target": str(target),
    }  # fmt: skip
    console.print(
        f"{machine['cpu']}; {threads} threads, {machine['fma_gflops']:.0f} GFLOP/s of multiply-adds"
        f" in registers, {machine['copy_gbytes']:.1f} GB/s in a copy; PyTorch {torch.__version__}"
    )
    rounds = args.rounds or (3 if args.quick else 5)
    rows = Rows(parser, args, FIELDS, {"machine": machine})
    problems = {
        (name, problem.repro(), threads, not args.no_winograd): (layer, problem)
        for name, layer, problem in chosen(args)
    }

    def measured(*key: Any) -> Row:
        layer, problem = problems[key]
        return {
            **dict(zip(FIELDS, key, strict=True)), "layer": layer.name, "count": layer.count,
            "kind": problem.kind.value, "layout": problem.data_layout, "batch": args.batch,
            **measure(layer, problem, rounds, target),
        }  # fmt: skip

    rows.measure(problems, measured)
    wanted = rows.of(problems)
    print_tables(wanted, machine, console)
    stock = [composite(x, target) for x in wanted if args.stock and x["kind"] == "wgrad"]
    for line in stock:
        console.print(
            f"stock composite, one image, {line['gflops']:.2f} GFLOP/s: {line['problem']}"
        )
    if len(wanted) < len(problems):
        console.print(f"{len(problems) - len(wanted)} rows are left: run again with --resume")
    console.print(summary(wanted))
    return 0 if all(row["ok"] for row in [*wanted, *stock]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
