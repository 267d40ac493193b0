"""A small set of offloaded convolutions, for a memory checker:

    compute-sanitizer --tool memcheck --error-exitcode 1 python3 -m tests.gpu.memcheck
    compute-sanitizer --tool racecheck --error-exitcode 1 python3 -m tests.gpu.memcheck norm

The kernels of our own, normalizations and updates, alone with `norm`; they are right under
racecheck too.
Each problem runs twice, in the heuristic's choice and under the workspace's poison, and is compared
with PyTorch on the CPU: on cuDNN, whose own kernels are checked along with what is handed to them,
and on CUTLASS where nvcc is there.
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import gpu_norm, gpu_norm_shapes
from byoc_cudnn.backends.cutlass import check as cutlass
from byoc_cudnn.backends.cutlass import objects as cutlass_objects
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing as direct_missing
from byoc_cudnn.codegen.regions import Region
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.gpu import cutlass_runner, norm_runner
from tests.support.gpu.cudnn_runner import (
    destination,
    library_tolerance,
    load,
    operands_on_device,
    regions_of,
    to_numpy,
)
from tests.support.gpu.updates_runner import wrong_updates
from tests.support.problems import random_operands, relative_error, torch_reference

NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "grad_layout": "NHWC"}
LINES = (
    "{} n=2 c=32 h=14 w=13 k=48 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16",
    "{} n=2 c=13 h=9 w=8 k=7 r=3 s=2 stride=2,1 pad=1,0,1,0 layout=NHWC/OHWI/NHWC",
    "{} n=2 c=32 h=14 w=13 k=32 r=3 s=3 pad=1,1,1,1 groups=32 dtype=bf16/bf16/bf16",
    "{} n=1 c=16 h=15 w=15 k=16 r=3 s=3 pad=2,2,2,2 dil=2,2 stride=2,2",
)


def main() -> int:
    """The number of problems that went wrong."""
    os.environ["RELAY_WGRAD_POISON"] = "1"
    return norms() if sys.argv[1:] == ["norm"] else norms() + convolutions()


def norms() -> int:
    """Normalizations: a pixel, odd channels, short chunks, several blocks; each mask."""
    if direct_missing(find()):
        print("no nvcc: normalizations are left out")
        return 0
    kinds = [("bfloat16", "relu"), ("float32", ""), ("float64", "silu")]
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        operands = [
            norm_runner.Operands(shape, dtype, activation, residual, bits=bits, summed=summed)
            for shape in ((1, 1, 1, 8), (3, 5, 7, 13), (2, 9, 9, 72), (40, 8, 8, 264))
            for dtype, activation in kinds
            for residual, bits, summed in norm_runner.HOW
            if activation == "relu" or not (bits or summed)
        ]
        calls = {call.symbol: call for t in operands for call in t.calls()}
        functions = norm_runner.load(list(calls.values()), Path(folder))
        for t in operands:
            found = norm_runner.wrong_results(functions, t)
            print("WRONG" if found else "right", tuple(t.x.shape), t.calls()[0].symbol, *found)
            wrong += found
        wrong += followed(Path(folder))
        own = Path(folder, "updates")
        own.mkdir()
        found = wrong_updates(own)
        print("WRONG" if found else "right", "updates", *found)
        wrong += found
    return len(wrong)


def followed(folder: Path) -> list[str]:
    """Normalizations that take along a max pooling, or the one of a shortcut."""
    cases = [
        gpu_norm_shapes.Case(1, 2, channels, 9, after, mode)
        for channels in (13, 72)
        for after in ("relu pool", "two relu")
        for mode in ("bf16", "f32")
    ]
    calls = {c.symbol: c for case in cases for c in map(case.call, ("forward", "backward"))}
    # A folder of its own: a library of the same path would not be loaded anew.
    own = folder / "followed"
    own.mkdir()
    functions = norm_runner.load(list(calls.values()), own)
    wrong = []
    for case in cases:
        t = gpu_norm_shapes.Tensors(case)
        for call in map(case.call, ("forward", "backward")):
            functions[call.symbol](*t.args(call))
        for name, want in gpu_norm_shapes.wanted(t).items():
            error = gpu_norm_shapes.relative(getattr(t, name), want)
            if not error <= gpu_norm.LIMITS[case.mode]:
                wrong.append(f"{case} {name}: {error:.1e}")
        print("WRONG" if wrong else "right", case)
    return wrong


def convolutions() -> int:
    problems = [ConvProblem.parse(line.format(kind.value)) for line in LINES for kind in ConvKind]
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        regions = regions_of(problems)
        wrong += run(regions, load(regions, Path(folder)))
        if cutlass_objects.missing(find(), cutlass_objects.find_cutlass()):
            print("no nvcc or no headers: CUTLASS is left out")
        else:
            nhwc = [replace(p, **NHWC, groups=1) for p in problems]
            some = [cutlass_runner.region_of(f"f{i}", p) for i, p in enumerate(nhwc)]
            some = [region for region in some if cutlass.check(region.problem, "")]
            # A folder of its own: a library of the same path would not be loaded anew.
            own = Path(folder, "cutlass")
            own.mkdir()
            wrong += run(some, cutlass_runner.load(some, own))
    return wrong


def run(regions: list[Region], functions: Any) -> int:
    rng = np.random.default_rng(0)
    wrong = 0
    for region in regions:
        p = region.problem
        values = random_operands(p, rng)
        args, out = operands_on_device(p, *values), destination(p)
        for _ in range(2):
            functions[region.symbol](*args, out)
        torch.cuda.synchronize()
        error = relative_error(to_numpy(out), torch_reference(p, *values))
        good = error <= library_tolerance(p, tf32=True)
        wrong += not good
        print(f"{'right' if good else 'WRONG'} {error:.1e} {p}")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
