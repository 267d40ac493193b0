"""Depthwise kernels in equal shares beside those that are chosen without them, in one run.

    python -m benchmarks.gpu_depthwise_shares [--suites b0,convnext] [--kinds fprop,dgrad,wgrad]
                                              [--dtype f16] [--batch 64] [--tries 6]
                                              [--time-budget SECONDS] [--json FILE]

Of each problem with strides of 1: the kernel that is chosen, the best other one on tensor cores,
and `tries` of `depthwise_shares`.  The fastest new one is compared with float64 (`gpu_timing`), all
others with its result, each on operands of its own and a result that was NaN before.  Times are
medians of rounds in which all kernels take turns; the chosen one is timed first and last.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_cases import Case
from benchmarks.gpu_depthwise import LARGE, SUITES, Row, load, rows_of
from benchmarks.gpu_timing import DEVICE, floors, measure, milliseconds, random, relative
from byoc_cudnn.backends.cuda_direct.model import Choice, ranked
from byoc_cudnn.backends.cuda_direct.shares import expected
from relay_wgrad.problem import ConvKind

NEW = "depthwise_shares"
ROUNDS, CALLS, APART = 5, 20, 3e-3  # APART: two kernels' results, in norm


def choices_of(row: Row, tries: int) -> list[Choice]:
    """The chosen one, another old one on tensor cores, and new ones as they are expected."""
    all_ = ranked(row.problem, (), 90)
    old = [c for c in all_ if c.kernel.family not in (NEW, "depthwise_any")]
    bands = [c for c in old[1:] if c.kernel.family == "depthwise_bands"][:1]
    new = [c.kernel for c in all_ if c.kernel.family == NEW]
    said = sorted((expected(row.problem, k.numbers), k.name, k) for k in new)
    # The best of each width, and of each number of steps together, then the others.
    first: dict[tuple[int, int], str] = {}
    for _, name, k in said:
        first.setdefault((k.numbers[0], k.numbers[-1]), name)
    said.sort(key=lambda one: (one[1] not in first.values(), one[0]))
    return [old[0], *bands, *(Choice(k, us) for us, _, k in said[:tries])]


def timed(row: Row, functions: Sequence[Any]) -> list[float]:
    """Microseconds of each; the first one's again at the end."""
    p, generator = row.problem, torch.Generator(DEVICE).manual_seed(0)
    sets = max(2, min(8, math.ceil(2e8 / p.bytes)))
    tensors = [[random(p, role, generator) for role in p.roles] for _ in range(sets)]
    every = [*functions, functions[0]]
    calls = [[lambda t=t, f=f: f(*t) for t in tensors] for f in every]
    times: list[list[float]] = [[] for _ in every]
    for turn in range(ROUNDS + 1):
        for i, some in enumerate(calls):
            torch.cuda._sleep(1_500_000)
            us = 1e3 * milliseconds(some, CALLS if turn else 2)
            times[i] += [us] if turn else []
    return [statistics.median(some) for some in times]


def apart(row: Row, functions: Sequence[Any], best: int) -> list[float]:
    """How far each one's result is from the best one's."""
    p, generator = row.problem, torch.Generator(DEVICE).manual_seed(1)
    a, b = (random(p, role, generator) for role in p.roles[:2])
    dtype = getattr(torch, p.dtype(p.roles[2]))

    def result(function: Any) -> torch.Tensor:
        out = torch.full(p.shape(p.roles[2]), math.nan, device=DEVICE, dtype=dtype)
        function(a, b, out)
        torch.cuda.synchronize()
        return out

    want = result(functions[best])
    return [relative(result(f), want) for f in functions]


def measured(row: Row, index: int, module: Any, mode: str) -> None:
    functions = [module[f"f{index}_{j}"] for j in range(len(row.choices))]
    us = timed(row, functions)
    new = [i for i, c in enumerate(row.choices) if c.kernel.family == NEW]
    best = min(new, key=us.__getitem__)
    far = apart(row, functions, best)
    row.found = measure(
        Case(row.name, mode, row.problem, False, f"f{index}_{best}"), functions[best], 0
    )
    row.found |= {
        "us": us[:-1], "again_us": us[-1], "best": best, "apart": far, "new": new,
        "kernels": [c.kernel.name for c in row.choices],
        "predicted_us": [c.us for c in row.choices],
    }  # fmt: skip
    if not max(far) <= APART:
        wrong = [row.short(row.choices[i].kernel.name) for i, x in enumerate(far) if not x <= APART]
        row.found["reason"] = f"results apart: {' '.join(wrong)}"


