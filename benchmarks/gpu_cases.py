"""The cases of `benchmarks gpu convolutions`, and code for them: nothing here needs a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import gpu_code
from byoc_cudnn import BACKENDS as TABLE
from byoc_cudnn.backends.base import option_names
from byoc_cudnn.backends.cuda_direct import codegen as direct_code
from byoc_cudnn.backends.cudnn import check as cudnn
from byoc_cudnn.backends.cudnn import codegen as cudnn_code
from byoc_cudnn.backends.cutlass import check as cutlass
from byoc_cudnn.backends.cutlass import codegen as cutlass_code
from byoc_cudnn.backends.cutlass.model import choose
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvProblem
from tests.support.layers import Layer, suite

# A dtype as it is named on the command line: the tensors' dtype, and whether tf32 may be used.
MODES = {"f16": ("f16", False), "bf16": ("bf16", False), "tf32": ("f32", True),
         "f32": ("f32", False)}  # fmt: skip
# Backends as they are named on the command line -> the library, and options besides the dtype's.
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "cudnn": ("cudnn", {"benchmark": True}),
    "cutlass": ("cutlass", {}),
    "wgmma": ("cutlass", {"arch": 90, "wgmma": True}),
    "tuned": ("cutlass", {"arch": 90, "wgmma": True}),
    "direct": ("cuda_direct", {"arch": 90}),
    "generated": ("tvm", {}),
}
_CODES = {"cudnn": cudnn_code, "cutlass": cutlass_code, "cuda_direct": direct_code}
PLANS = {name: code.PLANS for name, code in _CODES.items()}
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
    backend: str = "cudnn"  # of BACKENDS
    uses: dict[str, int] = field(default_factory=dict)  # suite -> times it occurs there
    pins: dict[str, Any] = field(default_factory=dict)  # options that tuning chose

    @property
    def kind(self) -> str:
        return self.problem.kind.value

    @property
    def allow_tf32(self) -> bool:
        return MODES[self.mode][1]

    @property
    def vendor(self) -> str:
        return BACKENDS[self.backend][0]

    @property
    def text(self) -> str:
        return f"{self.kind} {self.name} {self.mode} n={self.problem.n} {self.backend}"

    def region(self) -> Region:
        first, second, _ = self.problem.roles
        options = {**BACKENDS[self.backend][1], **self.pins}
        if "allow_tf32" in option_names(TABLE[self.vendor].options):
            options = {"allow_tf32": self.allow_tf32, **options}
        return Region(self.symbol, self.problem, (), (first, second), options)


def fitted(
    problem: ConvProblem, batch: int, most_flop: float, library: str = "cudnn"
) -> ConvProblem | None:
    """The problem on `batch` images or, if that is too much, on the largest power of two that fits.

    Too much is more than `MOST_BYTES`, a tensor that the backend cannot count, or more than
    `most_flop`.  None if not even one image fits.
    """
    while batch:
        text = problem.repro().replace(f" n={problem.n} ", f" n={batch} ", 1)
        candidate = ConvProblem.parse(text)
        largest = max(_count(candidate.shape(role)) for role in ("data", "weight", "grad"))
        countable = largest < cudnn.MAX_ELEMENTS
        if library == "cutlass":
            countable = largest * (2 if "f16" in text else 4) < cutlass.MAX_BYTES
        if candidate.bytes <= MOST_BYTES and countable and candidate.flop <= most_flop:
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
    suites: Sequence[str],
    kinds: Sequence[str],
    modes: Sequence[str],
    batch: int,
    backends: Sequence[str] = ("cudnn",),
) -> list[Case]:
    """Every distinct problem once for each backend, by suite, then by dtype: a time budget cuts off
    the last.  What a backend's static rules refuse (groups) is no case of it.
    """
    found: dict[tuple[str, str, bool, str], Case] = {}
    for name in suites:
        for mode in modes:
            for layer in suite(name, batch, MODES[mode][0]):
                for problem in layer.problems(kinds):
                    for backend in backends:
                        _add(found, backend, name, mode, layer, problem)
    return list(found.values())


def _add(
    found: dict[tuple[str, str, bool, str], Case], backend: str, suite_name: str, mode: str,
    layer: Layer, problem: ConvProblem,
) -> None:  # fmt: skip
    library = BACKENDS[backend][0]
    fits = fitted(problem, problem.n, MOST_FLOP[mode], library)
    if fits is None:
        raise ValueError(f"{suite_name} {layer.name}: one image is too much")
    if not takes(library, mode, fits):
        return
    key = (fits.repro(), mode, layer.transposed, backend)
    if key not in found:
        symbol = f"case{len(found)}"
        found[key] = Case(layer.name, mode, fits, layer.transposed, symbol, backend)
    found[key].uses[suite_name] = found[key].uses.get(suite_name, 0) + layer.count


def takes(library: str, mode: str, problem: ConvProblem) -> bool:
    """Whether a backend's static rules do; TVM's kernels are asked for where tf32 is not."""
    if library == "tvm":
        return problem.groups == 1 and mode in ("f16", "f32")
    return bool(TABLE[library].takes(problem))


def common(found: Sequence[Case], backends: Sequence[str]) -> list[Case]:
    """The cases of problems that all of the backends take."""
    taken: dict[Any, set[str]] = {}
    for case in found:
        taken.setdefault((case.problem, case.mode, case.transposed), set()).add(case.backend)
    all_ = set(backends)
    return [c for c in found if taken[c.problem, c.mode, c.transposed] == all_]


def pin(all_cases: Sequence[Case], candidates: int, say: Callable[[str, int, int], None]) -> int:
    """Tunes the cases that are to be tuned; returns how many kernels were chosen."""
    from byoc_cudnn.tuning.tune import tune

    for tf32 in (False, True):
        mine = [c for c in all_cases if c.backend == "tuned" and c.allow_tf32 is tf32]
        if not mine:
            continue
        options = {"allow_tf32": tf32, **BACKENDS["tuned"][1]}
        record = tune(
            [case.problem for case in mine], ("cutlass",), candidates=candidates, progress=say,
            cutlass=options,
        )  # fmt: skip
        known = {m.problem: m.pins for m in record}
        for case in mine:
            case.pins = dict(known.get(case.problem.repro(), {}))
    return sum(bool(case.pins) for case in all_cases)


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

    One source for a backend would do.  There is one for each processor, since a thousand functions
    take a compiler minutes.  Others than cuDNN's are small; their kernels are built side by side.

    Raises ToolchainError for what is missing on this machine, RuntimeError with the compiler's
    words if it fails.
    """
    workers = max(1, min(16, os.cpu_count() or 1, len(all_cases)))
    by_name = {name: [c for c in all_cases if c.vendor == name] for name in PLANS}
    shares = [by_name["cudnn"][i::workers] for i in range(workers)]
    shares += [mine for name, mine in by_name.items() if name != "cudnn"]
    shares = [share for share in shares if share]
    stems = [folder / f"cases{i}" for i in range(len(shares))]
    with ThreadPoolExecutor(workers) as pool:
        libraries = list(pool.map(_build, shares, stems))
    return {
        case.symbol: path for share, path in zip(shares, libraries, strict=True) for case in share
    }


