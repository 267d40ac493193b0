"""A newcomer's first minutes on a CPU: seconds to the first gradients, beside PyTorch's Inductor.

Each figure is of a process of its own.  `first` is from when everything is imported to when the
first loss and gradients are there, PyTorch's compiler among the imports of every side; `import` is
given beside it, and `total` is both.  `processor` is what the same seconds took of all cores, with
the compilers that were started; `whole` that of the process from its start to the last step.
`step` is the median of steps after one that is not timed.  Cold: with empty caches; warm: again,
with what the cold process left.  The sides take turns, network by network, and each turn has all of
them; the lines below the table are medians over the turns, and ratios of these.

With `--cores-each 2` a process has two cores of its own, and as many run at a time as the machine
has such pairs:

    python -m benchmarks cpu first --cores-each 2 --turns 9 --time-budget 7.8 --json cpu_first.json

A row is written when its cold process has ended, and again with its warm one; what the time budget
ends is in no row.  What torchvision has is built from there, and is left out where there is none.
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
from queue import Queue
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks import child
from benchmarks.cpu_timing import processor_time
from benchmarks.runner import Benchmark, Case, Option, Row, Rows, measure_all
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
_LEAST, _MOST, _SECONDS = 5, 50, 1.5  # steps that are timed, and for how long
FIGURES = ("import", "first", "total", "step", "processor", "whole")
RATIOS = ("first", "total", "step", "processor")
_BEGAN = "RELAY_WGRAD_BENCHMARK_BEGAN"  # when a process was started


def network(name: str) -> Any:
    """A network of so many classes, with seeded weights."""
    from tests.support.torch import plain_networks

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
    step()
    times: list[float] = []
    while len(times) < _LEAST or (len(times) < _MOST and sum(times) < _SECONDS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    imports, first = clock - float(os.environ[_BEGAN]), ready - imported
    return {"import": imports, "first": first, "total": imports + first,
            "step": statistics.median(times), "processor": used,
            "whole": processor_time()}  # fmt: skip


def measured(name: str, way: str, folder: str, seconds: float) -> Row:
    """Of a process with its caches in a folder, on the cores that this thread may use."""
    environment = {
        _BEGAN: str(time.time()),
        "OMP_NUM_THREADS": str(len(usable_cores())),
        "RELAY_WGRAD_CACHE": folder,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TMPDIR": folder,
    }
    limit = None if seconds == float("inf") else seconds
    return child.row(first_gradients, name, way, seconds=limit, environment=environment)


def medians(runs: Iterable[Row]) -> list[Row]:
    """Medians of each network and way, and their ratios to the other's where that was measured."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        columns = values.setdefault((run["network"], run["way"]), {})
        for state in (state for state in STATES if state in run):
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


def run(rows: Rows, cases: Sequence[Case], args: argparse.Namespace) -> None:
    """As many at a time as there are groups of cores, in order, while there is time."""
    cores, every = usable_cores(), os.sched_getaffinity(0)
    if not 0 <= args.cores_each <= len(cores):
        args.error(f"--cores-each must be 0 to {len(cores)}, got {args.cores_each}")
    free: Queue[frozenset[int]] = Queue()
    for group in groups(cores, args.cores_each):
        free.put(group)

    def one(case: Case) -> Row | None:
        own = free.get()
        os.sched_setaffinity(0, own)  # this thread's, and so of the processes that it starts
        row: Row = {}
        try:
            with tempfile.TemporaryDirectory() as folder:
                for state in STATES:
                    found = measured(
                        case.key["network"], case.key["way"], folder, rows.seconds_left
                    )
                    if "reason" in found:
                        return found if rows.seconds_left > 0 else None  # else the budget ended it
                    row[state] = found
                    rows.keep(case, row)
        finally:
            os.sched_setaffinity(0, every)
            free.put(own)
        return row

    measure_all(rows, cases, one, free.qsize())


def groups(cores: Sequence[int], size: int) -> list[frozenset[int]]:
    """So many cores each; all of them together where `size` is 0."""
    size = size or len(cores)
    return [frozenset(cores[at : at + size]) for at in range(0, len(cores) - size + 1, size)]


def summary(rows: Sequence[Row]) -> Iterator[str]:
    found = medians(rows)
    for row in found:
        states = [state for state in STATES if f"{state} first" in row]
        first = ", ".join(f"{state} {row[f'{state} first']:.2f} s" for state in states)
        ratios = ", ".join(f"{state} {figure} {row[key]:.2f}" for state in states
                           for figure in RATIOS
                           for key in [f"{state} {figure} ratio"] if key in row)  # fmt: skip
        yield (
            f"{row['network']} {row['way']}: first {first}; processor"
            f" {row['cold processor']:.2f} s; step {1e3 * row[f'{states[-1]} step']:.1f} ms; of"
            f" {OTHER}'s: {ratios}"
        )


BENCHMARK = Benchmark(
    cases, run=run, suites=NETWORKS, summary=summary,
    is_whole=lambda row, args: "reason" in row or all(state in row for state in STATES),
    options={
        "ways": Option((*WAYS, OTHER), "", (*WAYS, OTHER)),
        "cores_each": Option(0, "of each process; 0: all, and one process at a time"),
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
