"""Where the time goes in which a training step is compiled for CUDA; needs no GPU.

    python -m benchmarks.compile_time [--models resnet50,densenet121] [--dtype bf16] [--batch 128]
                                      [--json FILE]

Each network in a process of its own, with empty caches and again with full ones.  The parts are
those of `benchmarks.gpu_training --twice`, up to the library, which is not loaded: networks are
`benchmarks.gpu_models`' (`onnx:resnet50`: a bundled one).  A part has its seconds, and those of all
cores with the compilers that it starts, which other work on the machine changes less.  TVM compiles
its kernels only where its CUDA runtime is; here that is a part of its own, by nvcc.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.compile_steps import DTYPES, TARGET
from relay_wgrad import output

ROOT = Path(__file__).parents[1]
CACHES = ("empty", "full")


class Clock:
    """Seconds of the parts of what this process does, from its begin: (by the clock, of all cores).

    began : when it was started, by `time.perf_counter`.
    """

    def __init__(self, began: float) -> None:
        self.parts: dict[str, tuple[float, float]] = {}
        self._at = (began, 0.0)

    def _now(self) -> tuple[float, float]:
        used = os.times()
        cores = used.user + used.system + used.children_user + used.children_system
        return time.perf_counter(), cores

    def part(self, name: str) -> None:
        """What was done since the last part has this name."""
        now = self._now()
        self.parts[name] = (now[0] - self._at[0], now[1] - self._at[1])
        self._at = now


def compiled(model: str, dtype: str, batch: int, began: float) -> dict[str, tuple[float, float]]:
    """The parts of one compilation, in a process that began at a time of `Clock`."""
    clock = Clock(began)
    import torch
    import tvm
    from tvm.support import nvcc

    import byoc_cudnn
    import relay_wgrad
    from benchmarks.gpu_models import build
    from byoc_cudnn.building import toolchain
    from byoc_cudnn.building.ieee_cuda import exact_kernels
    from byoc_cudnn.building.kernels import kept_kernels
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.training.step import converted, step_module

    relay_wgrad.register()
    clock.part("imports")
    built = build(model, batch, None)
    clock.part("the network")
    x = torch.zeros(batch, 3, built.image, built.image)
    graph = built.graph or from_torch(built.module, (x,))
    clock.part("front end")
    step = step_module(
        graph, dtype=DTYPES[dtype], scaled=dtype == "f16", wide_weight_gradients=False,
        raise_norms=True,
    )  # fmt: skip
    clock.part("gradient, precision")
    step = converted(step, "NHWC", blocks=True)
    clock.part("layouts")
    step, _ = byoc_cudnn.partition(
        step, ("cudnn",), products=True, cudnn={"allow_tf32": dtype != "f32"}
    )
    clock.part("partition")
    target = tvm.target.Target(TARGET)
    library = byoc_cudnn.build(step, target, direct=True)
    clock.part("TVM")
    os.environ["PATH"] += f"{os.pathsep}{Path(str(toolchain.find().nvcc)).parent}"
    for module in _modules(library.executable.mod):
        if str(module.kind) == "cuda":
            with target, kept_kernels(), exact_kernels():
                text = module.inspect_source("cuda")
                nvcc.compile_cuda(text, target_format="fatbin", compiler="nvcc")
    clock.part("TVM's kernels")
    with tempfile.TemporaryDirectory() as folder:
        library.export_library(Path(folder, "step.so"))
    clock.part("the library")
    return clock.parts


def _modules(module: Any) -> list[Any]:
    return [module, *(inner for each in module.imports for inner in _modules(each))]


def measured(model: str, dtype: str, batch: int) -> dict[str, dict[str, Any]]:
    """The parts with empty and with full caches, each in a process of its own.

    Raises RuntimeError with the words of a process that fails.
    """
    found = {}
    with tempfile.TemporaryDirectory() as caches:
        environment = {**os.environ, "RELAY_WGRAD_CACHE": caches}
        words = [sys.executable, "-m", __spec__.name, "--row", f"{model},{dtype},{batch}"]
        for which in CACHES:
            command = [*words, "--began", str(time.perf_counter())]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise RuntimeError(f"{model}: {done.stderr[-2000:]}")
            found[which] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Of each network, with empty and with full caches: seconds (of all cores) of each part."""
    out = Table(title="seconds (of all cores)")
    out.add_column("")
    runs = [row[which] for row in rows for which in CACHES]
    for row in rows:
        for which in CACHES:
            out.add_column(f"{row['model']}, {which}", justify="right")
    for name in runs[0]:
        out.add_row(name, *(f"{run[name][0]:.1f} ({run[name][1]:.1f})" for run in runs))
    sums = [[sum(part[i] for part in run.values()) for i in (0, 1)] for run in runs]
    out.add_row("all", *(f"{clock:.1f} ({cores:.1f})" for clock, cores in sums))
    return out


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints; 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_time")
    parser.add_argument("--models", default="resnet50")
    parser.add_argument("--dtype", default="bf16", choices=DTYPES)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.row:
        model, dtype, batch = args.row.rsplit(",", 2)
        print(json.dumps(compiled(model, dtype, int(batch), args.began)))
        return 0
    facts = {"dtype": args.dtype, "batch": args.batch, "cores": len(os.sched_getaffinity(0))}
    rows = []
    for model in args.models.split(","):
        rows.append({"model": model, **facts, **measured(model, args.dtype, args.batch)})
        if args.json:
            output.write_json(args.json, {"rows": rows})
    Console(width=180).print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
