"""A newcomer's first minutes on a CPU: seconds to the first gradients, beside PyTorch's Inductor.

    python -m benchmarks.cpu_compile [--networks small,unet] [--ways trainer,step,compile]
                                     [--turns 3] [--minutes 20] [--json FILE] [--merge FILE…]

Each figure is of a process of its own.  `first` is from when everything is imported to when the
first loss and gradients are there, PyTorch's compiler among the imports of every side; `import` is
given beside it, and `total` is both.  `processor` is what the same seconds took of all cores, with
the compilers that were started; `whole` that of the process from its start to its end.  `step` is
the shortest of some steps after that.  Cold: with empty caches; warm: again, with what the cold
process left.  The sides take turns, network by network, and each turn has all of them.

Every process is kept in the file as soon as it has ended, so that a run which is stopped, or whose
minutes are over, leaves what it has.  Parts of one measurement may run at the same time on cores of
their own, and are then one table:

    taskset -c 0,1 python -m benchmarks.cpu_compile --networks small,unet --json a.json
    taskset -c 2,3 python -m benchmarks.cpu_compile --networks resnet50 --json b.json
    python -m benchmarks.cpu_compile --merge a.json b.json --json all.json

Ratios are of medians over the turns.  What torchvision has is built from there, and is left out
where there is none.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

from benchmarks.cpu_timing import cpu_model
from relay_wgrad import output
from relay_wgrad.cores import usable_cores

ROOT = Path(__file__).parents[1]
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

Run = dict[str, Any]  # of one process: network, way, state, turn, and its figures
Rows = list[dict[str, Any]]  # of a network and a way


class Pair(nn.Sequential):
    """Two convolutions, normalized."""

    def __init__(self, c: int, k: int) -> None:
        convolutions = (nn.Conv2d(n, k, 3, padding=1, bias=False) for n in (c, k))
        super().__init__(
            *(m for conv in convolutions for m in (conv, nn.BatchNorm2d(k), nn.ReLU()))
        )


class UNet(nn.Module):
    """A U-Net of so many channels a level, whose result is a classification: its pixels' mean."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList(Pair(c, k) for c, k in zip((3, *widths), widths, strict=False))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(c, k, 2, 2) for c, k in pairs)
        self.join = nn.ModuleList(Pair(2 * k, k) for _, k in pairs)
        self.last = nn.Conv2d(widths[0], 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = []
        for pair in self.down:
            levels.append(pair(F.max_pool2d(levels[-1], 2) if levels else x))
        x = levels.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), levels.pop()], 1))
        return self.last(x).mean((2, 3))


def network(name: str) -> Any:
    """A network of so many classes, with seeded weights."""
    torch.manual_seed(0)
    if name == "small":
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(64, 10),
        )  # fmt: skip
    if name == "unet":
        return UNet((24, 48, 96, 192))
    if name in TORCHVISION:
        return getattr(import_module("torchvision.models"), name)()
    from benchmarks.plain_networks import build

    return build(name)


def child(name: str, way: str) -> None:
    """Prints one line of JSON: seconds of imports, to the first gradients, of a step."""
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
    figures = {"import": imports, "first": first, "total": imports + first}
    print(json.dumps({**figures, "step": min(times), "processor": used}))


def measured(name: str, way: str, folder: str) -> dict[str, float]:
    """Of a process with its caches in a folder, on the cores that this one may use."""
    env = {
        **os.environ,
        _BEGAN: str(time.time()),
        "OMP_NUM_THREADS": str(len(usable_cores())),
        "RELAY_WGRAD_CACHE": folder,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TMPDIR": folder,
    }
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--child", name, way]
    before = processor_time()
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "whole": processor_time() - before}


def processor_time() -> float:
    """Of this process, of all that it has waited for, and of those that they waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def runs_of(networks: Sequence[str], ways: Sequence[str], turns: int) -> Iterator[list[Run]]:
    """The two processes of each turn, network and side."""
    for turn in range(turns):
        for name in networks:
            for way in ways:
                with tempfile.TemporaryDirectory() as folder:
                    yield [
                        {"network": name, "way": way, "state": state, "turn": turn,
                         **measured(name, way, folder)}
                        for state in STATES
                    ]  # fmt: skip


def rows_of(runs: Iterable[Run]) -> Rows:
    """Medians of each network and way, and their ratios to the other's where that was measured."""
    values: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        columns = values.setdefault((run["network"], run["way"]), {})
        for figure in FIGURES:
            columns.setdefault(f"{run['state']} {figure}", []).append(run[figure])
    medians = {
        key: {column: statistics.median(each) for column, each in columns.items()}
        for key, columns in values.items()
    }
    rows = []
    for (name, way), row in medians.items():
        other = medians.get((name, OTHER), {})
        ratios = {
            f"{column} ratio": row[column] / other[column] for column in row if column in other
        }
        rows.append({"network": name, "way": way, **row, **ratios})
    return rows


