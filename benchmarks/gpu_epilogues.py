"""What an epilogue saves: a convolution with what follows it, and the kernels apart.

"fused" is one kernel, "apart" the same convolution and then PyTorch's fastest function for the rest
in place of the epilogue, "alone" the convolution, "one pass" that and what an element-wise kernel
of all of the rest would move, at a copy's rate; "torch" PyTorch's own of all of it in channels_last
with `benchmark`, of fprop in half precision.  Suites:

  activations  fprop with a bias, as a normalization folded into it leaves one, and ReLU6 or SiLU:
               MobileNetV2's layers, by our own kernel where they are depthwise, by CUTLASS's else
  cutlass      dgrad with ReLU's mask or a residual; --wgmma: with Hopper's own instructions
  cudnn        VGG-16's layers with bias and ReLU, or a mask, plans by `benchmark`
  sums         dgrad by cuDNN with another gradient added, of ResNet-50's layers where two meet, as
               an operation of its graph

Each result is compared with PyTorch's function of the convolution alone.  Device events,
alternating rounds, medians; operands take turns where they would stay in the cache.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from benchmarks import gpu_code
from benchmarks.gpu_norm import copy_rate
from benchmarks.gpu_timing import L2_BYTES, canonical, in_turns, relative
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from byoc_cudnn.backends.cuda_direct import codegen as direct
from byoc_cudnn.backends.cudnn import codegen as cudnn
from byoc_cudnn.backends.cutlass import codegen as cutlass
from byoc_cudnn.codegen.regions import Region
from byoc_cudnn.fused import STEPS, operand_shape
from relay_wgrad.problem import ConvKind, ConvProblem

Names = tuple[str, ...]


class Suite(NamedTuple):
    """Layers, (channels, filters, side, taps, stride), and of each kind what follows it.

    before : steps that also the kernels apart have.  depthwise : what has taps.
    """

    layers: tuple[tuple[int, int, int, int, int], ...]
    backend: str
    epilogues: dict[str, tuple[Names, ...]]
    before: Names = ()
    dtypes: Names = ("f16",)
    depthwise: bool = False


SUITES = {
    "activations": Suite(
        ((32, 32, 112, 3, 1), (16, 96, 112, 1, 1), (96, 96, 112, 3, 2), (24, 144, 56, 1, 1),
         (144, 144, 56, 3, 1), (144, 144, 56, 3, 2), (32, 192, 28, 1, 1), (192, 192, 28, 3, 1),
         (64, 384, 14, 1, 1), (384, 384, 14, 3, 1), (576, 576, 14, 3, 1), (960, 960, 7, 3, 1),
         (320, 1280, 7, 1, 1)),
        "cutlass", {"fprop": (("relu6",), ("silu",))}, before=("bias",), depthwise=True,
    ),
    "cutlass": Suite(
        ((64, 64, 56, 3, 1), (128, 128, 28, 3, 1), (512, 512, 7, 3, 1), (256, 64, 56, 1, 1)),
        "cutlass", {"dgrad": (("mask",), ("residual",))},
    ),
    "cudnn": Suite(
        ((64, 64, 224, 3, 1), (64, 128, 112, 3, 1), (128, 128, 112, 3, 1), (256, 256, 56, 3, 1),
         (512, 512, 28, 3, 1), (512, 512, 14, 3, 1)),
        "cudnn", {"fprop": (("bias", "relu"),), "dgrad": (("strictmask",),)},
        dtypes=("bf16", "f32"),
    ),
    "sums": Suite(
        ((256, 64, 56, 1, 1), (512, 128, 28, 1, 1), (1024, 256, 14, 1, 1), (2048, 512, 7, 1, 1),
         (64, 64, 56, 1, 1)),
        "cudnn", {"dgrad": (("residual",),)}, dtypes=("bf16", "f32"),
    ),
}  # fmt: skip
CODES = {"cuda_direct": direct, "cutlass": cutlass, "cudnn": cudnn}
# A step: (what the steps before have made, its operand) -> the result, by one kernel of PyTorch.
FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "bias": lambda y, b: y.add_(b.view(-1, 1, 1)),
    "relu": lambda y, _: F.relu(y, inplace=True),
    "relu6": lambda y, _: F.hardtanh_(y, 0.0, 6.0),
    "silu": lambda y, _: F.silu(y, inplace=True),
    # The mask passes where x is 0, threshold_backward does not; both move the same bytes.
    "mask": lambda y, x: torch.ops.aten.threshold_backward(y, x, 0),
    "strictmask": lambda y, x: torch.ops.aten.threshold_backward(y, x, 0),
    "residual": torch.add,
}
LIMITS = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-3}  # relative errors in norm


class What(NamedTuple):
    """A problem with an epilogue, and how it is built."""

    problem: ConvProblem
    backend: str
    before: Names
    steps: Names
    options: dict[str, Any]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for name in args.suite:
        suite = SUITES[name]
        for layer, dtype, kind in itertools.product(suite.layers, suite.dtypes, suite.epilogues):
            problem = problem_of(kind, layer, args.batch, dtype, suite.depthwise)
            backend = "cuda_direct" if problem.groups > 1 else suite.backend
            options: dict[str, Any] = {"benchmark": True} if backend == "cudnn" else {}
            if args.wgmma and backend == "cutlass":
                options = {"arch": 90, "wgmma": True}
            for steps in suite.epilogues[kind]:
                what = What(problem, backend, suite.before, steps, options)
                yield Case({"suite": name, "problem": problem.repro(),
                            "epilogue": " ".join(steps)}, what)  # fmt: skip


def problem_of(
    kind: str, layer: tuple[int, ...], batch: int, dtype: str, depthwise: bool
) -> ConvProblem:
    c, k, side, taps, stride = layer
    pad, groups = taps // 2, c if depthwise and taps > 1 else 1
    return ConvProblem.parse(
        f"{kind} n={batch} c={c} h={side} w={side} k={k} r={taps} s={taps} stride={stride},{stride}"
        f" pad={pad},{pad},{pad},{pad} groups={groups} layout=NHWC/OHWI/NHWC"
        f" dtype={dtype}/{dtype}/{dtype}"
    )


def sources(cases: Sequence[Case], arch: int | None) -> dict[str, str]:
    """C++ by backend: of case i `plain{i}` and `fused{i}`."""
    regions: dict[str, list[Region]] = {}
    for i, case in enumerate(cases):
        what: What = case.what
        for name, steps in (("plain", what.before), ("fused", what.before + what.steps)):
            region = Region.of(f"{name}{i}", what.problem, steps, **what.options)
            regions.setdefault(what.backend, []).append(region)
    return {
        backend: cudnn.generate(own) if backend == "cudnn" else CODES[backend].generate(own, arch)
        for backend, own in regions.items()
    }


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    modules = {name: gpu_code.loaded(text, args.folder / name)
               for name, text in sources(cases, gpu_code.arch()).items()}  # fmt: skip
    numbers = {case.text: i for i, case in enumerate(cases)}
    args.found["copy"] = copy_rate()

    def one(case: Case) -> Row:
        i, module = numbers[case.text], modules[case.what.backend]
        row = measure(case.what, module[f"fused{i}"], module[f"plain{i}"])
        return row | {"one_pass_us": row["alone_us"] + row["moved"] / args.found["copy"] * 1e6}

    return one


def measure(what: What, fused: Any, plain: Any) -> Row:
    problem, generator = what.problem, torch.Generator("cuda").manual_seed(0)
    first, second, result = problem.roles
    dtype = getattr(torch, problem.dtype(result))

    def tensor(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype, generator=generator) * scale

    def extras(steps: Names) -> dict[str, Any]:
        """The operand of each step, None where it has none."""
        shapes = {name: operand_shape(STEPS[name], problem) for name in steps}
        return {name: tensor(*shapes[name]) if STEPS[name].operand else None for name in steps}

    def own(given: dict[str, Any]) -> list[torch.Tensor]:
        return [t for t in given.values() if t is not None]

    sets = []
    for _ in range(max(1, math.ceil(3 * L2_BYTES / problem.bytes))):
        x, w = tensor(*problem.shape(first)), tensor(*problem.shape(second), scale=0.05)
        y = torch.full(problem.shape(result), torch.nan, device="cuda", dtype=dtype)
        sets.append((x, w, extras(what.before), extras(what.steps), y))

    def followed(y: torch.Tensor, steps: dict[str, Any]) -> torch.Tensor:
        for name, extra in steps.items():
            whole = extra is not None and extra.ndim == 4
            y = FUNCTIONS[name](y, canonical(extra) if whole else extra)
        return y

    def apart(x: Any, w: Any, before: Any, after: Any, y: Any) -> None:
        plain(x, w, *own(before), y)
        followed(canonical(y), after)

    def theirs(x: Any, w: Any, before: Any, after: Any, y: Any) -> torch.Tensor:
        steps = {**before, **after}
        made = F.conv2d(
            canonical(x), canonical(w), steps.pop("bias", None), problem.strides,
            problem.padding[:2], groups=problem.groups,
        )  # fmt: skip
        return followed(made, steps)

    x, w, before, after, y = sets[0]
    plain(x, w, *own(before), y)
    wide = {name: None if t is None else t.float() for name, t in after.items()}
    want = followed(canonical(y).float(), wide)
    y.fill_(torch.nan)
    fused(x, w, *own(before), *own(after), y)
    row: Row = {"error": relative(canonical(y), want)}
    if not row["error"] <= LIMITS[problem.dtype(result)]:
        row["reason"] = f"wrong: off by {row['error']:.2g}"
    calls: dict[str, list[Callable[[], Any]]] = {
        "fused": [partial(fused, x, w, *own(b), *own(a), y) for x, w, b, a, y in sets],
        "apart": [partial(apart, *t) for t in sets],
        "alone": [partial(plain, x, w, *own(b), y) for x, w, b, _, y in sets],
    }
    if problem.kind is ConvKind.FPROP and dtype != torch.float32:
        calls["torch"] = [partial(theirs, *t) for t in sets]
    row |= {f"{side}_us": s * 1e6 for side, s in in_turns(calls, 20).items()}
    moved = 2 * y.nbytes + sum(t.nbytes for t in own(after))
    return row | {"ratio": row["fused_us"] / row["apart_us"], "moved": moved}


BENCHMARK = Benchmark(
    cases, begin, suites=SUITES, by=("suite",),
    options={
        "batch": Option(64, "images"),
        "wgmma": Option(False, "CUTLASS's kernels with Hopper's own instructions"),
    },
    columns=(
        ("suite",), ("problem", lambda row: " ".join(row["problem"].split()[:8])), ("epilogue",),
        *((side.replace("_", " "), f"{side}_us", ".1f")
          for side in ("fused", "apart", "alone", "one_pass", "torch")),
        ("fused/apart", "ratio", ".3f"), ("MB moved", "moved", ".0f", 1e-6),
        ("error", None, ".1e"), ("reason",),
    ),
)  # fmt: skip
