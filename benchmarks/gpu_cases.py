"""What `benchmarks.gpu` runs, and the code that is generated for it: nothing here needs a GPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.layers import suite
from byoc_cudnn.backends import cudnn
from byoc_cudnn.codegen.cudnn import generate
from byoc_cudnn.codegen.regions import Region
from byoc_cudnn.compiled import library_command
from relay_wgrad.problem import ConvProblem

# A dtype as it is named on the command line: the tensors' dtype, and whether tf32 may be used.
MODES = {"f16": ("f16", False), "bf16": ("bf16", False), "tf32": ("f32", True),
         "f32": ("f32", False)}  # fmt: skip
BACKENDS = ("cudnn",)
_ALLOW_TF32, _BENCHMARK = 1, 4  # as `templates/cudnn_graph.h` has them
MOST_BYTES = 8 << 30  # of a case's three tensors together
# FLOP of one call: a few milliseconds at the rates of an H200.  Only float32 without tensor cores
# gets there; it reaches its rate on far less, and plans are chosen by running dozens of them.
MOST_FLOP = {"f16": 4e12, "bf16": 4e12, "tf32": 2e12, "f32": 2e11}


@dataclass
class Case:
    """A problem that is measured once, for all the layers that are it."""

    name: str
    mode: str  # of MODES
    problem: ConvProblem
    transposed: bool
    symbol: str
    uses: dict[str, int] = field(default_factory=dict)  # suite -> times it occurs there

    @property
    def kind(self) -> str:
        return self.problem.kind.value

    @property
    def allow_tf32(self) -> bool:
        return MODES[self.mode][1]

    @property
    def text(self) -> str:
        return f"{self.kind} {self.name} {self.mode} n={self.problem.n}"

    def region(self) -> Region:
        first, second, _ = self.problem.roles
        options = {"allow_tf32": self.allow_tf32, "benchmark": True}
        return Region(self.symbol, self.problem, (), (first, second), options)


def fitted(problem: ConvProblem, batch: int, most_flop: float) -> ConvProblem | None:
    """The problem on `batch` images or, if that is too much, on the largest power of two that fits.

    Too much is more than `MOST_BYTES`, a tensor that the backend cannot count, or more than
    `most_flop`.  None if not even one image fits.
    """
    while batch:
        text = problem.repro().replace(f" n={problem.n} ", f" n={batch} ", 1)
        candidate = ConvProblem.parse(text)
        largest = max(_count(candidate.shape(role)) for role in ("data", "weight", "grad"))
        if (
            candidate.bytes <= MOST_BYTES
            and largest < cudnn.MAX_ELEMENTS
            and candidate.flop <= most_flop
        ):
            return candidate
        smaller = 1 << (batch.bit_length() - 1)
        batch = smaller if smaller < batch else batch // 2
    return None


def _count(shape: Sequence[int]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def cases(
    suites: Sequence[str], kinds: Sequence[str], modes: Sequence[str], batch: int
) -> list[Case]:
    """Every distinct problem once, by suite, then by dtype: a time budget cuts off the last."""
    found: dict[tuple[str, str, bool], Case] = {}
    for name in suites:
        for mode in modes:
            for layer in suite(name, batch, MODES[mode][0]):
                for problem in layer.problems(kinds):
                    fits = fitted(problem, batch, MOST_FLOP[mode])
                    if fits is None:
                        raise ValueError(f"{name} {layer.name}: one image is too much")
                    key = (fits.repro(), mode, layer.transposed)
                    if key not in found:
                        symbol = f"case{len(found)}"
                        found[key] = Case(layer.name, mode, fits, layer.transposed, symbol)
                    found[key].uses[name] = found[key].uses.get(name, 0) + layer.count
    return list(found.values())


def tiny(mode: str = "f16") -> Case:
    """A problem whose kernels take no time to speak of: a call of it is the host's work."""
    dtype = MODES[mode][0]
    line = (
        "fprop n=1 c=8 h=8 w=8 k=8 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
        f" dtype={dtype}/{dtype}/{dtype}"
    )
    return Case("8→8 8² 3×3", mode, ConvProblem.parse(line), False, "tiny")


def build(all_cases: Sequence[Case], folder: Path) -> dict[str, Path]:
    """Generates C++ for all cases and builds it; returns the shared library of each symbol.

    One source would do.  There is one for each processor, since a thousand functions take a
    compiler minutes.

    Raises ToolchainError for what is missing on this machine, RuntimeError with the compiler's
    words if it fails.
    """
    workers = max(1, min(16, os.cpu_count() or 1, len(all_cases)))
    shares = [all_cases[i::workers] for i in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        libraries = list(pool.map(_build, shares, [folder / f"cases{i}" for i in range(workers)]))
    return {
        case.symbol: path for share, path in zip(shares, libraries, strict=True) for case in share
    }


def _build(share: Sequence[Case], stem: Path) -> Path:
    source, library = stem.with_suffix(".cc"), stem.with_suffix(".so")
    source.write_text(generate([case.region() for case in share]), encoding="utf-8")
    command = library_command(source, library)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:4000]}")
    return library


def plan_of(case: Case, plans: str) -> str:
    """The engine and settings that were chosen for a case, out of the module's `PLANS`."""
    options = _BENCHMARK + (_ALLOW_TF32 if case.allow_tf32 else 0)
    wanted = f" | {case.problem.repro()} epilogue=0 options={options} "
    for line in plans.splitlines():
        columns = line.split("\t")
        if wanted in columns[0] and len(columns) > 2:
            return f"{columns[1]} workspace {columns[2]}"
    return ""
