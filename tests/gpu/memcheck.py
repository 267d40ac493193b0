"""Small cases of all kernels, for a memory checker:

    compute-sanitizer --tool memcheck --error-exitcode 1 python3 -m tests.gpu.memcheck
    compute-sanitizer --tool racecheck --error-exitcode 1 python3 -m tests.gpu.memcheck ordered

Parts may be named: of PARTS, or `own`, which is all but `cudnn` and `scaled`, or `ordered`; what
needs nvcc or headers that are not there is left out, and said so.  Each result is compared with
PyTorch's, NumPy's or TVM's on the CPU.  Problems of the libraries run twice, in the heuristic's
choice and under the workspace's poison.  cuDNN's own kernels are checked along with what is handed
to them; racecheck could only tell about those what nobody here can mend.

What racecheck does not follow: bulk copies (TMA) and the barriers that wait for them, so that of
CUTLASS's kernels for Hopper it sees the rest alone; and gates, at which a lane arrives for its warp
after `__syncwarp`: it tells of races wherever there is one.  `ordered` is `own` without the kernels
that have gates; test_warps_races.py has these.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad
from byoc_cudnn.backends.cuda_direct.families import FAMILIES
from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.backends.cudnn.check import SCALED_HALF
from byoc_cudnn.backends.cutlass import check as cutlass
from byoc_cudnn.backends.cutlass import objects as cutlass_objects
from byoc_cudnn.building.toolchain import find
from byoc_cudnn.codegen.direct import missing as direct_missing
from byoc_cudnn.codegen.regions import Region
from byoc_cudnn.point_weights import POINT_WEIGHTS, PointWeightsCall, Product
from byoc_cudnn.pool import PoolCall
from byoc_cudnn.pool import generate as generate_pools
from byoc_cudnn.pool import inputs as pool_inputs
from relay_wgrad.pipeline import made_sums as pipeline_sums
from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support import (
    cast_transpose,
    element_cases,
    gate_cases,
    grouped_cases,
    made_sums,
    norm_groups,
    point_weights,
)
from tests.support.depthwise_cases import SMALL
from tests.support.gpu import (
    attention_runner,
    cutlass_runner,
    direct_runner,
    gates_runner,
    group_norm_runner,
    norm_followed,
    norm_runner,
    softmax_runner,
    standardized_runner,
)
from tests.support.gpu.cudnn_runner import (
    destination,
    library_tolerance,
    load,
    operands_on_device,
    regions_of,
    to_numpy,
)
from tests.support.gpu.joins_runner import wrong_of_all
from tests.support.gpu.runner import choose_compiler
from tests.support.gpu.updates_runner import wrong_updates
from tests.support.problems import random_operands, relative_error, torch_reference
from tests.support.scaled_half import CORNERS
from tests.support.softmax import LIMITS
from tests.support.torch import volume_steps

NHWC = {"data_layout": "NHWC", "kernel_layout": "OHWI", "grad_layout": "NHWC"}
LINES = (
    "{} n=2 c=32 h=14 w=13 k=48 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16",
    "{} n=2 c=13 h=9 w=8 k=7 r=3 s=2 stride=2,1 pad=1,0,1,0 layout=NHWC/OHWI/NHWC",
    "{} n=2 c=32 h=14 w=13 k=32 r=3 s=3 pad=1,1,1,1 groups=32 dtype=bf16/bf16/bf16",
    "{} n=1 c=16 h=15 w=15 k=16 r=3 s=3 pad=2,2,2,2 dil=2,2 stride=2,2",
)
# The three forms of CUTLASS's kernels for Hopper: implicit, plain, and of strides.
HOPPER = tuple(
    f"{{}} n=2 c=72 h=11 w=10 k=136 {taps} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
    for taps in ("r=3 s=3 pad=1,1,1,1", "r=1 s=1", "r=3 s=3 pad=1,1,1,1 stride=2,2")
)
WINDOWS = (((3, 3), (2, 2), 1), ((2, 2), (2, 2), 0), ((3, 3), (1, 1), 1), ((1, 2), (3, 3), 0))
TOLERANCE = 1e-2  # of half results
GATED = ("depthwise_bands", "depthwise_shares")  # families


def norms(folder: Path) -> list[str]:
    """Normalizations: a pixel, odd channels, short chunks, several blocks; each mask."""
    kinds = [("bfloat16", "relu"), ("float32", ""), ("float64", "silu")]
    operands = [
        norm_runner.Operands(shape, dtype, activation, residual, bits=bits, summed=summed)
        for shape in ((1, 1, 1, 8), (3, 5, 7, 13), (2, 9, 9, 72), (40, 8, 8, 264))
        for dtype, activation in kinds
        for residual, bits, summed in norm_runner.HOW
        if activation == "relu" or not (bits or summed)
    ]
    calls = {call.symbol: call for t in operands for call in t.calls()}
    functions = norm_runner.load(list(calls.values()), folder)
    return [
        f"{tuple(t.x.shape)} {t.calls()[0].symbol}: {found}"
        for t in operands
        for found in norm_runner.wrong_results(functions, t)
    ]


def gates(folder: Path) -> list[str]:
    """Normalizations around a gate, also where results lie in an operand's place."""
    kinds = [("bfloat16", *kind) for kind in gates_runner.KINDS]
    functions = norm_runner.load([c for kind in kinds for c in gate_cases.calls(*kind)], folder)
    lines = []
    for dtype, activation, residual, last in kinds:
        for shape in ((3, 9, 5, 13), (2, 7, 7, 40), (4, 12, 11, 264)):
            t = gates_runner.run(functions, dtype, shape, activation, residual, last)
            lines += gates_runner.wrong(t, dtype, activation, last)
            for call in gate_cases.calls(dtype, activation, residual, last):
                made = gate_cases.taken(call, t)
                lines += norm_runner.other_bits_in_place(functions, call, made, times=1)
    return lines


