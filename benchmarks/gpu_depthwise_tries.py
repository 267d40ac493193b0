"""Depthwise kernels of all families beside each other, of problems that were measured before.

    python -m benchmarks.gpu_depthwise_tries FILE... [--above 0.93] [--near 1.25] [--tries 4]
                                             [--time-budget SECONDS] [--json FILE]

Of the files (`benchmarks/results/gpu_depthwise*.json`) the problems in which ours took more than
`above` of PyTorch's time, or which now get another kernel: of each family, width and strip the
first kernel that is expected to take less than `near` times what the best one is, at most `tries`,
and the fastest one that the file has.  Times are medians of rounds in which all take turns;
results are compared with the first one's, each in memory that was NaN before.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_depthwise import Row, load, quick
from benchmarks.gpu_timing import DEVICE, random, relative
from byoc_cudnn.backends.cuda_direct.kernels import PREFIX, Kernel
from byoc_cudnn.backends.cuda_direct.model import Choice, ranked
from relay_wgrad.problem import ConvKind, ConvProblem

CALLS, APART = 20, 3e-3  # APART: two kernels' results, in norm


def kind_of(kernel: Kernel) -> tuple[Any, ...]:
    """What kernels that are tried differ in."""
    strip = kernel.family in ("depthwise_rows", "depthwise_sums")
    return (kernel.family, kernel.numbers[:1], kernel.numbers[-4:-3] if strip else ())


def choices_of(problem: ConvProblem, was: str, tries: int, near: float) -> list[Choice]:
    """The first of each kind, and the one that was measured."""
    all_ = ranked(problem, (), 90)
    first: dict[tuple[Any, ...], Choice] = {}
    for choice in all_:
        if choice.us <= near * all_[0].us and choice.kernel.numbers:
            first.setdefault(kind_of(choice.kernel), choice)
    found = list(first.values())[:tries]
    known = [choice for choice in all_ if choice.kernel.name == was and choice not in found]
    return found + known


def rows_of(files: Sequence[Path], above: float, tries: int, near: float) -> list[Row]:
    """dgrad with a stride of one is left out: its kernels are fprop's."""
    rows = []
    for value in (row for file in files for row in json.loads(file.read_text())["rows"]):
        p = ConvProblem.parse(value["problem"])
        if p.kind is ConvKind.DGRAD and p.strides == (1, 1):
            continue
        was = f"{PREFIX}_{min(value['kernels'], key=lambda one: one[1])[0]}"
        row = Row(p, choices_of(p, was, tries, near))
        if value["us"] > above * value["torch_us"] or row.choices[0].kernel.name != was:
            row.found = {"before_us": value["us"], "torch_us": value["torch_us"]}
            rows.append(row)
    return rows


def apart(row: Row, functions: Sequence[Any]) -> list[float]:
    """How far each one's result is from the first one's."""
    p, generator = row.problem, torch.Generator(DEVICE).manual_seed(1)
    a, b = (random(p, role, generator) for role in p.roles[:2])
    dtype = getattr(torch, p.dtype(p.roles[2]))

    def result(function: Any) -> torch.Tensor:
        out = torch.full(p.shape(p.roles[2]), math.nan, device=DEVICE, dtype=dtype)
        function(a, b, out)
        torch.cuda.synchronize()
        return out

    want = result(functions[0])
    return [relative(result(f), want) for f in functions]


def measured(row: Row, index: int, module: Any) -> None:
    functions = [module[f"f{index}_{j}"] for j in range(len(row.choices))]
    row.found |= {
        "us": quick(row, functions, CALLS), "apart": apart(row, functions),
        "kernels": [c.kernel.name for c in row.choices],
        "predicted_us": [c.us for c in row.choices],
    }  # fmt: skip


def print_rows(rows: Sequence[Row]) -> None:
    print("µs: before, PyTorch's; our kernels' times and what was expected; * where results differ")
    for row in rows:
        f = row.found
        names = " ".join(
            f"{row.short(name)}={us:.1f}({said:.0f}){'' if far <= APART else '*'}"
            for name, us, said, far in zip(
                f["kernels"], f["us"], f["predicted_us"], f["apart"], strict=True
            )
        )
        print(f"{row.name} of {row.problem.n}: {f['before_us']:.1f} {f['torch_us']:.1f} {names}")
    lost = [row.found["us"][0] / min(row.found["us"]) for row in rows]
    took = [sum(pick(row.found["us"]) for row in rows) for pick in (lambda us: us[0], min)]
    if rows:
        print(
            f"the first choice: {sum(x <= 1.05 for x in lost)} of {len(rows)} within 5 % of the"
            f" best, worst {max(lost):.2f}; all together {took[0] / took[1]:.3f}"
        )
    wrong = [row.name for row in rows if not max(row.found["apart"]) <= APART]
    print(f"{len(rows)} problems, results apart: {', '.join(wrong) or 'none'}")


def main(argv: Sequence[str] | None = None) -> int:
    """The number of problems in which results differ."""
    begin = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--above", type=float, default=0.93)
    parser.add_argument("--near", type=float, default=1.25)
    parser.add_argument("--tries", type=int, default=4)
    parser.add_argument("--time-budget", type=float, default=math.inf)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    rows = rows_of(args.files, args.above, args.tries, args.near)
    rows.sort(key=lambda row: -row.problem.bytes / row.problem.n)
    done: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        module = load(rows, Path(folder))
        print(f"built {sum(len(r.choices) for r in rows)}: {time.perf_counter() - begin:.0f} s")
        for i, row in enumerate(rows):
            if time.perf_counter() - begin > args.time_budget:
                print(f"time is up: {len(rows) - i} problems are left out")
                break
            measured(row, i, module)
            done.append(row)
    if args.json:
        values = [{"problem": r.problem.repro(), **r.found} for r in done]
        args.json.write_text(json.dumps({"rows": values}, indent=1))
    print_rows(done)
    print(f"{time.perf_counter() - begin:.0f} s")
    return sum(not max(row.found["apart"]) <= APART for row in done)


if __name__ == "__main__":
    raise SystemExit(main())
