"""Depthwise convolutions by our own kernels, PyTorch's beside them in the same run.

    python -m benchmarks.gpu_depthwise [--suites mobilenetv2,b0,b4,convnext] [--dtype f16]
                                       [--batch 64] [--kinds fprop,dgrad,wgrad] [--tries 2]
                                       [--time-budget SECONDS] [--json FILE]

PyTorch's are channels_last with `cudnn.benchmark`.  Operands take turns among sets that are larger
than the cache, results are compared with float64, times are medians of rounds by events.  `tries`:
how many of our kernels are timed for a problem, those of different widths that the model ranks
highest; the row has the fastest, `model` says which of them the model would have taken.  "floor" is
each tensor moved once at the rate of a copy, "of floor" the floor's share of our time; means are
over tensors of 20 MB or more.  What `json` has from a run before is not measured again.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import tvm_ffi

from benchmarks.gpu_cases import Case
from benchmarks.gpu_timing import floors, in_turns, measure, random
from byoc_cudnn.backends.cuda_direct.codegen import generate
from byoc_cudnn.backends.cuda_direct.depthwise import strip_of
from byoc_cudnn.backends.cuda_direct.kernels import Kernel
from byoc_cudnn.backends.cuda_direct.model import Choice, ranked
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind, ConvProblem

# suite -> (channels, side, taps, stride)
SUITES: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "mobilenetv2": (
        (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 3, 2), (192, 28, 3, 1),
        (192, 28, 3, 2), (384, 14, 3, 1), (576, 14, 3, 1), (576, 14, 3, 2), (960, 7, 3, 1),
    ),
    "b0": (
        (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 5, 2), (240, 28, 5, 1),
        (240, 28, 3, 2), (480, 14, 3, 1), (480, 14, 5, 1), (672, 14, 5, 1), (672, 14, 5, 2),
        (1152, 7, 5, 1), (1152, 7, 3, 1),
    ),
    "b4": (
        (48, 190, 3, 1), (24, 190, 3, 1), (144, 190, 3, 2), (192, 95, 3, 1), (192, 95, 5, 2),
        (336, 48, 5, 1), (336, 48, 3, 2), (672, 24, 3, 1), (672, 24, 5, 1), (960, 24, 5, 1),
        (960, 24, 5, 2), (1632, 12, 5, 1), (1632, 12, 3, 1), (2688, 12, 3, 1),
    ),
    "convnext": ((96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (768, 7, 7, 1)),
}  # fmt: skip
LARGE = 20e6  # bytes
FULL = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


@dataclass
class Row:
    """A problem, its kernels and what was measured."""

    problem: ConvProblem
    choices: list[Choice]
    suites: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        p = self.problem
        return f"{p.kind.value} {p.r}x{p.s}/{p.strides[0]} {p.c}ch {p.h}²"

    def short(self, name: str) -> str:
        """Of a kernel's numbers the first, and where there are more, of columns and the last."""
        numbers = name.split("_n")[-1].split("x")
        for family in ("bands", "shares"):
            if f"_{family}_" in name:
                return family[0] + "x".join([numbers[0], *numbers[-4:]])
        return "x".join([*numbers[:1], *numbers[-4:-3], *numbers[-1:]])


