"""Networks trained through `torch.compile(model, backend="relay_wgrad")`, beside other ways.

    python -m benchmarks.torch_compile [--json FILE [--resume]] [--networks NAMES] [--steps 20]
        [--against eager,exact] [--batch 8] [--image N] [--dtype f32] [--time-budget SECONDS]
    python -m benchmarks.torch_compile --device cuda [--against convolutions,inductor,eager]
        [--batch 64] [--image 224] [--dtype bf16] [--jobs 4] …

Each network of torchvision, `unet` or `onnx:` and a bundled one (without torchvision
`plain_networks`' and those) takes steps of SGD with momentum on one batch, from the same weights
and seeds, compiled by this package and in each other way: `eager`; `inductor`; `convolutions`,
which is Inductor with our convolutions where they are faster; `exact`, eager in float64; `graphs`
and `captured`, Inductor and ours with CUDA graphs (`mode="reduce-overhead"`).  Halves are by
autocast.  A row says the losses, how far they are from eager's and eager's from `exact`
("furthest": of the first loss; "relative": of the same step's), where they are further how far
eager's go from themselves by one rounding of the images ("rounding"), how many graph breaks our
backend adds to Dynamo's own, how many of the convolutions and gradients that PyTorch computes are
compiled by this package, and the seconds of the first step.

Times are of whole steps: on the CPU the median of the steps after the second, on CUDA by events, in
rounds in which all ways take turns, when all processes have compiled.  Dropout draws eager's
numbers on the CPU; on CUDA, where eager's kernel has its own, layers that draw are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.cpu_timing import cpu_model
from benchmarks.gpu_sides import DTYPES
from benchmarks.partial_training import Run
from benchmarks.plain_networks import NETWORKS as PLAIN
from benchmarks.torch_sides import OTHERS, Case, worker
from relay_wgrad import output

NETWORKS = (
    "alexnet", "vgg11", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
    "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5",
    "shufflenet_v2_x0_5", "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf",
    "regnet_x_400mf", "densenet121", "googlenet", "inception_v3", "convnext_tiny",
    "fcn_resnet50", "lraspp_mobilenet_v3_large", "vit_b_16",
)  # fmt: skip
WITHOUT_TORCHVISION = (*PLAIN, "unet", "onnx:inception_v1", "onnx:squeezenet")
AGAINST = {"cpu": ("eager", "exact"), "cuda": ("convolutions", "inductor", "eager")}
BATCH = {"cpu": 8, "cuda": 64}
_UNLIMITED = 1e6  # seconds


def ratios(row: dict[str, Any], of: str = "ours") -> dict[str, float]:
    """The times of a side over each other one's."""
    times = {name: found["ms"] for name, found in row.get("sides", {}).items() if "ms" in found}
    return {
        name: times[of] / ms for name, ms in times.items()
        if of in times and name not in (of, "ours", "exact")
    }  # fmt: skip


def table(rows: dict[str, dict[str, Any]], sides: Sequence[str]) -> Table:
    """For people."""
    shown = Table(title="steps of training by torch.compile: ms, and ours over each")
    keys = ("furthest", "relative", "eagers", "rounding", "breaks_added")
    for title in ("network", "image", "losses", *keys, "taken", "first s",
                  *(f"{s} ms" for s in ("ours", *sides)), *(f"ours/{s}" for s in sides),
                  "reason"):  # fmt: skip
        shown.add_column(title.replace("_", " "))
    for name, row in rows.items():
        if "sides" not in row:
            blank = [""] * (len(shown.columns) - 2)
            shown.add_row(name, *blank, escape(row.get("error", "")))
            continue
        ours, times = row["sides"]["ours"], ratios(row)
        cells = [row.get(key, "") for key in keys]
        shown.add_row(
            name, str(row["image"]), f"{ours['losses'][0]:.3f} → {ours['losses'][-1]:.3f}",
            *(f"{cell:.1e}" if isinstance(cell, float) else str(cell) for cell in cells),
            f"{ours['taken']}/{row['asked']}", f"{ours['first_s']:.1f}",
            *(f"{row['sides'].get(s, {}).get('ms', math.nan):.2f}" for s in ("ours", *sides)),
            *(f"{times[s]:.2f}" if s in times else "" for s in sides),
            escape(row.get("reason", "")),
        )  # fmt: skip
    return shown


