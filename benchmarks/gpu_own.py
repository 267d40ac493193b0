"""Convolutions of few channels a group by our own kernels, PyTorch's beside them.

PyTorch's are channels_last with `cudnn.benchmark`.  Operands take turns among sets that are larger
than the cache, results are compared with float64, times are medians of rounds by events.  `tries`:
how many of our kernels are timed for a problem, of depthwise ones those of different widths, of
first layers those whose warps or blocks are of other sizes, as the model ranks them; the row has
the fastest, `model` says which of them the model would have taken.  "floor" is each tensor moved
once at the rate of a copy; means are over tensors of 20 MB or more.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import gpu_cases, gpu_code
from benchmarks.gpu_timing import floors, in_turns, measure, random
from benchmarks.runner import Benchmark, Case, Measure, Option, Row, means
from byoc_cudnn.backends.cuda_direct.check import check
from byoc_cudnn.backends.cuda_direct.codegen import generate
from byoc_cudnn.backends.cuda_direct.depthwise import strip_of
from byoc_cudnn.backends.cuda_direct.first_layer import First
from byoc_cudnn.backends.cuda_direct.kernels import Kernel
from byoc_cudnn.backends.cuda_direct.model import Choice, ranked
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvProblem
from tests.support.layers import suite

SUITES = (
    "mobilenetv2", "efficientnet_b0", "efficientnet_b4", "convnext", "resnext", "regnet", "few",
    "first",
)  # fmt: skip
LARGE = 20e6  # bytes


def cases(args: argparse.Namespace) -> list[Case]:
    """A case for each problem, the largest first, with the kernels to time; suites share some."""
    found: dict[str, Case] = {}
    for name, dtype in itertools.product(args.suite, args.dtypes):
        for layer in suite(name, args.batch, dtype):
            for p in layer.problems(args.kinds):
                if check(p, ""):
                    case = Case({"problem": p.repro()}, (p, tried(p, args.tries), dtype, []))
                    found.setdefault(p.repro(), case).what[-1].append(name)
    return sorted(found.values(), key=lambda case: -case.what[0].bytes)


def tried(p: ConvProblem, most: int) -> list[Choice]:
    """The kernels to time."""
    return different(p, most) if p.groups == p.c == p.k else ranked_ones(p, most)


def ranked_ones(p: ConvProblem, most: int) -> list[Choice]:
    """Of first layers the first of each shape of warps."""
    found: dict[object, Choice] = {}
    for choice in ranked(p, (), 90):
        kernel = choice.kernel
        key: object = kernel.name
        if kernel.family == "first":
            shape = First(*kernel.numbers)
            key = (shape.resident(p.kind), shape.mt, shape.nt)
        found.setdefault(key, choice)
    return list(found.values())[:most]


def different(p: ConvProblem, most: int) -> list[Choice]:
    """The first of each family and tile, at most so many, and of a family half of those."""
    found: dict[tuple[Any, ...], Choice] = {}
    for choice in ranked(p, (), 90):
        kernel = choice.kernel
        found.setdefault((kernel.family, kernel.numbers[:1], kernel.numbers[-4:]), choice)
    families: dict[str, list[Choice]] = {}
    for choice in found.values():
        if choice.kernel.family != "depthwise_any":
            families.setdefault(choice.kernel.family, []).append(choice)
    each = most if len(families) < 2 else -(-most // 2)
    kept = [choice for some in families.values() for choice in some[:each]] or list(found.values())
    return sorted(kept, key=lambda choice: choice.us)[:most]


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    numbers = {case.key["problem"]: i for i, case in enumerate(cases)}
    module = gpu_code.loaded(generate(list(regions(cases))), args.folder / "regions")
    bandwidth = float(floors([])["bandwidth"])
    args.found["bandwidth"] = bandwidth

    def one(case: Case) -> Row:
        p, choices, dtype, suites = case.what
        functions = [module[f"f{numbers[p.repro()]}_{j}"] for j in range(len(choices))]
        times = quick(p, functions)
        best = min(range(len(times)), key=times.__getitem__)
        found = measure(gpu_cases.Case("", dtype, p, False, ""), functions[best], 0)
        gc.collect()
        return {
            "suites": suites, "kind": p.kind.value, "dtype": dtype, "bytes": p.bytes, **found,
            "ratio": found["seconds"] / found["torch_seconds"],
            "share": p.bytes / bandwidth / found["seconds"],
            "quick_us": times, "best": best, "kernels": [c.kernel.name for c in choices],
            "predicted_us": [c.us for c in choices], "work": [_work(p, c.kernel) for c in choices],
        }  # fmt: skip

    return one


def regions(cases: Iterable[Case]) -> Iterator[Region]:
    """A region for each kernel to try."""
    for i, case in enumerate(cases):
        problem, choices, *_ = case.what
        for j, choice in enumerate(choices):
            yield Region.of(f"f{i}_{j}", problem, kernel=choice.kernel.name, arch=90)


def quick(p: ConvProblem, functions: Sequence[Any], count: int = 10) -> list[float]:
    """Microseconds of each kernel, in turns, on operands that take turns; of `count` calls."""
    generator = torch.Generator("cuda").manual_seed(0)
    sets = max(1, min(8, math.ceil(2e8 / p.bytes)))
    tensors = [[random(p, role, generator) for role in p.roles] for _ in range(sets)]
    calls = {str(i): [lambda t=t, f=f: f(*t) for t in tensors] for i, f in enumerate(functions)}
    return [1e6 * seconds for seconds in in_turns(calls, count).values()]


def _work(problem: ConvProblem, kernel: Kernel) -> dict[str, Any]:
    """What the model of depthwise kernels counts, to be fitted to other times."""
    if kernel.family not in ("depthwise_rows", "depthwise_sums"):
        return {}
    return asdict(strip_of(problem, kernel.numbers).work())


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Means over large tensors, by suite and kind, and how good the model's first choices are."""
    large = [row for row in rows if row["bytes"] >= LARGE]
    for name in dict.fromkeys(name for row in large for name in row["suites"]):
        own = [row for row in large if name in row["suites"]]
        share = statistics.geometric_mean(row["share"] for row in own)
        yield f"{name}, {LARGE / 1e6:.0f} MB and more: {share:.2f} of the floor"
        yield from (f"  {line}" for line in means(own, ("kind",)))
    lost, ratios = [], list[float]()
    for row in rows:
        said, took = row["predicted_us"], row["quick_us"]
        lost.append(took[said.index(min(said))] / min(took))
        ratios += [a / b for a, b in zip(said, took, strict=True)]
    if rows:
        rms = math.sqrt(statistics.fmean(math.log(x) ** 2 for x in ratios))
        yield (
            f"the model's first choice is within 5 % of the best tried for"
            f" {sum(x <= 1.05 for x in lost)} of {len(rows)}, worst {max(lost):.2f}; its times are"
            f" {statistics.geometric_mean(ratios):.2f} of those measured, rms {rms:.2f}"
        )


BENCHMARK = Benchmark(
    cases, begin, suites=SUITES, summary=summary, by=("kind",),
    options={
        "dtypes": Option(("f16",), "of the tensors", ("f16", "bf16", "f32")),
        "kinds": Option(("fprop", "dgrad", "wgrad"), "", ("fprop", "dgrad", "wgrad")),
        "batch": Option(64, "images"),
        "tries": Option(2, "kernels to time for a problem"),
    },
    columns=(
        ("problem", lambda row: " ".join(row["problem"].split()[:8])), ("dtype",),
        ("µs", "seconds", ".1f", 1e6), ("PyTorch", "torch_seconds", ".1f", 1e6),
        ("ratio", None, ".2f"), ("of floor", "share", ".2f"), ("error", None, ".0e"),
        ("kernel", lambda row: row["kernels"][row["best"]]), ("reason",),
    ),
)  # fmt: skip
