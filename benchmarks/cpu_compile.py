"""A newcomer's first minutes on a CPU: seconds to the first gradients, beside PyTorch's Inductor.

Each figure is of a process of its own.  `first` is from when everything is imported to when the
first loss and gradients are there, PyTorch's compiler among the imports of every side; `import` is
given beside it, and `total` is both.  `processor` is what the same seconds took of all cores, with
the compilers that were started; `whole` that of the process from its start to its end.  `step` is
the shortest of some steps after that.  Cold: with empty caches; warm: again, with what the cold
process left.  The sides take turns, network by network, and each turn has all of them; the lines
below the table are medians over the turns, and ratios of these.

Parts of one measurement may run at the same time on cores of their own, and are then one table:

    taskset -c 0,1 python -m benchmarks cpu first --suite small,unet --json a.json
    taskset -c 2,3 python -m benchmarks cpu first --suite resnet50 --json b.json
    python -m benchmarks cpu first --merge a.json,b.json --json all.json

What torchvision has is built from there, and is left out where there is none.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import child
from benchmarks.cpu_timing import processor_time
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.cores import usable_cores

WAYS = ("trainer", "step", "compile")
OTHER = "inductor"
STATES = ("cold", "warm")
# Images of a batch, and their height and width.
NETWORKS = {
    "small": (32, 32), "unet": (4, 64), "resnet50": (4, 224), "mobilenet_v2": (4, 224),
    "mobilenet_v3_large": (4, 224), "convnext_tiny": (4, 224),
}  # fmt: skip
TORCHVISION = ("mobilenet_v3_large", "convnext_tiny")
STEPS = 3
FIGURES = ("import", "first", "total", "step", "processor", "whole")
RATIOS = ("first", "total", "step", "processor")  # of these means over networks are printed
_BEGAN = "RELAY_WGRAD_BENCHMARK_BEGAN"  # when a process was started


def network(name: str) -> Any:
    """A network of so many classes, with seeded weights."""
    from benchmarks import plain_networks

    torch.manual_seed(0)
    if name == "small":
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(64, 10),
        )  # fmt: skip
    if name == "unet":
        return plain_networks.UNet(classes=10, width=24, depth=3)
    if name in TORCHVISION:
        return getattr(import_module("torchvision.models"), name)()
    return plain_networks.build(name)


def first_gradients(name: str, way: str) -> Row:
    """In a process of its own: seconds of imports, to the first gradients, of a step."""
    # PyTorch loads its compiler when it is first asked for.
    import_module("torch._dynamo")
    import_module("torch.export")
    if way == OTHER:
        import_module("torch._inductor.compile_fx")
    else:
        import relay_wgrad
        import relay_wgrad.torch as rt
        from relay_wgrad.frontend import from_torch
        from relay_wgrad.training import Trainer

        relay_wgrad.register()

    model, (batch, size) = network(name), NETWORKS[name]
    x, labels = torch.randn(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)
    clock, imported, used = time.time(), time.perf_counter(), processor_time()

    if way == "trainer":
        graph = from_torch(model, (x,))
        trainer = Trainer(graph)
        feed = graph.random_batch(0)

        def step() -> None:
            trainer.gradients(feed)
    else:
        call = (
            rt.TrainingStep(model, x) if way == "step"
            else torch.compile(model, backend="relay_wgrad" if way == "compile" else OTHER)
        )  # fmt: skip

        def step() -> None:
            F.cross_entropy(call(x), labels).backward()

    step()
    ready, used = time.perf_counter(), processor_time() - used
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    imports, first = clock - float(os.environ[_BEGAN]), ready - imported
    return {"import": imports, "first": first, "total": imports + first, "step": min(times),
            "processor": used}  # fmt: skip


def measured(name: str, way: str, folder: str) -> Row:
    """Of a process with its caches in a folder, on the cores that this one may use."""
    environment = {
        _BEGAN: str(time.time()),
        "OMP_NUM_THREADS": str(len(usable_cores())),
        "RELAY_WGRAD_CACHE": folder,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TMPDIR": folder,
    }
    before = processor_time()
    found = child.row(first_gradients, name, way, environment=environment)
    return {**found, "whole": processor_time() - before}


def medians(runs: Iterable[Row]) -> list[Row]:
    """Medians of each network and way, and their ratios to the other's where that was measured."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        columns = values.setdefault((run["network"], run["way"]), {})
        for state in STATES:
            for figure in FIGURES:
                columns.setdefault(f"{state} {figure}", []).append(run[state][figure])
    found = {
        key: {column: statistics.median(each) for column, each in columns.items()}
        for key, columns in values.items()
    }
    rows = []
    for (name, way), row in found.items():
        other = found.get((name, OTHER), {})
        ratios = {
            f"{column} ratio": row[column] / other[column] for column in row if column in other
        }
        rows.append({"network": name, "way": way, **row, **ratios})
    return rows


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """A cold process and a warm one each."""
    there = find_spec("torchvision") is not None
    for turn in range(args.turns):
        for name in args.suite:
            for way in args.ways if there or name not in TORCHVISION else ():
                yield Case({"network": name, "way": way, "turn": turn})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    def one(case: Case) -> Row:
        row: Row = {}
        with tempfile.TemporaryDirectory() as folder:
            for state in STATES:
                row[state] = measured(case.key["network"], case.key["way"], folder)
                if "reason" in row[state]:
                    return dict(row[state])
        return row

    return one


def summary(rows: Sequence[Row]) -> Iterator[str]:
    found = medians(rows)
    for row in found:
        first = ", ".join(f"{state} {row[f'{state} first']:.2f} s" for state in STATES)
        ratios = ", ".join(f"{figure} {row[key]:.2f}" for figure in RATIOS for key in
                           [f"cold {figure} ratio"] if key in row)  # fmt: skip
        yield (
            f"{row['network']} {row['way']}: first {first}; processor"
            f" {row['cold processor']:.2f} s; step {1e3 * row['warm step']:.1f} ms; of {OTHER}'s:"
            f" {ratios}"
        )
    ours = [row for row in found if row["way"] != OTHER and "cold first ratio" in row]
    for way in dict.fromkeys(row["way"] for row in ours):
        own = [row for row in ours if row["way"] == way]
        figures = [f"{state} {figure}" for state in STATES for figure in RATIOS]
        means = (statistics.geometric_mean(r[f"{each} ratio"] for r in own) for each in figures)
        said = (f"{each} {mean:.2f}" for each, mean in zip(figures, means, strict=True))
        yield f"{way}: {', '.join(said)}"


BENCHMARK = Benchmark(
    cases, begin, suites=NETWORKS, summary=summary,
    options={
        "ways": Option((*WAYS, OTHER), "", (*WAYS, OTHER)),
        "turns": Option(3, "of all: processes of each, cold and warm"),
    },
    columns=(
        ("network",), ("way",), ("turn",),
        *((f"{state} {figure}", f"{state}.{figure}", ".2f") for state in STATES
          for figure in ("first", "total", "processor")),
        *((f"{state} step, ms", f"{state}.step", ".1f", 1e3) for state in STATES),
        ("reason",),
    ),
)  # fmt: skip