def _mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def print_rows(rows: Sequence[Row], bandwidth: float) -> None:
    print("us: floor, old (again), best new, PyTorch's; of floor old > new; kernels us(expected)")
    for row in sorted(rows, key=lambda row: (row.problem.kind.value, -row.problem.bytes)):
        f, p = row.found, row.problem
        floor, old = p.bytes / bandwidth * 1e6, min(f["us"][: f["new"][0]])
        new = f["us"][f["best"]]
        names = " ".join(
            f"{row.short(name)}={us:.1f}({said:.0f})"
            for name, us, said in zip(f["kernels"], f["us"], f["predicted_us"], strict=True)
        )
        print(
            f"{p.kind.value} {p.r}x{p.s} {p.c}ch {p.h}² {floor:.1f} {old:.1f}"
            f" ({f['us'][0]:.1f}/{f['again_us']:.1f}) {new:.1f}|{f['seconds'] * 1e6:.1f}"
            f" {f['torch_seconds'] * 1e6:.1f} {floor / old:.2f}>{floor / new:.2f}"
            f" {f['error']:.0e} {names} {f.get('reason', '')}"
        )
    print(f"copy {bandwidth / 1e12:.2f} TB/s; means, of old ones' time the better one's:")
    for large in (True, False):
        for kind in ConvKind:
            some = [
                r.found for r in rows
                if r.problem.kind is kind and (r.problem.bytes >= LARGE) is large
            ]  # fmt: skip
            ratios = [f["us"][f["best"]] / min(f["us"][: f["new"][0]]) for f in some]
            kept = [min(1.0, ratio) for ratio in ratios]
            if ratios:
                print(
                    f"{kind.value} {'large' if large else 'small'} {len(some)}: new/old"
                    f" {_mean(ratios):.3f}, the faster of both {_mean(kept):.3f}"
                )
    wrong = [f"{r.name}: {r.found['reason']}" for r in rows if "reason" in r.found]
    print(f"{len(rows)} problems, wrong: {'; '.join(wrong) or 'none'}")


def main(argv: Sequence[str] | None = None) -> int:
    """The number of problems with wrong results."""
    begin = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suites", default="b0,convnext")
    parser.add_argument("--kinds", default="fprop,dgrad,wgrad")
    parser.add_argument("--dtype", default="f16")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tries", type=int, default=6)
    parser.add_argument("--time-budget", type=float, default=math.inf)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if unknown := set(args.suites.split(",")) - set(SUITES):
        parser.error(f"--suites: {', '.join(sorted(unknown))} is none of {', '.join(SUITES)}")
    rows = [
        row
        for row in rows_of(args.suites.split(","), args.kinds.split(","), args.dtype, args.batch, 1)
        if row.problem.strides == (1, 1)
    ]
    rows.sort(key=lambda row: -row.problem.bytes)
    for row in rows:
        row.choices = choices_of(row, args.tries)
    bandwidth = float(floors([])["bandwidth"])
    done: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        module = load(rows, Path(folder))
        print(f"built {sum(len(r.choices) for r in rows)}: {time.perf_counter() - begin:.0f} s")
        for i, row in enumerate(rows):
            if time.perf_counter() - begin > args.time_budget:
                print(f"time is up: {len(rows) - i} problems are left out")
                break
            measured(row, i, module, args.dtype)
            done.append(row)
            if args.json:
                values = [{"problem": r.problem.repro(), **r.found} for r in done]
                args.json.write_text(json.dumps({"bandwidth": bandwidth, "rows": values}, indent=1))
    print_rows(done, bandwidth)
    print(f"{time.perf_counter() - begin:.0f} s")
    return sum("reason" in row.found for row in done)


if __name__ == "__main__":
    raise SystemExit(main())
