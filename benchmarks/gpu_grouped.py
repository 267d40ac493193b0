"""Grouped convolutions and those of few filters on a GPU: our kernels against PyTorch's.

    python -m benchmarks.gpu_grouped [--suites resnext,regnet,few] [--modes f16] [--batch 64]
                                     [--shapes 5] [--time-budget 80] [--json FILE]

Channels last, operands that take turns where they would stay in the cache, medians of rounds in
turns by device events; PyTorch's algorithms are chosen by their times.  The floor of a row is each
operand's read and the result's write at the rate of a copy in the same run.  `--shapes` tiles of
each kernel are tried, the likely best first; the table has the first's time, and the best one's.
Errors are relative, in norm, to float64; results are of two calls with the same bits.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

from byoc_cudnn.backends.cuda_direct import few, grouped
from byoc_cudnn.building.toolchain import find
from relay_wgrad import output
from relay_wgrad.problem import ConvKind, ConvProblem

# channels, filters, groups, side, taps, stride, padding
LAYERS = {
    "resnext": (
        (128, 128, 32, 56, 3, 1, 1), (256, 256, 32, 56, 3, 2, 1), (256, 256, 32, 28, 3, 1, 1),
        (512, 512, 32, 28, 3, 2, 1), (512, 512, 32, 14, 3, 1, 1), (1024, 1024, 32, 14, 3, 2, 1),
        (1024, 1024, 32, 7, 3, 1, 1),
    ),
    "regnet": (
        (104, 104, 13, 28, 3, 1, 1), (208, 208, 26, 28, 3, 2, 1), (128, 128, 8, 28, 3, 1, 1),
        (120, 120, 5, 28, 3, 1, 1), (336, 336, 14, 14, 3, 1, 1), (192, 192, 4, 28, 3, 1, 1),
        (448, 448, 8, 28, 3, 1, 1), (896, 896, 16, 28, 3, 2, 1), (896, 896, 16, 14, 3, 1, 1),
    ),
    "few": (
        (320, 4, 1, 64, 3, 1, 1), (64, 3, 1, 128, 7, 1, 3), (256, 4, 1, 56, 3, 1, 1),
        (512, 1, 1, 31, 4, 1, 1),
    ),
}  # fmt: skip
DTYPES = {"f16": "float16", "bf16": "bfloat16"}
LIMITS = {"f16": 1e-3, "bf16": 8e-3}
ROUNDS, ENOUGH, L2_BYTES, IDLE = 3, 1.5e-3, 60 << 20, 120_000
Call = Callable[[], Any]


class Packed(ctypes.Structure):
    """`RelayWgradFewCall` of few_call.h."""

    _fields_ = (
        *((n, ctypes.c_int64) for n in ("n", "h", "w", "c", "k", "p", "q")),
        *((n, ctypes.c_void_p) for n in ("first", "second", "out", "workspace")),
        ("workspace_bytes", ctypes.c_int64),
    )


def problems(args: argparse.Namespace) -> list[tuple[str, str, ConvProblem]]:
    found = []
    for suite in args.suites.split(","):
        for c, k, groups, side, taps, stride, pad in LAYERS[suite]:
            for mode in args.modes.split(","):
                for kind in ("fprop", "dgrad", "wgrad"):
                    line = (
                        f"{kind} n={args.batch} c={c} h={side} w={side} k={k} r={taps} s={taps}"
                        f" stride={stride},{stride} pad={pad},{pad},{pad},{pad} groups={groups}"
                        f" layout=NHWC/OHWI/NHWC dtype={mode}/{mode}/{mode}"
                    )
                    found.append((suite, mode, ConvProblem.parse(line)))
    return found


def sources(problem: ConvProblem, most: int) -> list[tuple[str, str]]:
    """What a kernel is, and its CUDA source, for some tiles."""
    if problem.groups > 1:
        if text := grouped.reason(problem):
            raise ValueError(f"{problem}: {text}")
        made = [
            (str(astuple(shape)[9:]), grouped.body(problem, shape, "kernel"))
            for shape in islice(grouped.shapes(problem), most)
        ]
    else:
        if text := few.reason(problem):
            raise ValueError(f"{problem}: {text}")
        made = [("", few.body(problem, "kernel"))]
    room = files("byoc_cudnn") / "backends" / "cuda_direct" / "templates"
    return [
        (words, "\n".join([*((room / part).read_text() for part in parts), text]))
        for words, (parts, text) in made
    ]


def build(nvcc: Path, folder: Path, number: int, source: str) -> tuple[Path, str]:
    """A library of a kernel, and what ptxas says of it: registers and spills."""
    text, library = folder / f"{number}.cu", folder / f"{number}.so"
    text.write_text(source)
    done = subprocess.run(
        [str(nvcc), "-std=c++17", "-O3", "--expt-relaxed-constexpr", "-w", "-gencode",
         "arch=compute_90,code=sm_90", "-shared", "-Xcompiler", "-fPIC", "-Xptxas", "-v",
         str(text), "-o", str(library)],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    lines = [line for line in done.stderr.splitlines() if "registers" in line or "spill" in line]
    pairs = [(spill, used) for spill, used in zip(lines[::2], lines[1::2], strict=False)]
    words = [
        used.split("Used ")[1].split(" reg")[0]
        + ("" if " 0 bytes spill stores" in spill else " spills " + spill.split(",")[1].split()[0])
        for spill, used in pairs
    ]
    return library, "/".join(words)


class Kernel:
    """A built kernel, called on tensors."""

    def __init__(self, library: Path) -> None:
        loaded = ctypes.CDLL(str(library))
        self.run, self.workspace = loaded.kernel, loaded.kernel_workspace
        self.workspace.restype = ctypes.c_int64
        self.run.argtypes = (ctypes.c_void_p, ctypes.c_void_p)

    def call(self, problem: ConvProblem, first: Any, second: Any, out: Any) -> Call:
        import torch

        p = problem
        packed = Packed(
            p.n, p.h, p.w, p.c, p.k, p.p, p.q, first.data_ptr(), second.data_ptr(), out.data_ptr()
        )
        size = self.workspace(ctypes.byref(packed))
        kept = torch.empty(max(size, 1), device="cuda", dtype=torch.uint8)
        packed.workspace, packed.workspace_bytes = kept.data_ptr(), size
        pointer, stream = ctypes.addressof(packed), torch.cuda.current_stream().cuda_stream

        def run(kept: Any = (packed, kept)) -> None:
            if code := self.run(pointer, stream):
                raise RuntimeError(f"{p}: the kernel returned {code}")

        return run


def measure(problem: ConvProblem, mode: str, kernels: list[Kernel]) -> dict[str, Any]:
    import torch

    from benchmarks.gpu_timing import (
        arithmetic,
        by_torch,
        canonical,
        part,
        random,
        reference,
        relative,
        timed,
    )

    generator = torch.Generator("cuda").manual_seed(0)
    first, second, result = problem.roles
    sets = max(1, min(16, math.ceil(3 * L2_BYTES / problem.bytes)))
    ours: list[list[Call]] = [[] for _ in kernels]
    theirs, views = [], []
    for _ in range(sets):
        a, b = (random(problem, role, generator) for role in (first, second))
        dtype = getattr(torch, problem.dtype(result))
        out = torch.full(problem.shape(result), math.nan, device="cuda", dtype=dtype)
        view = {first: canonical(a), second: canonical(b), result: canonical(out)}
        views.append(view)
        theirs.append(by_torch(problem, view, transposed=False))
        for calls, kernel in zip(ours, kernels, strict=True):
            calls.append(kernel.call(problem, a, b, out))
    found: dict[str, Any] = {"errors": [], "ms": []}
    small, cut, _ = part(problem, views[0])
    want = reference(small, cut)
    for calls in ours:
        out = views[0][result]
        bits = []
        for _ in range(2):
            out.fill_(math.nan)
            calls[0]()
            torch.cuda.synchronize()
            bits.append(out.clone())
        _, _, mine = part(problem, views[0])
        found["errors"].append(relative(mine["result"], want))
        if not torch.equal(*bits):
            found["errors"][-1] = math.nan
    with arithmetic(tf32=False):
        theirs[0]()
        everything = [theirs, *ours]
        counts = [
            max(3, min(60, math.ceil(ENOUGH / timed(calls, 2, IDLE)))) for calls in everything
        ]
        times: list[list[float]] = [[] for _ in everything]
        for _ in range(ROUNDS):
            for kept, calls, count in zip(times, everything, counts, strict=True):
                kept.append(timed(calls, count, IDLE))
    found["torch_ms"], *found["ms"] = (1e3 * statistics.median(t) for t in times)
    return found


def geomean(values: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if values else math.nan


def show_row(row: dict[str, Any], copy: float) -> None:
    p = ConvProblem.parse(row["problem"])
    floor = p.bytes / copy * 1e3
    first, best = row["ms"][0], min(row["ms"])
    print(
        f"{row['suite']:8}{p.kind.value:6}{p.c}->{p.k}/{p.groups} {p.h} {p.r}x{p.s}/{p.strides[0]}:"
        f" {1e3 * first:.0f} ({floor / first:.2f}), {1e3 * best:.0f} ({floor / best:.2f}),"
        f" {1e3 * row['torch_ms']:.0f}, {first / row['torch_ms']:.2f}"
        f" best {best / row['torch_ms']:.2f}{row['wrong']}",
        *(
            f"| {words} r{regs} {1e3 * ms:.0f}"
            for words, regs, ms in zip(row["shapes"], row["registers"], row["ms"], strict=True)
        ),
        flush=True,
    )  # fmt: skip


def show(rows: list[dict[str, Any]], copy: float) -> None:
    print(f"\na copy {copy / 1e12:.2f} TB/s; geomeans: share of the floor, share of PyTorch's time")
    for suite in dict.fromkeys(row["suite"] for row in rows):
        for kind in ConvKind:
            some = [r for r in rows if r["suite"] == suite and r["problem"].startswith(kind.value)]
            floors = [ConvProblem.parse(r["problem"]).bytes / copy * 1e3 for r in some]
            for name, ms in (
                ("first", [r["ms"][0] for r in some]),
                ("best", [min(r["ms"]) for r in some]),
            ):
                shares = [f / m for f, m in zip(floors, ms, strict=True)]
                against = [m / r["torch_ms"] for r, m in zip(some, ms, strict=True)]
                print(f"{suite:8}{kind.value:6} {name:5} floor {geomean(shares):.2f}"
                      f" PyTorch {geomean(against):.2f} of {len(some)}")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_grouped", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--suites", default="resnext,few,regnet")
    parser.add_argument("--modes", default="f16")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--shapes", type=int, default=5)
    parser.add_argument("--time-budget", type=float, default=80, help="seconds (default 80)")
    parser.add_argument("--skip", type=int, default=0, help="of the problems, the first")
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--compile-only", action="store_true", help="no GPU: registers and spills")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    begin = time.perf_counter()
    rows: list[dict[str, Any]] = []
    left, failed = [], 0
    nvcc = find().nvcc
    assert nvcc is not None, "no nvcc"
    copy = 4e12
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor(args.jobs) as pool:
        todo: list[tuple[str, str, ConvProblem, list[str], list[Future[tuple[Path, str]]]]] = []
        number = 0
        for suite, mode, problem in problems(args)[args.skip :]:
            made = sources(problem, args.shapes)
            jobs = []
            for _, source in made:
                jobs.append(pool.submit(build, nvcc, Path(work), number, source))
                number += 1
            todo.append((suite, mode, problem, [words for words, _ in made], jobs))
        print(f"{number} kernels of {len(todo)} problems", flush=True)
        if not args.compile_only:
            import torch

            from benchmarks.gpu_timing import floors

            copy = floors([])["bandwidth"]
            print(torch.cuda.get_device_name(), f"a copy {copy / 1e12:.2f} TB/s", flush=True)
            print("suite kind layer: us (share of the floor), best, PyTorch, share of PyTorch's")
        for suite, mode, problem, words, jobs in todo:
            if time.perf_counter() - begin > args.time_budget:
                left.append(problem)
                for job in jobs:
                    job.cancel()
                continue
            built = [job.result() for job in jobs]
            registers = [used for _, used in built]
            if args.compile_only:
                print(problem.repro()[:60], *zip(words, registers, strict=True), flush=True)
                continue
            try:
                found = measure(problem, mode, [Kernel(library) for library, _ in built])
            except RuntimeError as error:  # the device may be lost; what was measured is shown
                print(f"{problem}: {error}", flush=True)
                failed += 1
                if failed == 3:
                    break
                continue
            bad = [e for e in found["errors"] if not e <= LIMITS[mode]]
            rows.append({
                "suite": suite, "mode": mode, "problem": problem.repro(), "shapes": words,
                "registers": registers, "wrong": f" WRONG {bad}" if bad else "", **found,
            })  # fmt: skip
            show_row(rows[-1], copy)
        pool.shutdown(wait=False, cancel_futures=True)
    if rows:
        show(rows, copy)
    for problem in left:
        print(f"not measured: {problem}")
    print(f"{time.perf_counter() - begin:.0f} s")
    if args.json:
        output.write_json(args.json, {"copy": copy, "rows": rows})
    return 1 if failed or any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
