"""Random problems with epilogues for our own convolution kernels, in processes of their own.

    python3 -m tests.gpu.problems --count 500 [--jobs 14] [--seed 0] [--seconds 400] [--json FILE]
    python3 -m tests.gpu.problems --seed 0 --only fprop_3,dgrad_17

`count` problems of each kind: half are depthwise ones of any layout, dtype, stride, dilation and
multiplier, by any of the families that take them; the others are drawn for one family of those on
tensor cores after another.  Half are run by the kernel that is expected to be fastest, the
others by any.  Results and workspaces begin as NaN, and are compared with PyTorch's in float64;
each runs twice and must give the same bits.  Problems of one kernel go to one process, or to two,
so that few are compiled twice; kind, index and seed make any one again (`--only`).  Exits with 1
where a problem is wrong or a process ends by itself; what `--seconds` left no room for is counted,
and not called right.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from byoc_cudnn.backends.cuda_direct.kernels import PREFIX
from byoc_cudnn.codegen.regions import Region
from relay_wgrad import output
from relay_wgrad.problem import ConvKind
from tests.support import depthwise_cases, grouped_cases
from tests.support.direct_regions import direct_region

CHUNK = 12  # problems of one process
END = "found: "  # begins a process's last line


def problem_of(seed: int, kind: ConvKind, i: int) -> Region:
    """The i-th of a kind."""
    rng = np.random.default_rng((seed, list(ConvKind).index(kind), i))
    families = [name for name, of in grouped_cases.FAMILY_KINDS if of is kind]
    wanted = families[i // 4 % len(families)] if i % 2 else None
    if wanted is None:
        problem, name = depthwise_cases.drawn(rng, kind)
    else:
        problem, name = grouped_cases.drawn(rng, kind, wanted)
    return direct_region(
        f"{kind.value}_{i}", problem, name, None if i % 4 < 2 else rng, family=wanted
    )


def family(region: Region) -> str:
    """Of the region's kernel."""
    name = str(region.options["kernel"]).removeprefix(f"{PREFIX}_")
    return name.split(f"_{region.problem.kind.value}_")[0]


def chunks(regions: list[Region]) -> list[list[Region]]:
    """For a process each; what shares a kernel is together."""
    ordered = sorted(regions, key=lambda region: str(region.options["kernel"]))
    return [ordered[i : i + CHUNK] for i in range(0, len(ordered), CHUNK)]


def run(seed: int, symbols: list[str]) -> int:
    """Those with these names, in this process; prints what is wrong as JSON."""
    from tests.support.gpu.direct_runner import wrong_ones
    from tests.support.gpu.runner import choose_compiler

    os.environ["RELAY_WGRAD_POISON"] = "1"
    choose_compiler()
    named = [symbol.split("_") for symbol in symbols]
    chunk = [problem_of(seed, ConvKind(kind), int(i)) for kind, i in named]
    with tempfile.TemporaryDirectory() as folder:
        found = wrong_ones(chunk, Path(folder), seed)
    print(END + json.dumps(found))
    return 0


def main() -> int:
    """Prints a table of families and kinds, and what is wrong."""
    parser = argparse.ArgumentParser(prog="python3 -m tests.gpu.problems")
    parser.add_argument("--count", type=int, default=500, help="problems of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", help="in this process: such as fprop_3,dgrad_17")
    args = parser.parse_args()
    if args.only:
        return run(args.seed, args.only.split(","))
    end = time.monotonic() + args.seconds
    parts = chunks([problem_of(args.seed, k, i) for k in ConvKind for i in range(args.count)])
    done: Counter[tuple[str, str]] = Counter()
    epilogues: Counter[str] = Counter()
    wrong: list[str] = []
    left = 0

    def one(chunk: list[Region]) -> None:
        nonlocal left
        rest, symbols = end - time.monotonic(), ",".join(region.symbol for region in chunk)
        command = [
            sys.executable, "-m", "tests.gpu.problems", "--seed", str(args.seed), "--only", symbols,
        ]  # fmt: skip
        try:
            if rest <= 0:
                raise subprocess.TimeoutExpired(command, 0)
            said = subprocess.run(
                command, capture_output=True, text=True, check=False,
                timeout=rest if rest < 1e6 else None,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            left += len(chunk)
            return
        last = next((x for x in said.stdout.splitlines() if x.startswith(END)), None)
        if last is None:
            wrong.append(f"--only {symbols}: exit status {said.returncode}: {said.stderr[-1500:]}")
            return
        wrong.extend(json.loads(last.removeprefix(END)))
        for region in chunk:
            done[family(region), region.problem.kind.value] += 1
            epilogues["_".join(region.epilogue) or "none"] += 1

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, parts))
    table = Table("kernels of", *(kind.value for kind in ConvKind), title="problems")
    for name in sorted({name for name, _ in done}):
        table.add_row(name, *(str(done[name, kind.value]) for kind in ConvKind))
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"epilogues: {dict(sorted(epilogues.items()))}", markup=False)
    console.print(f"{sum(done.values())} run, {len(wrong)} wrong, {left} not run for time")
    for line in wrong:
        console.print(line, markup=False)
    if args.json:
        rows = [{"family": f, "kind": k, "problems": n} for (f, k), n in sorted(done.items())]
        output.write_json(args.json, {
            "seed": args.seed, "rows": rows, "epilogues": dict(sorted(epilogues.items())),
            "wrong": wrong, "not_run": left,
        })  # fmt: skip
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