def merged(files: Sequence[str]) -> dict[str, Any]:
    """One result of several: their runs, each told by the file's place among them.

    Raises ValueError where they are of different processors, numbers of cores or versions.
    """
    parts = [json.loads(Path(path).read_text(encoding="utf-8")) for path in files]
    for path, part in zip(files, parts, strict=True):
        for fact in ("cpu", "cores", "torch", "python"):
            if part[fact] != parts[0][fact]:
                raise ValueError(
                    f"{path}: {fact} must be {files[0]}'s {parts[0][fact]!r}, got {part[fact]!r}"
                )
    runs = [{**run, "part": i} for i, part in enumerate(parts) for run in part["runs"]]
    return {**parts[0], "rows": rows_of(runs), "runs": runs}


def tables(rows: Rows) -> Iterator[Table]:
    """A row for each network and way; and geometric means of the ratios over the networks."""
    table = Table("network", "way", *(f"{s} {w}" for s in STATES for w in ("first, s", "ratio")),
                  "processor, s", "ratio", "step, ms", "ratio")  # fmt: skip
    for row in rows:
        columns = [f"{state} first{r}" for state in STATES for r in ("", " ratio")]
        columns += ["cold processor", "cold processor ratio"]
        cells = [f"{row[column]:.2f}" if column in row else "" for column in columns]
        step = [f"{1e3 * row['warm step']:.1f}", f"{row.get('warm step ratio', math.nan):.2f}"]
        table.add_row(row["network"], row["way"], *cells, *step)
    yield table
    ours = [row for row in rows if row["way"] != OTHER and "cold first ratio" in row]
    if not ours:
        return
    means = Table("means of ratios", *(f"{s} {figure}" for s in STATES for figure in RATIOS))
    for way in dict.fromkeys([*(row["way"] for row in ours), "all"]):
        own = [row for row in ours if way in ("all", row["way"])]
        means.add_row(way, *(
            f"{statistics.geometric_mean(ratios):.2f} to {max(ratios):.2f}"
            for state in STATES for figure in RATIOS
            for ratios in [[row[f"{state} {figure} ratio"] for row in own]]
        ))  # fmt: skip
    yield means


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS), help=", ".join(NETWORKS))
    parser.add_argument("--ways", default=",".join((*WAYS, OTHER)), help=", ".join((*WAYS, OTHER)))
    parser.add_argument("--turns", type=int, default=3, help="processes of each, cold and warm")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no process after")
    parser.add_argument("--json", metavar="FILE", help="write all to FILE, after each process")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="measure nothing: join these")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    if args.merge:
        try:
            found = merged(args.merge)
        except ValueError as error:
            parser.error(str(error))
    else:
        found = _measured_all(args, console)
    if args.json:
        output.write_json(args.json, found)
    for table in tables(found["rows"]):
        console.print(table)
    return 0


def _measured_all(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    until = time.monotonic() + 60 * args.minutes
    networks = args.networks.split(",")
    if find_spec("torchvision") is None and (missing := set(networks).intersection(TORCHVISION)):
        console.print(f"{', '.join(sorted(missing))} are left out: there is no torchvision")
        networks = [name for name in networks if name not in missing]
    runs: list[Run] = []
    found = {
        "cpu": cpu_model(), "cores": len(usable_cores()), "date": str(date.today()),
        "torch": torch.__version__, "python": platform.python_version(), "turns": args.turns,
    }  # fmt: skip
    for pair in runs_of(networks, args.ways.split(","), args.turns):
        runs += pair
        for run in pair:
            shown = " ".join(f"{figure} {run[figure]:.3g}" for figure in FIGURES)
            console.print(f"{run['turn']} {run['network']} {run['way']} {run['state']}: {shown}")
        if args.json:
            output.write_json(args.json, {**found, "rows": rows_of(runs), "runs": runs})
        if time.monotonic() > until:
            console.print("the time is over")
            break
    return {**found, "rows": rows_of(runs), "runs": runs}


if __name__ == "__main__":
    sys.exit(main())