def standardized(folder: Path) -> list[str]:
    """Filters that are standardized, all in one call each way."""
    return [
        line
        for dtype in standardized_runner.LIMITS
        for line in standardized_runner.wrong_directions(
            folder / dtype, dtype, standardized_runner.WEIGHTS
        )
    ]


def softmax(folder: Path) -> list[str]:
    """Rows of all lengths, both directions, whole packs or not."""
    return [line for dtype in LIMITS for line in softmax_runner.wrong(folder / dtype, dtype)]


def attention(folder: Path) -> list[str]:
    """Attention both ways, of tokens that end anywhere, with and without a bias."""
    return [
        line
        for dtype in attention_runner.CASES
        for line in attention_runner.wrong(folder / dtype, dtype)
    ]


def groups(folder: Path) -> list[str]:
    """Normalizations of groups and instances, each activation: a voxel, odd channels, blocks."""
    calls = [
        group_norm_runner.call_of(direction, dtype, *rest)
        for direction in ("forward", "backward")
        for dtype in group_norm_runner.DTYPES
        for rest in norm_groups.CALLS
    ]
    functions = norm_runner.load(list({c.symbol: c for c in calls}.values()), folder)
    wrong = []
    for shape in ((2, 1, 1, 1, 16), (3, 5, 7, 9, 12), (2, 24, 10, 9, 40)):
        for dtype in group_norm_runner.DTYPES:
            for count, activation, how in norm_groups.CALLS:
                if count <= 0 or shape[-1] % count == 0:
                    given = (shape, dtype, count, activation, how)
                    t = group_norm_runner.run(functions, *given)
                    found = group_norm_runner.wrong(t, dtype, count, activation)
                    for direction in ("forward", "backward"):
                        call = group_norm_runner.call_of(direction, dtype, count, activation, how)
                        found += norm_runner.other_bits_in_place(functions, call, t, times=1)
                    wrong += [f"{given}: {line}" for line in found]
    return wrong


def volumes(folder: Path) -> list[str]:
    """Pools, resizes and transposed convolutions of volumes and their gradients, odd sizes."""
    return _as_on_the_cpu(*volume_steps.step(), "main_adjoint")


