"""What cuDNN's epilogues cost: a call with bias and ReLU, or with a mask, beside the call alone.

    python -m benchmarks.cudnn_epilogues [--batch 64] [--dtypes bf16,f32] [--sums] [--json FILE]

Layers of VGG-16, a mask in float32 among them, which the partition does not ask for.  `apart` is
the call alone and what an element-wise kernel moves, at --rate TB/s.  Each result is compared with
PyTorch's function of the result of the call alone.  Device events, medians; plans by `benchmark`.

With --sums instead: dgrad with another gradient added to it, of the layers of ResNet-50 where two
gradients meet, as an operation of cuDNN's graph, and in place by its factor beta, for which the
result must hold the other gradient before.  `apart` is the call alone and one reading of the other
gradient, which is what normalizations that add it themselves pay in their first pass.
"""

from __future__ import annotations

import argparse
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

from benchmarks.gpu_timing import in_turns
from byoc_cudnn.backends.cudnn.codegen import generate
from byoc_cudnn.building.compiled import library_command
from byoc_cudnn.codegen.regions import Region
from relay_wgrad import output
from relay_wgrad.problem import ConvKind, ConvProblem

# channels in, channels out, height and width
LAYERS = ((64, 64, 224), (64, 128, 112), (128, 128, 112), (256, 256, 56), (512, 512, 28),
          (512, 512, 14))  # fmt: skip
# Where two gradients meet in ResNet-50: channels of the data, of the gradient, height and width.
MEETINGS = ((256, 64, 56), (512, 128, 28), (1024, 256, 14), (2048, 512, 7), (64, 64, 56))
POINT = "dgrad n={} c={} h={} w={} k={} r=1 s=1 layout=NHWC/OHWI/NHWC dtype={}/{}/{}"
_BETA = ".set(key.beta, CUDNN_TYPE_FLOAT, {})"
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


def meetings(batch: int, dtypes: Sequence[str]) -> list[ConvProblem]:
    """The data gradients to which another is added, in each dtype."""
    lines = [
        POINT.format(batch, c, side, side, k, d, d, d) for c, k, side in MEETINGS for d in dtypes
    ]
    return [ConvProblem.parse(line) for line in lines]


def load(regions: Sequence[Region], folder: Path, in_place: bool = False) -> Any:
    """The module of the regions' functions; `in_place`: they add to what the result holds."""
    source, library = folder / f"epilogues{in_place}.cc", folder / f"epilogues{in_place}.so"
    text = generate(list(regions))
    if in_place:  # and their plans are none of the others' in the user's record
        before = text
        text = text.replace(_BETA.format("0.0f"), _BETA.format("1.0f"))
        assert text != before, "the template says beta in another way"
        text = text.replace('" epilogue="', '" beta=1 epilogue="')
    source.write_text(text, encoding="utf-8")
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
    calls = {"alone": [lambda: plain(x, w, alone)], "fused": [lambda: fused(x, w, extra, out)]}
    row |= {f"{name}_us": s * 1e6 for name, s in in_turns(calls, 10, warm=0).items()}
    moved = out.nbytes * (2 if forward else 3)
    return {**row, "apart_us": row["alone_us"] + moved / rate / 1e6}


def summed(problem: ConvProblem, how: Sequence[Any], rate: float) -> dict[str, Any]:
    """Microseconds of dgrad alone, with an added gradient, and in place; and their differences."""
    plain, fused, in_place = how
    first, second, result = problem.roles
    dtype = getattr(torch, problem.dtype(result))

    def tensor(role: str) -> torch.Tensor:
        return torch.randn(tuple(problem.shape(role)), device="cuda", dtype=dtype)

    x, w, extra, out, alone = tensor(first), tensor(second) * 0.05, *(tensor(result) for _ in "123")
    plain(x, w, alone)
    want = alone.double() + extra.double()
    row: dict[str, Any] = {"problem": problem.repro(), "bytes": out.nbytes}
    calls = {"alone": lambda: plain(x, w, alone), "fused": lambda: fused(x, w, extra, out),
             "in_place": lambda: in_place(x, w, out)}  # fmt: skip
    for name in ("fused", "in_place"):
        try:
            calls[name]()  # chooses its plan
            out.copy_(extra)
            calls[name]()
        except RuntimeError as error:
            row[f"{name}_error"] = str(error).strip().partition("\n")[0]
            del calls[name]
            continue
        row[f"{name}_difference"] = float((out.double() - want).norm() / want.norm())
    del want
    taken = in_turns({name: [call] for name, call in calls.items()}, 10, warm=0)
    row |= {f"{name}_us": s * 1e6 for name, s in taken.items()}
    return {**row, "apart_us": row["alone_us"] + out.nbytes / rate / 1e6}


def print_sums(rows: Sequence[dict[str, Any]], batch: int) -> None:
    table = Table(title=f"another gradient added to cuDNN's dgrad, µs, batch {batch}")
    names = ("alone", "fused", "in place", "apart, one reading", "two readings")
    for column in ("problem", *names, "differences"):
        table.add_column(column)
    for row in rows:
        reading = row["apart_us"] - row["alone_us"]
        given = [row.get(f"{name}_us") for name in ("alone", "fused", "in_place", "apart")]
        figures = [*given, row["apart_us"] + reading]
        told = [f"{row[key]:.1e}" for key in row if key.endswith("_difference")]
        name = " ".join(w for w in row["problem"].split() if w[:2] not in ("pa", "di", "gr", "la"))
        table.add_row(name, *("none" if us is None else f"{us:.1f}" for us in figures),
                      " ".join(told))  # fmt: skip
    Console(width=150, highlight=False).print(table)


def main() -> int:
    """Prints the table that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cudnn_epilogues")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--dtypes", default="bf16,f32")
    parser.add_argument("--rate", type=float, default=4.0, help="TB/s of an element-wise kernel")
    parser.add_argument("--sums", action="store_true", help="dgrad with another gradient added")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    chosen = (meetings if args.sums else problems)(args.batch, args.dtypes.split(","))
    options = {"benchmark": True}
    regions = []
    for i, p in enumerate(chosen):
        regions.append(replace(Region.of(f"plain{i}", p), options=options))
        epilogue = ("residual",) if args.sums else EPILOGUES[p.kind]
        regions.append(replace(Region.of(f"fused{i}", p, epilogue), options=options))
    with tempfile.TemporaryDirectory() as folder:
        made = load(regions, Path(folder))
        if args.sums:
            adding = load(regions[::2], Path(folder), in_place=True)
            kinds = ((made, "plain"), (made, "fused"), (adding, "plain"))
            rows = [
                summed(p, [module[f"{name}{i}"] for module, name in kinds], args.rate)
                for i, p in enumerate(chosen)
            ]
            print_sums(rows, args.batch)
            if args.json:
                output.write_json(args.json, rows)
            return 0
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
