"""What cuDNN's epilogues cost: a call with bias and ReLU, or with a mask, beside the call alone.

    python -m benchmarks.cudnn_epilogues [--batch 64] [--dtypes bf16,f32] [--json FILE]

Layers of VGG-16, a mask in float32 among them, which the partition does not ask for.  `apart` is
the call alone and what an element-wise kernel moves, at --rate TB/s.  Each result is compared with
PyTorch's function of the result of the call alone.  Device events, medians; plans by `benchmark`.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import tvm_ffi
from rich.console import Console
from rich.table import Table

from benchmarks.gpu_timing import ROUNDS, timed
from byoc_cudnn.backends.cudnn.codegen import generate
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.codegen.regions import Region
from relay_wgrad import output
from relay_wgrad.problem import ConvKind, ConvProblem

# channels in, channels out, height and width
LAYERS = ((64, 64, 224), (64, 128, 112), (128, 128, 112), (256, 256, 56), (512, 512, 28),
          (512, 512, 14))  # fmt: skip
LINE = "{} n={} c={} h={} w={} k={} r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC dtype={}/{}/{}"
EPILOGUES = {ConvKind.FPROP: ("bias", "relu"), ConvKind.DGRAD: ("strictmask",)}


def problems(batch: int, dtypes: Sequence[str]) -> list[ConvProblem]:
    """Each layer's forward and data-gradient convolution in each dtype."""
    return [
        ConvProblem.parse(LINE.format(kind.value, batch, c, side, side, k, d, d, d))
        for c, k, side in LAYERS
        for kind in EPILOGUES
        for d in dtypes
    ]


def load(regions: Sequence[Region], folder: Path) -> Any:
    """The module of the regions' functions."""
    source, library = folder / "epilogues.cc", folder / "epilogues.so"
    source.write_text(generate(list(regions)), encoding="utf-8")
    subprocess.run(library_command(source, library), check=True)
    return tvm_ffi.load_module(str(library))


def measure(problem: ConvProblem, plain: Any, fused: Any, rate: float) -> dict[str, Any]:
    """Microseconds of both, and the largest difference in units of the result's largest number."""
    first, second, result = problem.roles
    dtype = getattr(torch, problem.dtype(result))

    def tensor(shape: Sequence[int]) -> torch.Tensor:
        return torch.randn(tuple(shape), device="cuda", dtype=dtype)

    x, w = tensor(problem.shape(first)), tensor(problem.shape(second)) * 0.05
    shape = problem.shape(result)
    forward = problem.kind is ConvKind.FPROP
    extra = tensor(shape[-1:]) if forward else tensor(shape)
    out, alone = tensor(shape), tensor(shape)
    row: dict[str, Any] = {"problem": problem.repro()}
    plain(x, w, alone)
    try:
        fused(x, w, extra, out)
    except RuntimeError as error:
        return {**row, "error": str(error).strip().partition("\n")[0]}
    wide = alone.float()
    want = (wide + extra.float()).relu_() if forward else wide.where(extra.float() > 0, 0)
    row["difference"] = float((out.float() - want).abs().max() / wide.abs().max())
    del want, wide
    times: dict[str, list[float]] = {"alone_us": [], "fused_us": []}
    for _ in range(ROUNDS):
        times["alone_us"].append(timed([lambda: plain(x, w, alone)], 10) * 1e6)
        times["fused_us"].append(timed([lambda: fused(x, w, extra, out)], 10) * 1e6)
    row |= {name: statistics.median(found) for name, found in times.items()}
    moved = out.nbytes * (2 if forward else 3)
    return {**row, "apart_us": row["alone_us"] + moved / rate / 1e6}


def main() -> int:
    """Prints the table that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cudnn_epilogues")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--rate", type=float, default=4.0, help="TB/s of an element-wise kernel")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    chosen = problems(args.batch, args.dtypes.split(","))
    options = {"benchmark": True}
    regions = []
    for i, p in enumerate(chosen):
        regions.append(replace(Region.of(f"plain{i}", p), options=options))
        regions.append(replace(Region.of(f"fused{i}", p, EPILOGUES[p.kind]), options=options))
    with tempfile.TemporaryDirectory() as folder:
        made = load(regions, Path(folder))
        rows = [
            measure(p, made[f"plain{i}"], made[f"fused{i}"], args.rate)
            for i, p in enumerate(chosen)
        ]
    table = Table(title=f"cuDNN's epilogues, µs, batch {args.batch}")
    for column in ("problem", "alone", "fused", "apart", "fused/apart", "difference"):
        table.add_column(column)
    for row in rows:
        name = " ".join(word for word in row["problem"].split() if word[:2] not in ("pa", "di"))
        if "error" in row:
            table.add_row(name, row["error"])
            continue
        figures = [f"{row[key]:.1f}" for key in ("alone_us", "fused_us", "apart_us")]
        ratio = row["fused_us"] / row["apart_us"]
        table.add_row(name, *figures, f"{ratio:.3f}", f"{row['difference']:.1e}")
    Console(width=150, highlight=False).print(table)
    if args.json:
        output.write_json(args.json, rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