def followed(folder: Path) -> list[str]:
    """Normalizations that take along a max pooling, or the one of a shortcut."""
    cases = [
        norm_followed.Case(1, 2, channels, 9, after, mode)
        for channels in (13, 72)
        for after in ("relu pool", "two relu")
        for mode in ("bf16", "f32")
    ]
    calls = {c.symbol: c for case in cases for c in map(case.call, ("forward", "backward"))}
    functions = norm_runner.load(list(calls.values()), folder)
    wrong = []
    for case in cases:
        t = norm_followed.Tensors(case)
        for call in map(case.call, ("forward", "backward")):
            functions[call.symbol](*t.args(call))
        for name, want in norm_followed.wanted(t).items():
            error = norm_followed.relative(getattr(t, name), want)
            if not error <= norm_followed.LIMITS[case.mode]:
                wrong.append(f"{case} {name}: {error:.1e}")
    return wrong


def pools(folder: Path) -> list[str]:
    """Max pooling: windows that overlap, that touch, and with gaps; by an index."""
    dtypes = ("bfloat16", "float64")
    calls = [
        PoolCall(f"{direction}_{dtype}_{i}", direction, dtype, kernel, strides, (pad,) * 4, True)
        for i, (kernel, strides, pad) in enumerate(WINDOWS)
        for dtype in dtypes
        for direction in ("forward", "backward")
    ]
    functions = norm_runner.load_source(generate_pools, pool_inputs, calls, folder)
    wrong = []
    for i, (kernel, strides, pad) in enumerate(WINDOWS):
        generator = torch.Generator().manual_seed(i)
        wide = torch.randint(-5, 6, (2, 13, 17, 11), generator=generator).double().requires_grad_()
        want = F.max_pool2d(wide, kernel, strides, pad)
        grad = torch.randint(-4, 5, want.shape, generator=generator).double()
        want.backward(grad)
        assert wide.grad is not None
        for dtype in dtypes:
            x, dy = _on_device(wide, dtype), _on_device(grad, dtype)
            y, dx = torch.full_like(dy, 7), torch.full_like(x, torch.nan)
            index = torch.full(y.shape, 255, device="cuda", dtype=torch.uint8)
            functions[f"forward_{dtype}_{i}"](x, y, index)
            functions[f"backward_{dtype}_{i}"](dy, index, dx)
            for what, got, exact in (("y", y, want), ("dx", dx, wide.grad)):
                if not torch.equal(got, _on_device(exact, dtype)):
                    wrong.append(f"window {i} {dtype}: {what}")
    return wrong


def elements(folder: Path) -> list[str]:
    """What TVM compiles by schedules of ours: packs, joins, and sums."""
    return _as_on_the_cpu(*element_cases.together(element_cases.ALL))


def casts(folder: Path) -> list[str]:
    """Casts and transpositions of many tensors in one launch."""
    shapes = [(64, 3, 7, 7), (5, 7, 3, 1), (31, 33, 1, 1), (8, 2048, 1, 1), (1, 1, 1, 1)] * 5
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, "float32") for shape in shapes]
    return _as_on_the_cpu(cast_transpose.step(shapes, True, "float16"), [*arrays, np.float32(7)])


def sums(folder: Path) -> list[str]:
    """Tensors that are made and summed by one kernel, over all pixels and those of an image."""
    cases = [
        ((3, 7, 5, 24), "float16", [0, 1, 2], False), ((2, 30, 31, 136), "bfloat16", [1, 2], True),
        ((64, 7, 7, 8), "float32", [0, 1, 2], True),
    ]  # fmt: skip
    with mock.patch.object(pipeline_sums, "SMALL", 0):
        return _as_on_the_cpu(*made_sums.several(cases))


def points(folder: Path) -> list[str]:
    """Weight gradients of one pixel in one launch."""
    products = (Product(5, 7, 9, True), Product(33, 130, 65, True), Product(1, 1, 1)) * 20
    call = PointWeightsCall("f", "float16", products)
    function = norm_runner.load_source(
        POINT_WEIGHTS.generate, POINT_WEIGHTS.inputs, [call], folder
    )["f"]
    shapes = [(p.n, p.k) for p in products] + [(p.n, p.c) for p in products]
    given = [torch.randn(shape, device="cuda").half() for shape in shapes]
    out = [torch.full((p.k, p.c), torch.nan, device="cuda").half() for p in products]
    out += [torch.full((p.k,), torch.nan, device="cuda") for p in products if p.biased]
    function(*given, *out)
    want = point_weights.values(call, [t.double().cpu().numpy() for t in given])
    errors = [relative_error(a.double().cpu().numpy(), b) for a, b in zip(out, want, strict=True)]
    return [f"result {i}: {error:.1e}" for i, error in enumerate(errors) if not error <= TOLERANCE]