def _build(share: Sequence[Case], stem: Path) -> Path:
    regions, code = [case.region() for case in share], _CODES[share[0].vendor]
    text = code.generate(regions) if code is cudnn_code else code.generate(regions, gpu_code.arch())
    return gpu_code.built(text, stem)


def _kernel(case: Case) -> str:
    """The kernel of a CUTLASS case, and its slices, as `PLANS` has them."""
    choice = choose(case.problem, (), cutlass.Options(**case.region().options), gpu_code.arch())
    return f"{choice.kernel.name} slices={choice.slices}\t"


def plan_of(case: Case, plans: str) -> str:
    """The engine and settings, or the kernel, that was chosen for a case, out of `PLANS`."""
    options = _BENCHMARK + (_ALLOW_TF32 if case.allow_tf32 else 0)
    wanted = f" | {case.problem.repro()} epilogue=0 options={options} "
    kernel = _kernel(case) if case.vendor == "cutlass" else ""
    for line in plans.splitlines():
        columns = line.split("\t")
        if case.vendor == "cuda_direct":
            ours = columns[0] == case.problem.repro()
        elif case.vendor == "cutlass":
            ours = columns[0] == case.problem.repro() and kernel in line
        else:
            ours = wanted in columns[0]
        if ours and len(columns) > 2:
            return f"{columns[1]} workspace {columns[2]}"
    return ""
