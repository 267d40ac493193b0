"""A newcomer's first minutes on a CPU: seconds to the first gradients, beside PyTorch's Inductor.

    python -m benchmarks.cpu_compile [--networks small,unet] [--ways trainer,step,compile]
                                     [--turns 3] [--json FILE]

Each figure is of a process of its own, from when everything is imported to when the first loss and
gradients are there; imports are given beside it, and the whole process's processor time, with that
of the compilers it started.  Cold: with empty caches; warm: again, with what the cold one left.
The sides take turns.  Steps are the shortest of some after that.  What torchvision has is built
from there, and is left out where there is none.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
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
FIGURES = ("import", "first", "step", "processor")
_BEGAN = "RELAY_WGRAD_BENCHMARK_BEGAN"  # when a process was started


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
    if way != OTHER:
        import relay_wgrad
        import relay_wgrad.torch as rt
        from relay_wgrad.frontend import from_torch
        from relay_wgrad.training import Trainer

        relay_wgrad.register()

    model, (batch, size) = network(name), NETWORKS[name]
    x, labels = torch.randn(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)
    clock, imported = time.time(), time.perf_counter()

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
    ready = time.perf_counter()
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    print(
        json.dumps(
            {
                "import": clock - float(os.environ[_BEGAN]),
                "first": ready - imported,
                "step": min(times),
            }
        )
    )


def measured(name: str, way: str, folder: str) -> dict[str, float]:
    """Of a process with its caches in a folder."""
    env = {
        **os.environ,
        _BEGAN: str(time.time()),
        "RELAY_WGRAD_CACHE": folder,
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch",
    }
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, "--child", name, way]
    before = _processor_time()
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {**found, "processor": _processor_time() - before}


def _processor_time() -> float:
    """Of all processes that have been waited for, and of those that they waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child)
        return 0
    console, rows = Console(), []
    for name in args.networks.split(","):
        if name in TORCHVISION and find_spec("torchvision") is None:
            console.print(f"{name} is left out: there is no torchvision")
            continue
        sides = (*args.ways.split(","), OTHER)
        found: dict[tuple[str, str], list[dict[str, float]]] = {}
        for _ in range(args.turns):
            for way in sides:
                with tempfile.TemporaryDirectory() as folder:
                    for state in STATES:
                        found.setdefault((way, state), []).append(measured(name, way, folder))
        for way in sides:
            row: dict[str, Any] = {"network": name, "way": way}
            for state in STATES:
                for what in FIGURES:
                    ours, theirs = (
                        statistics.median(each[what] for each in found[side, state])
                        for side in (way, OTHER)
                    )
                    row[f"{state} {what}"] = ours
                    row[f"{state} {what} ratio"] = ours / theirs
            rows.append(row)
            console.print(row)
        if args.json:
            about = {"cpu": cpu_model(), "cores": len(usable_cores()), "date": str(date.today())}
            output.write_json(args.json, {**about, "turns": args.turns, "rows": rows})
    table = Table("network", "way", *(f"{s} {w}" for s in STATES for w in ("first, s", "ratio")),
                  "step, ms", "ratio")  # fmt: skip
    for row in rows:
        cells = [f"{row[f'{s} {w}']:.2f}" for s in STATES for w in ("first", "first ratio")]
        table.add_row(row["network"], row["way"], *cells, f"{1e3 * row['warm step']:.1f}",
                      f"{row['warm step ratio']:.2f}")  # fmt: skip
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
