"""The cases of `benchmarks gpu convolutions`, and code for them: nothing here needs a GPU."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.modes import MODES
from byoc_cudnn import BACKENDS as TABLE
from byoc_cudnn.backends.base import option_names
from byoc_cudnn.backends.cuda_direct import codegen as direct_code
from byoc_cudnn.backends.cudnn import check as cudnn
from byoc_cudnn.backends.cudnn import codegen as cudnn_code
from byoc_cudnn.backends.cutlass import check as cutlass
from byoc_cudnn.backends.cutlass import codegen as cutlass_code
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvProblem
from tests.support.layers import suite

# Backends as they are named on the command line -> the library, and options besides the dtype's.
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "cudnn": ("cudnn", {"benchmark": True}),
    "cutlass": ("cutlass", {}),
    "wgmma": ("cutlass", {"arch": 90, "wgmma": True}),
    "direct": ("cuda_direct", {"arch": 90}),
}
_CODES = {"cudnn": cudnn_code, "cutlass": cutlass_code, "cuda_direct": direct_code}
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
        options = dict(BACKENDS[self.backend][1])
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
        largest = max(math.prod(candidate.shape(role)) for role in ("data", "weight", "grad"))
        countable = largest < cudnn.MAX_ELEMENTS
        if library == "cutlass":
            countable = largest * (2 if "f16" in text else 4) < cutlass.MAX_BYTES
        if candidate.bytes <= MOST_BYTES and countable and candidate.flop <= most_flop:
            return candidate
        smaller = 1 << (batch.bit_length() - 1)
        batch = smaller if smaller < batch else batch // 2
    return None


def cases(
    suites: Sequence[str], kinds: Sequence[str], modes: Sequence[str], batch: int,
    backends: Sequence[str] = ("cudnn",),
) -> list[Case]:  # fmt: skip
    """Every distinct problem once for each backend, by suite, then by dtype: a time budget cuts off
    the last.  What a backend's static rules refuse (groups) is no case of it.
    """
    found: dict[tuple[str, str, bool, str], Case] = {}
    for name, mode in itertools.product(suites, modes):
        for layer in suite(name, batch, MODES[mode][0]):
            for problem, backend in itertools.product(layer.problems(kinds), backends):
                library = BACKENDS[backend][0]
                fits = fitted(problem, problem.n, MOST_FLOP[mode], library)
                if fits is None:
                    raise ValueError(f"{name} {layer.name}: one image is too much")
                if not TABLE[library].takes(fits):
                    continue
                key = (fits.repro(), mode, layer.transposed, backend)
                symbol = f"case{len(found)}"
                new = Case(layer.name, mode, fits, layer.transposed, symbol, backend)
                case = found.setdefault(key, new)
                case.uses[name] = case.uses.get(name, 0) + layer.count
    return list(found.values())


def build(all_cases: Sequence[Case], folder: Path) -> dict[str, Path]:
    """Generates C++ for all cases and builds it; returns the shared library of each symbol.

    One source for a backend would do.  There is one for each processor, since a thousand functions
    take a compiler minutes.  Others than cuDNN's are small; their kernels are built side by side.

    Raises ToolchainError for what is missing on this machine, RuntimeError with the compiler's
    words if it fails.
    """
    workers = max(1, min(16, os.cpu_count() or 1, len(all_cases)))
    by_name = {name: [c for c in all_cases if c.vendor == name] for name in _CODES}
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
    text = code.generate(regions) if code is cudnn_code else code.generate(regions, arch())
    return built(text, stem)


def arch() -> int | None:
    """The GPU to build kernels for, as nvcc numbers it; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def built(text: str, stem: Path, inputs: Sequence[Path] | None = None) -> Path:
    """The shared library of a C++ source; RuntimeError with the compiler's words if it fails."""
    source, library = stem.with_suffix(".cc"), stem.with_suffix(".so")
    source.write_text(text, encoding="utf-8")
    command = library_command(source, library, inputs=inputs)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.stderr[:4000]}\n{' '.join(command)}")
    return library


def loaded(text: str, stem: Path, inputs: Sequence[Path] | None = None) -> Any:
    """The module of a C++ source's functions."""
    import tvm_ffi

    return tvm_ffi.load_module(str(built(text, stem, inputs)))
