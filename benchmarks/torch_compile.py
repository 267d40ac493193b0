"""Networks trained through `torch.compile(model, backend="relay_wgrad")`, beside other ways.

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

Times are of whole steps: on a CPU the median of the steps after the second, on a GPU by events, in
rounds in which all ways take turns, when all processes have compiled.  Dropout draws eager's
numbers on the CPU; on a GPU, where eager's kernel has its own, layers that draw are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu_sides import DTYPES
from benchmarks.plain_networks import NETWORKS as PLAIN
from benchmarks.ready import in_groups
from benchmarks.runner import Benchmark, Case, Option, Row, Rows
from benchmarks.torch_sides import OTHERS, Problem, worker

NETWORKS = (
    "alexnet", "vgg11", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2",
    "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large", "mnasnet0_5",
    "shufflenet_v2_x0_5", "efficientnet_b0", "efficientnet_v2_s", "regnet_y_400mf",
    "regnet_x_400mf", "densenet121", "googlenet", "inception_v3", "convnext_tiny",
    "fcn_resnet50", "lraspp_mobilenet_v3_large", "vit_b_16",
)  # fmt: skip
WITHOUT_TORCHVISION = (*PLAIN, "unet", "onnx:inception_v1", "onnx:squeezenet")


def against(args: argparse.Namespace) -> tuple[str, ...]:
    """The ways beside ours."""
    usual = ("convolutions", "inductor", "eager") if args.on_gpu else ("eager", "exact")
    return args.against or usual


def cases(args: argparse.Namespace) -> Iterator[Case]:
    there = importlib.util.find_spec("torchvision") is not None
    batch = args.batch or (64 if args.on_gpu else 8)
    image = args.image or (224 if args.on_gpu else None)
    for name in args.networks or (NETWORKS if there else WITHOUT_TORCHVISION):
        key = {"network": name, "dtype": args.dtype, "batch": batch, "steps": args.steps}
        yield Case(key, Problem(name, against(args), args.steps, "cuda" if args.on_gpu else "cpu",
                                args.dtype, batch, image))  # fmt: skip


def run(rows: Rows, cases: Sequence[Case], args: argparse.Namespace) -> None:
    """So many compile at a time, then each is measured alone, the GPU by a lock on a file."""
    with tempfile.NamedTemporaryFile(prefix="relay-wgrad-gpu-") as lock:
        if args.on_gpu:
            cases = [case._replace(what=case.what._replace(lock=lock.name)) for case in cases]
        in_groups(rows, cases, worker, args.jobs)


def is_whole(row: Row, args: argparse.Namespace) -> bool:
    """Whether it has these sides."""
    return all(name in row.get("sides", {}) for name in ("ours", *against(args)))


def ratios(row: dict[str, Any], of: str = "ours") -> dict[str, float]:
    """The times of a side over each other one's."""
    times = {name: found["ms"] for name, found in row.get("sides", {}).items() if "ms" in found}
    return {
        name: times[of] / ms for name, ms in times.items()
        if of in times and name not in (of, "ours", "exact")
    }  # fmt: skip


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """The geometric means of the ratios, a line each."""
    for of in ("ours", "convolutions"):
        found: dict[str, list[float]] = {}
        for row in rows:
            for name, value in ratios(row, of).items():
                found.setdefault(name, []).append(value)
        for name, values in found.items():
            yield (
                f"{of} / {name}: geometric mean {statistics.geometric_mean(values):.3f} of"
                f" {len(values)} networks, {min(values):.2f} to {max(values):.2f}"
            )


BENCHMARK = Benchmark(
    cases, run=run, is_whole=is_whole, summary=summary,
    options={
        "networks": Option((), "else torchvision's of the file"),
        "against": Option((), "else convolutions,inductor,eager on a GPU, eager,exact", OTHERS),
        "steps": Option(20, "of the optimizer"),
        "batch": Option(0, "images; 8, on a GPU 64, if 0"),
        "image": Option(0, "the smallest that a network takes, on a GPU 224, if 0"),
        "dtype": Option("f32", "", DTYPES),
        "jobs": Option(1, "networks that compile at a time"),
    },
    columns=(
        ("network",), ("image",),
        ("losses", lambda row: "{0[0]:.3f} → {0[-1]:.3f}".format(row["sides"]["ours"]["losses"])),
        *((key.replace("_", " "), key, ".1e") for key in (
            "furthest", "relative", "eagers", "rounding")),
        ("breaks added", "breaks_added"),
        ("taken", lambda row: f"{row['sides']['ours']['taken']}/{row['asked']}"),
        ("first s", "sides.ours.first_s", ".1f"),
        *((f"{side} ms", f"sides.{side}.ms", ".2f") for side in ("ours", *OTHERS)), ("reason",),
    ),
)  # fmt: skip
