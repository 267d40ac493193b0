"""What ReLU6 and SiLU in fprop's epilogue save: MobileNetV2's layers for inference, and PyTorch's.

    python -m benchmarks.gpu_activations [--batch 64] [--json FILE]

Each layer with a bias, as a normalization folded into it leaves one: by our own kernel where it is
depthwise, by CUTLASS's where it is a product.  "fused" has the activation in the epilogue, "apart"
is the same kernel with the bias and then PyTorch's activation in place, one pass; "PyTorch" is its
convolution with that bias by cuDNN (`benchmark`, channels_last) and the same activation.  float16;
device events, alternating rounds, medians; operands take turns where they would stay in the cache.
The floor is operands and result once at a copy's speed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_fusion import build
from benchmarks.gpu_norm import copy_rate
from benchmarks.gpu_timing import L2_BYTES, canonical, in_turns
from byoc_cudnn.backends.cuda_direct import codegen as direct
from byoc_cudnn.backends.cutlass import codegen as cutlass
from byoc_cudnn.codegen.regions import Region
from relay_wgrad import output
from relay_wgrad.problem import ConvProblem

LINE = (
    "fprop n={} c={} h={} w={} k={} r={} s={} stride={} pad={} groups={}"
    " layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
)
# Channels, filters, side, and taps and stride of what is depthwise; a pixel's product without.
LAYERS = (
    (32, 32, 112, 3, 1), (16, 96, 112, 0, 1), (96, 96, 112, 3, 2), (24, 144, 56, 0, 1),
    (144, 144, 56, 3, 1), (144, 144, 56, 3, 2), (32, 192, 28, 0, 1), (192, 192, 28, 3, 1),
    (64, 384, 14, 0, 1), (384, 384, 14, 3, 1), (576, 576, 14, 3, 1), (960, 960, 7, 3, 1),
    (320, 1280, 7, 0, 1),
)  # fmt: skip
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu6": lambda y: F.hardtanh_(y, 0.0, 6.0),
    "silu": partial(F.silu, inplace=True),
}
LIMIT = 2e-3  # relative error in norm


def problem_of(layer: tuple[int, ...], batch: int) -> ConvProblem:
    c, k, side, taps, stride = layer
    groups, pad = (c, 1) if taps else (1, 0)
    return ConvProblem.parse(
        LINE.format(
            batch, c, side, side, k, taps or 1, taps or 1, f"{stride},{stride}",
            f"{pad},{pad},{pad},{pad}", groups,
        )
    )  # fmt: skip


def measure(problem: ConvProblem, name: str, fused: Any, plain: Any) -> dict[str, Any]:
    generator = torch.Generator("cuda").manual_seed(0)

    def tensor(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.float16, generator=generator)

    sets = [
        (
            tensor(*problem.shape("data")), tensor(*problem.shape("weight")), tensor(problem.k),
            torch.full(problem.shape("grad"), torch.nan, device="cuda", dtype=torch.float16),
        )
        for _ in range(max(1, math.ceil(3 * L2_BYTES / problem.bytes)))
    ]  # fmt: skip
    activation = ACTIVATIONS[name]

    def apart(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor) -> None:
        plain(x, w, b, y)
        activation(y)

    def theirs(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(
            canonical(x), canonical(w), b, problem.strides, problem.padding[:2],
            groups=problem.groups,
        )  # fmt: skip
        return activation(y)

    x, w, b, y = sets[0]
    fused(x, w, b, y)
    want = theirs(x.float(), w.float(), b.float())
    error = float((canonical(y) - want).norm() / want.norm())
    if not error <= LIMIT:
        raise SystemExit(f"{problem.repro()} {name}: off by {error:.2g}")
    candidates = {
        "fused": [partial(fused, *t) for t in sets],
        "apart": [partial(apart, *t) for t in sets],
        "torch": [partial(theirs, *t[:3]) for t in sets],
    }
    middle = {f"{side}_us": s * 1e6 for side, s in in_turns(candidates, 20).items()}
    return {"problem": problem.repro(), "activation": name, "bytes": problem.bytes, **middle}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_activations", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    problems = [problem_of(layer, args.batch) for layer in LAYERS]
    epilogues = [("bias",), *(("bias", name) for name in ACTIVATIONS)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        modules = {}
        for generate, groups in ((direct.generate, True), (cutlass.generate, False)):
            regions = [
                Region.of(f"{e[-1]}{i}", p, e)
                for i, p in enumerate(problems)
                for e in epilogues
                if (p.groups > 1) is groups
            ]
            modules[groups] = build(regions, Path(folder), generate)
        for i, p in enumerate(problems):
            module = modules[p.groups > 1]
            plain = module[f"bias{i}"]
            rows += [measure(p, name, module[f"{name}{i}"], plain) for name in ACTIVATIONS]
    rate = copy_rate()
    table = Table(title=f"fprop, bias, activation: µs, {torch.cuda.get_device_name()}")
    for column in ("problem", "activation", "fused", "apart", "PyTorch", "fused/apart",
                   "fused/PyTorch", "floor"):  # fmt: skip
        table.add_column(column)
    for row in rows:
        ours, apart, theirs = (row[f"{side}_us"] for side in ("fused", "apart", "torch"))
        row["floor_us"] = row["bytes"] / rate * 1e6
        words = row["problem"].split()
        table.add_row(
            " ".join([*words[2:4], *words[5:8], words[8]]), row["activation"], f"{ours:.1f}",
            f"{apart:.1f}", f"{theirs:.1f}", f"{ours / apart:.2f}", f"{ours / theirs:.2f}",
            f"{row['floor_us']:.1f}",
        )  # fmt: skip
    Console(width=150, highlight=False).print(table)
    for other in ("apart", "torch"):
        ratios = [row["fused_us"] / row[f"{other}_us"] for row in rows]
        print(f"fused / {other}: geometric mean {statistics.geometric_mean(ratios):.3f}")
    if args.json:
        output.write_json(args.json, {"gpu": torch.cuda.get_device_name(), "rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