def means(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The geometric means of the ratios, a line each."""
    lines = []
    for of in ("ours", "convolutions"):
        found: dict[str, list[float]] = {}
        for row in rows.values():
            for name, value in ratios(row, of).items():
                found.setdefault(name, []).append(value)
        lines += [
            f"{of} / {name}: geometric mean {statistics.geometric_mean(values):.3f} of"
            f" {len(values)} networks, {min(values):.2f} to {max(values):.2f}"
            for name, values in found.items()
        ]
    return lines


def whole(row: dict[str, Any], sides: Sequence[str]) -> bool:
    """Whether it has these sides."""
    return all(name in row.get("sides", {}) for name in ("ours", *sides))


def earlier(path: Path, facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rows of an earlier run's file, each with the device that it is of.

    Raises ValueError for a file of other facts, whose rows would be lost.
    """
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    for key, value in facts.items():
        if found.get(key) != value:
            raise ValueError(f"{path} has rows of {key} {found.get(key)}, not {value}")
    return {name: {"device": found.get("device"), **row} for name, row in found["rows"].items()}


def run(
    cases: Sequence[Case], jobs: int, until: float, told: Callable[[str, dict[str, Any]], None]
) -> None:
    """Rows in processes: so many compile at a time, then each is measured alone."""
    for at in range(0, len(cases), jobs):
        if time.monotonic() > until:
            return
        group = [(case, Run(worker, case)) for case in cases[at : at + jobs]]
        for _, process in group:
            process.ready(until)
        for case, process in group:
            told(case.name, process.row(until))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures what the command line asks for; 1 where a row is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_compile")
    parser.add_argument("--networks", help="joined by commas; else those of the file")
    parser.add_argument("--json", metavar="FILE", help="write the rows to FILE, after each network")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    parser.add_argument("--time-budget", type=float, metavar="SECONDS", default=_UNLIMITED)
    parser.add_argument("--device", default="cpu", choices=tuple(AGAINST))
    parser.add_argument("--against", help=f"of {', '.join(OTHERS)}, joined by commas")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, help="8, on CUDA 64")
    parser.add_argument("--image", type=int, help="the smallest that a network takes, on CUDA 224")
    parser.add_argument("--dtype", default="f32", choices=DTYPES)
    parser.add_argument("--jobs", type=int, default=1, help="networks that compile at a time")
    args = parser.parse_args(argv)
    if args.resume and not args.json:
        parser.error("--resume needs --json")
    sides = tuple(args.against.split(",")) if args.against else AGAINST[args.device]
    if unknown := set(sides) - set(OTHERS):
        parser.error(f"--against: {', '.join(sorted(unknown))} is not of {', '.join(OTHERS)}")
    on_cpu = args.device == "cpu"
    there = importlib.util.find_spec("torchvision") is not None
    names = args.networks.split(",") if args.networks else NETWORKS if there else (
        WITHOUT_TORCHVISION
    )  # fmt: skip
    device = cpu_model() if on_cpu else torch.cuda.get_device_name()
    facts = {
        "torch": torch.__version__, "dtype": args.dtype, "batch": args.batch or BATCH[args.device],
        "steps": args.steps,
    }  # fmt: skip
    try:
        rows = earlier(Path(args.json), facts) if args.resume else {}
    except ValueError as error:
        parser.error(f"--resume: {error}")
    cases = [
        Case(name, sides, args.steps, args.device, args.dtype, facts["batch"],
             args.image or (None if on_cpu else 224))
        for name in names if not whole(rows.get(name, {}), sides)
    ]  # fmt: skip

    def told(name: str, row: dict[str, Any]) -> None:
        rows[name] = {"device": device, **row, "date": time.strftime("%Y-%m-%d")}
        print(name, row.get("reason", row.get("error", "as it should be")), flush=True)
        if args.json:
            output.write_json(args.json, {**facts, "rows": rows})

    with tempfile.NamedTemporaryFile(prefix="relay-wgrad-gpu-") as lock:
        if not on_cpu:
            cases = [case._replace(lock=lock.name) for case in cases]
        run(cases, args.jobs, time.monotonic() + args.time_budget, told)
    asked = {name: rows[name] for name in names if name in rows}
    printed = Console(width=230)
    printed.print(table(asked, sides))
    for line in means(asked):
        printed.print(line)
    good = sum("reason" not in row and "error" not in row for row in asked.values())
    printed.print(f"{len(asked)} of {len(names)} networks, {good} without a failure")
    return int(good < len(asked))


if __name__ == "__main__":
    raise SystemExit(main())