def cudnn(folder: Path) -> list[str]:
    problems = [ConvProblem.parse(line.format(kind.value)) for line in LINES for kind in ConvKind]
    regions = regions_of(problems)
    return _wrong_convolutions(regions, load(regions, folder))


def scaled(folder: Path) -> list[str]:
    """Passes around weight gradients by scaled float16, wherever they may be."""
    regions = regions_of([ConvProblem.parse(line) for line in CORNERS], deterministic=True)
    before = os.environ.get(SCALED_HALF)
    os.environ[SCALED_HALF] = "always"  # which the first call reads
    try:
        return _wrong_convolutions(regions, load(regions, folder))
    finally:
        if before is None:
            del os.environ[SCALED_HALF]
        else:
            os.environ[SCALED_HALF] = before


def cutlass_kernels(folder: Path) -> list[str]:
    problems = [ConvProblem.parse(line.format(kind.value)) for line in LINES for kind in ConvKind]
    problems = [replace(p, **NHWC, groups=1) for p in problems]
    some = [cutlass_runner.region_of(f"f{i}", p) for i, p in enumerate(problems)]
    some = [region for region in some if cutlass.check(region.problem, "")]
    return _wrong_convolutions(some, cutlass_runner.load(some, folder))


def hopper(folder: Path) -> list[str]:
    problems = [ConvProblem.parse(line.format(kind.value)) for line in HOPPER for kind in ConvKind]
    some = [
        cutlass_runner.region_of(f"f{i}", p, arch=90, wgmma=True) for i, p in enumerate(problems)
    ]
    return _wrong_convolutions(some, cutlass_runner.load(some, folder))


Takes = Callable[[str], bool]  # a family


def direct(folder: Path) -> list[str]:
    """Our own depthwise convolutions: each family without gates, and each way to read rows."""
    return _wrong_own(_small(lambda family: family not in GATED), folder)


def grouped(folder: Path) -> list[str]:
    """Grouped convolutions, few filters, first layers: random problems, epilogues among them."""
    return _wrong_own(_random(lambda family: family not in GATED), folder)


def gated(folder: Path) -> list[str]:
    """Depthwise convolutions on tensor cores, whose warps wait for each other at gates."""
    return _wrong_own([*_small(GATED.__contains__), *_random(GATED.__contains__)], folder)


def _small(takes: Takes) -> list[Region]:
    regions = []
    for problem, epilogue in SMALL:
        found: dict[tuple[Any, ...], str] = {}
        for choice in ranked(problem, epilogue, 90):
            kernel = choice.kernel
            if takes(kernel.family):
                found.setdefault((kernel.family, kernel.numbers[-1:]), kernel.name)
        regions += [Region.of("", problem, epilogue, kernel=k, arch=90) for k in found.values()]
    return regions


def _random(takes: Takes) -> list[Region]:
    rng = np.random.default_rng(3)
    regions = []
    for family, kind in grouped_cases.FAMILY_KINDS:
        for _ in range(4 * takes(family)):
            problem, name = grouped_cases.drawn(rng, kind, family, small=True)
            steps = tuple(step for step in name.split("_") if step)
            arch = FAMILIES[family].oldest
            kernel = next(
                choice.kernel.name
                for choice in ranked(problem, steps, arch)
                if choice.kernel.family == family
            )
            regions.append(Region.of("", problem, steps, kernel=kernel, arch=arch))
    return regions


def _wrong_own(regions: list[Region], folder: Path) -> list[str]:
    named = [replace(region, symbol=f"f{i}") for i, region in enumerate(regions)]
    return direct_runner.wrong_ones(named, folder, 3)


def _no_nvcc() -> str | None:
    return "no nvcc" if direct_missing(find()) else None


def _no_cutlass() -> str | None:
    missing = cutlass_objects.missing(find(), cutlass_objects.find_cutlass())
    return "no nvcc or no headers" if missing else None