def different(choices: Sequence[Choice], most: int) -> list[Choice]:
    """The first of each family and tile, at most so many, and of a family half of those."""
    found: dict[tuple[Any, ...], Choice] = {}
    for choice in choices:
        kernel = choice.kernel
        found.setdefault((kernel.family, kernel.numbers[:1], kernel.numbers[-4:]), choice)
    families: dict[str, list[Choice]] = {}
    for choice in found.values():
        if choice.kernel.family != "depthwise_any":
            families.setdefault(choice.kernel.family, []).append(choice)
    each = most if len(families) < 2 else -(-most // 2)
    kept = [choice for some in families.values() for choice in some[:each]] or list(found.values())
    return sorted(kept, key=lambda choice: choice.us)[:most]


def rows_of(
    suites: Iterable[str], kinds: Iterable[str], dtype: str, batch: int, tries: int
) -> list[Row]:
    """Each problem once."""
    rows: dict[str, Row] = {}
    for suite in suites:
        for c, side, taps, stride in SUITES[suite]:
            pad = taps // 2
            for kind in kinds:
                p = ConvProblem(
                    ConvKind(kind), batch, c, side, side, c, taps, taps, (stride,) * 2, (pad,) * 4,
                    groups=c, data_layout="NHWC", kernel_layout="OHWI", grad_layout="NHWC",
                    data_dtype=FULL[dtype], weight_dtype=FULL[dtype], grad_dtype=FULL[dtype],
                ).check()  # fmt: skip
                row = rows.setdefault(p.repro(), Row(p, different(ranked(p, (), 90), tries)))
                row.suites.append(suite)
    return list(rows.values())


def regions_of(rows: Sequence[Row]) -> list[Region]:
    """A region for each kernel to try."""
    return [
        Region.of(f"f{i}_{j}", row.problem, kernel=choice.kernel.name, arch=90)
        for i, row in enumerate(rows)
        for j, choice in enumerate(row.choices)
    ]


def load(rows: Sequence[Row], folder: Path) -> Any:
    source, library = folder / "regions.cc", folder / "regions.so"
    source.write_text(generate(regions_of(rows)), encoding="utf-8")
    subprocess.run(library_command(source, library), check=True)
    return tvm_ffi.load_module(str(library))


def quick(row: Row, functions: Sequence[Any], count: int = 10) -> list[float]:
    """Microseconds of each kernel, in turns, on operands that take turns; of `count` calls."""
    p, generator = row.problem, torch.Generator("cuda").manual_seed(0)
    sets = max(1, min(8, math.ceil(2e8 / p.bytes)))
    tensors = [[random(p, role, generator) for role in p.roles] for _ in range(sets)]
    calls = {str(i): [lambda t=t, f=f: f(*t) for t in tensors] for i, f in enumerate(functions)}
    return [1e6 * seconds for seconds in in_turns(calls, count).values()]


def measured(row: Row, index: int, module: Any, mode: str) -> None:
    functions = [module[f"f{index}_{j}"] for j in range(len(row.choices))]
    times = quick(row, functions)
    best = min(range(len(times)), key=times.__getitem__)
    case = Case(row.name, mode, row.problem, False, f"f{index}_{best}")
    row.found = measure(case, functions[best], 0)
    row.found |= {
        "quick_us": times, "best": best, "kernels": [c.kernel.name for c in row.choices],
        "predicted_us": [c.us for c in row.choices],
        "work": [_work(row.problem, c.kernel) for c in row.choices],
    }  # fmt: skip


def _work(problem: ConvProblem, kernel: Kernel) -> dict[str, Any]:
    """What the model of depthwise kernels counts, to be fitted to other times."""
    if kernel.family not in ("depthwise_rows", "depthwise_sums"):
        return {}
    return asdict(strip_of(problem, kernel.numbers).work())


def _share(row: Row, bandwidth: float) -> float:
    return float(row.problem.bytes / bandwidth / row.found["seconds"])


def _mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def _print_model(rows: Sequence[Row]) -> None:
    """How good its first choices are, and its times."""
    lost, ratios = [], []
    for f in (row.found for row in rows):
        said, took = f["predicted_us"], f["quick_us"]
        lost.append(took[said.index(min(said))] / min(took))
        ratios += [a / b for a, b in zip(said, took, strict=True)]
    if rows:
        near = sum(x <= 1.05 for x in lost)
        rms = math.sqrt(statistics.fmean(math.log(x) ** 2 for x in ratios))
        print(
            f"the model's first choice is within 5 % of the best tried for {near} of {len(rows)},"
            f" mean {_mean(lost):.3f}, worst {max(lost):.2f}; its times are {_mean(ratios):.2f} of"
            f" those measured, rms {rms:.2f}"
        )


def print_rows(rows: Sequence[Row], bandwidth: float) -> None:
    print("µs: floor, ours, PyTorch's; of floor; error; our kernels' times and what was expected")
    for row in rows:
        f, p = row.found, row.problem
        short = "" if p.bytes >= LARGE else " small"
        names = " ".join(
            f"{row.short(name)}={us:.0f}({said:.0f})"
            for name, us, said in zip(f["kernels"], f["quick_us"], f["predicted_us"], strict=True)
        )
        print(
            f"{row.name:24} {p.bytes / bandwidth * 1e6:4.0f} {f['seconds'] * 1e6:6.1f}"
            f" {f['torch_seconds'] * 1e6:6.1f} {_share(row, bandwidth):.2f}"
            f" {f['error']:.0e} {names}{short} {f.get('reason', '')}"
        )
    print(f"copy {bandwidth / 1e12:.2f} TB/s; means over tensors of {LARGE / 1e6:.0f} MB or more:")
    suites = dict.fromkeys(suite for row in rows for suite in row.suites)
    for suite in (*suites, "all"):
        for kind in (*dict.fromkeys(row.problem.kind for row in rows), None):
            some = [
                row
                for row in rows
                if row.problem.bytes >= LARGE
                and (suite == "all" or suite in row.suites)
                and (kind is None or row.problem.kind is kind)
            ]
            if not some:
                continue
            ratios = [r.found["seconds"] / r.found["torch_seconds"] for r in some]
            print(
                f"{suite:12} {kind.value if kind else 'together':9} {len(some):3} of floor"
                f" {_mean([_share(r, bandwidth) for r in some]):.2f} of PyTorch's time"
                f" {_mean(ratios):.2f} worst {max(ratios):.2f}"
            )
    _print_model(rows)
    wrong = [row.name for row in rows if "reason" in row.found]
    print(f"{len(rows)} problems, wrong: {', '.join(wrong) or 'none'}")


def _kept(rows: Sequence[Row], file: Path | None) -> list[Row]:
    """The rows that a file has, of the same kernels; they get what was measured."""
    if not file or not file.exists():
        return []
    known = {value["problem"]: value for value in json.loads(file.read_text())["rows"]}
    for row in rows:
        value = known.get(row.problem.repro())
        if value and value["kernels"] == [choice.kernel.name for choice in row.choices]:
            row.found = {k: v for k, v in value.items() if k not in ("problem", "suites")}
    return [row for row in rows if row.found]


def _keep(rows: Sequence[Row], bandwidth: float, file: Path) -> None:
    values = [{"problem": r.problem.repro(), "suites": r.suites, **r.found} for r in rows]
    file.write_text(json.dumps({"bandwidth": bandwidth, "rows": values}, indent=1))


def run(
    argv: Sequence[str] | None, about: str | None, suites: Iterable[str], dtypes: Iterable[str],
    rows_of: Callable[..., list[Row]], order: Callable[[Row], int],
) -> int:  # fmt: skip
    """A command line's benchmark; the number of problems with wrong results.

    rows_of : (suites, kinds, dtype, batch, tries) -> rows.  order : those come first of which it is
    least.
    """
    begin = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suites", default=",".join(suites))
    parser.add_argument("--kinds", default="fprop,dgrad,wgrad")
    parser.add_argument("--dtype", default="f16", help=f"some of {','.join(dtypes)}")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--tries", type=int, default=2)
    parser.add_argument("--time-budget", type=float, default=math.inf)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(argv)
    if unknown := set(args.dtype.split(",")) - set(dtypes):
        parser.error(f"--dtype: {', '.join(sorted(unknown))} is none of {', '.join(dtypes)}")
    modes = {FULL[dtype]: dtype for dtype in args.dtype.split(",")}
    rows = [
        row
        for dtype in modes.values()
        for row in rows_of(
            args.suites.split(","), args.kinds.split(","), dtype, args.batch, args.tries
        )
    ]
    bandwidth = float(floors([])["bandwidth"])
    done = _kept(rows, args.json)
    rows = [row for row in rows if not row.found]
    with tempfile.TemporaryDirectory() as folder:
        module = load(rows, Path(folder)) if rows else None
        print(f"built {len(regions_of(rows))} kernels: {time.perf_counter() - begin:.0f} s")
        for i in sorted(range(len(rows)), key=lambda i: order(rows[i])):
            if time.perf_counter() - begin > args.time_budget:
                print(f"time is up: {sum(not row.found for row in rows)} problems are left out")
                break
            measured(rows[i], i, module, modes[rows[i].problem.data_dtype])
            done.append(rows[i])
            gc.collect()
            if args.json:
                _keep(done, bandwidth, args.json)
    print_rows(done, bandwidth)
    return sum("reason" in row.found for row in done)


def main(argv: Sequence[str] | None = None) -> int:
    """The number of problems with wrong results."""
    # The largest first: those that the means are over.
    return run(argv, __doc__, SUITES, FULL, rows_of, lambda row: -row.problem.bytes)


if __name__ == "__main__":
    raise SystemExit(main())