def _no_hopper() -> str | None:
    found = cutlass_objects.find_cutlass()
    if found is None or not found.has_builders:
        return "no headers of CUTLASS 3.x"
    there = torch.cuda.get_device_capability() == (9, 0)
    return _no_cutlass() if there else "no GPU of sm_90"


Part = Callable[[Path], list[str]]  # what is wrong, of kernels that it builds in a folder
PARTS: dict[str, tuple[Part, Callable[[], str | None]]] = {  # with why it can't be done here
    "norms": (norms, _no_nvcc),
    "groups": (groups, _no_nvcc),
    "gates": (gates, _no_nvcc),
    "standardized": (standardized, _no_nvcc),
    "softmax": (softmax, _no_nvcc),
    "attention": (attention, _no_nvcc),
    "volumes": (volumes, lambda: None),
    "followed": (followed, _no_nvcc),
    "pools": (pools, _no_nvcc),
    "updates": (wrong_updates, _no_nvcc),
    "joins": (wrong_of_all, _no_nvcc),
    "grouped": (grouped, _no_nvcc),
    "elements": (elements, lambda: None),
    "casts": (casts, _no_nvcc),
    "sums": (sums, lambda: None),
    "points": (points, _no_nvcc),
    "cudnn": (cudnn, lambda: None),
    "scaled": (scaled, lambda: None),
    "cutlass": (cutlass_kernels, _no_cutlass),
    "hopper": (hopper, _no_hopper),
    "direct": (direct, _no_nvcc),
    "gated": (gated, _no_nvcc),
}
_OTHERS = ("cudnn", "scaled")  # with kernels that are not ours
GROUPS = {
    "own": [name for name in PARTS if name not in _OTHERS],
    "ordered": [name for name in PARTS if name not in (*_OTHERS, "gated")],
}


def _on_device(nchw: torch.Tensor, dtype: str) -> torch.Tensor:
    return nchw.detach().permute(0, 2, 3, 1).contiguous().to("cuda", getattr(torch, dtype))


def _as_on_the_cpu(mod: tvm.IRModule, arrays: list[Any], name: str = "main") -> list[str]:
    device = tvm.cuda(0)
    library = byoc_cudnn.build(mod, pipeline=cuda_pipeline())
    got = library.virtual_machine(device)[name](*(tvm.runtime.tensor(a, device) for a in arrays))
    cpu = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    want = cpu[name](*(tvm.runtime.tensor(a) for a in arrays))
    wide = [[t.numpy().astype("float64") for t in _flat(results)] for results in (got, want)]
    errors = [relative_error(a, b) for a, b in zip(*wide, strict=True)]
    return [f"result {i}: {error:.1e}" for i, error in enumerate(errors) if not error <= TOLERANCE]


def _flat(results: Any) -> list[Any]:
    return [results] if hasattr(results, "numpy") else [t for r in results for t in _flat(r)]


def _wrong_convolutions(regions: list[Region], functions: Any) -> list[str]:
    rng, wrong = np.random.default_rng(0), []
    for region in regions:
        p = region.problem
        values = random_operands(p, rng)
        args, out = operands_on_device(p, *values), destination(p)
        for _ in range(2):
            functions[region.symbol](*args, out)
        torch.cuda.synchronize()
        error = relative_error(to_numpy(out), torch_reference(p, *values))
        if not error <= library_tolerance(p, tf32=True):
            wrong.append(f"{error:.1e} {p}")
    return wrong


def main() -> int:
    """1 where a result is wrong."""
    asked = [part for name in sys.argv[1:] or PARTS for part in GROUPS.get(name, [name])]
    if unknown := [name for name in asked if name not in PARTS]:
        there = ", ".join((*GROUPS, *PARTS))
        raise ValueError(f"no part {', '.join(unknown)}; there are {there}")
    os.environ["RELAY_WGRAD_POISON"] = "1"
    relay_wgrad.register()
    choose_compiler()
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked:
            run, lacking = PARTS[name]
            if reason := lacking():
                print(f"{name}: left out, {reason}", flush=True)
                continue
            # A folder of its own: a library of the same path would not be loaded anew.
            made = Path(folder, name)
            made.mkdir()
            found = run(made)
            print(f"{name}: {'WRONG' if found else 'right'}", *found, sep="\n  ", flush=True)
            wrong += found
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
