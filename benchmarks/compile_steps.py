"""Compiles the training steps of networks for CUDA, each in a process of its own; needs no GPU.

    python -m benchmarks.compile_steps [--json FILE [--resume]] [--models resnet50,attention]
                                       [--dtypes f16,bf16,tf32,f32] [--batches 1,3,32,256]
                                       [--backends cudnn] [--time-budget 900] [--objects]

A step is made as `benchmarks.gpu_training` makes it: channels last, its convolutions and matrix
products to libraries, normalizations and poolings to generated kernels, the rest to TVM's.  A row
says whether that was done, in how many seconds, what went to a library, and for each call that did
not the reason.  A process that dies, or takes more time or memory than it may, is a row too; so is
one in which a call stayed that no report names, or a kernel asks TVM's pool for memory, which a
captured graph would lose.  Where there is an nvcc, it makes PTX of TVM's
kernels; with --objects it builds CUTLASS's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.kept import Rows, add_options

DTYPES = {"f16": "float16", "bf16": "bfloat16", "tf32": None, "f32": None}
BATCHES = (1, 3, 32, 256)
GIB = 1 << 30
ROOT = Path(__file__).parents[1]
TARGET = {"kind": "cuda", "arch": "sm_90", "max_threads_per_block": 1024,
          "max_shared_memory_per_block": 49152, "thread_warp_size": 32}  # fmt: skip


# ---- networks ----------------------------------------------------------------------------------


def _residual(batch: int) -> Any:
    from relay_wgrad.frontend import from_onnx
    from tests.support.training_models import residual_net

    return from_onnx(residual_net(), batch=batch)


def _inverted(batch: int) -> Any:
    """Depthwise convolutions, ReLU6, SiLU, a layer of sizes that are no multiples of 8."""
    import torch
    from torch import nn

    from relay_wgrad.frontend import from_torch

    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6(),
        nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), nn.BatchNorm2d(32), nn.SiLU(),
        nn.Conv2d(32, 50, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2),
        nn.Linear(50, 11),
    )  # fmt: skip
    return from_torch(net, (torch.zeros(batch, 3, 32, 32),))


def _attention(batch: int) -> Any:
    """A block of a transformer: layers on tokens, and a product for each image and head."""
    import torch
    from torch import nn

    from relay_wgrad.frontend import from_torch

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(64)
            self.q, self.k, self.v, self.out = (nn.Linear(64, 64) for _ in range(4))
            self.up, self.down, self.last = (
                nn.Linear(64, 256),
                nn.Linear(256, 64),
                nn.Linear(64, 10),
            )

        def forward(self, x: Any) -> Any:
            y = self.norm(x)
            q, k, v = (
                f(y).reshape(x.shape[0], 49, 4, 16).transpose(1, 2)
                for f in (self.q, self.k, self.v)
            )
            weights = torch.softmax(q @ k.transpose(2, 3) * 0.25, -1)
            x = x + self.out((weights @ v).transpose(1, 2).reshape(x.shape[0], 49, 64))
            x = x + self.down(torch.nn.functional.gelu(self.up(x)))
            return self.last(x.mean(1))

    return from_torch(Attention(), (torch.zeros(batch, 49, 64),))


OWN: dict[str, Callable[[int], Any]] = {
    "residual": _residual, "inverted": _inverted, "attention": _attention,
}  # fmt: skip


def networks() -> list[str]:
    """The names of all networks: the small ones, then those that the onnx package ships."""
    from relay_wgrad.frontend import BUNDLED

    return [*OWN, *BUNDLED]


# ---- one row, in a process of its own ------------------------------------------------------------


def compiled(
    model: str, dtype: str, batch: int, backends: Sequence[str] = ("cudnn",), objects: bool = False
) -> dict[str, Any]:
    """What became of one step; raises what its compilation raises."""
    import tvm

    import byoc_cudnn
    import relay_wgrad
    from byoc_cudnn.building.compiled import library_command
    from byoc_cudnn.report import PRODUCT
    from relay_wgrad.frontend import from_onnx
    from relay_wgrad.training.step import converted, step_module
    from tests.support.cuda_source import pool_calls

    relay_wgrad.register()
    graph = OWN[model](batch) if model in OWN else from_onnx(model, batch=batch)
    half = DTYPES[dtype]
    began = time.perf_counter()
    step = converted(
        step_module(
            graph, dtype=half, scaled=dtype == "f16", wide_weight_gradients=False, raise_norms=True
        ), "NHWC", blocks=True,
    )  # fmt: skip
    options: dict[str, Any] = {name: {"allow_tf32": dtype != "f32"} for name in backends}
    module, report = byoc_cudnn.partition(step, backends, products=True, **options)
    partitioned = time.perf_counter()
    library = byoc_cudnn.build(module, tvm.target.Target(TARGET), direct=True)
    built = time.perf_counter()
    if objects:
        with tempfile.TemporaryDirectory() as folder:
            for i, text in enumerate(library.sources):
                source = Path(folder, f"{i}.cc")
                source.write_text(text, encoding="utf-8")
                library_command(source, Path(folder, f"{i}.so"))
    checked = _checked_by_nvcc(library)
    fallbacks = Counter(f"{entry.op}: {entry.reason}" for entry in report.left)
    fallbacks.update(f"{entry.op}: {entry.reason}" for entry in library.direct if not entry.symbol)
    row: dict[str, Any] = {
        "partition_s": partitioned - began, "build_s": built - partitioned, "nvcc_s": checked,
    }  # fmt: skip
    for key, are in (("convolutions", False), ("products", True)):
        found = [entry for entry in report.entries if (entry.op == PRODUCT) is are]
        row[key] = {"total": len(found), "offloaded": sum(bool(e.backend) for e in found)}
    stay = Counter(e.op == PRODUCT for e in report.left)
    silent = {name: count - stay[name == "products"] for name, count in _staying(module).items()}
    silent["calls of TVM's memory pool"] = pool_calls(library.executable.mod)
    row["silent"] = {name: count for name, count in silent.items() if count}
    row["kernels"] = {
        "generated": sum(bool(entry.symbol) for entry in library.direct), "all": len(library.direct)
    }  # fmt: skip
    row["fallbacks"] = dict(fallbacks.most_common())
    return row


def _checked_by_nvcc(library: Any) -> float | None:
    """Seconds in which nvcc makes PTX of TVM's kernels; None without it.

    Raises RuntimeError with its errors.
    """
    from byoc_cudnn.building.toolchain import find

    nvcc = find().nvcc
    if nvcc is None:
        return None
    began, modules = time.perf_counter(), [library.executable.mod]
    while modules:
        module = modules.pop()
        modules += list(module.imports)
        if str(module.kind) != "cuda":
            continue
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "kernels.cu")
            source.write_text(module.inspect_source("cuda"), encoding="utf-8")
            command = [str(nvcc), f"-arch={TARGET['arch']}", "-w", "-ptx", str(source), "-o",
                       str(source.with_suffix(".ptx"))]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"nvcc takes TVM's kernels for wrong: {done.stderr[:2000]}")
    return time.perf_counter() - began


def _staying(module: Any) -> dict[str, int]:
    """How many convolutions and products of a partitioned module are TVM's, by its text alone."""
    from tvm import relax

    from relay_wgrad.ir import is_taken, op_name

    names: Counter[str] = Counter()
    for func in module.functions.values():
        if isinstance(func, relax.Function) and not is_taken(func):
            bindings = [b for block in func.body.blocks for b in block.bindings]
            names.update(op_name(binding.value) for binding in bindings)
    convolutions = sum(n for name, n in names.items() if name.startswith("relax.nn.conv2d"))
    return {"convolutions": convolutions, "products": names["relax.matmul"]}


def measured(
    key: tuple[str, str, int], more: Sequence[str], seconds: float, gib: float
) -> dict[str, Any]:
    """The row of one step: `compiled` in a child, or how the child ended."""
    model, dtype, batch = key
    row: dict[str, Any] = {"model": model, "dtype": dtype, "batch": batch}
    began = time.perf_counter()
    command = [sys.executable, "-m", __spec__.name, "--row", f"{model},{dtype},{batch}",
               "--gib", str(gib), *more]  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {**row, "status": "timeout", "seconds": seconds}
    row["seconds"] = time.perf_counter() - began
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode == 0:
        row |= json.loads(last)
        return {**row, "status": "silent" if row["silent"] else "ok"}
    status = "error" if done.returncode == 1 else "crash"
    message = done.stderr.strip().splitlines()[-1:] if status == "error" else [done.stderr[-600:]]
    return {**row, "status": status, "code": done.returncode, "message": "".join(message)}


def _child(args: argparse.Namespace) -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (int(args.gib * GIB), hard))
    model, dtype, batch = args.row.split(",")
    row = compiled(model, dtype, int(batch), args.backends.split(","), args.objects)
    row["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    print(json.dumps(row))
    return 0


# ---- all rows ------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Compiles what the command line asks for; 1 where a row is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_steps")
    parser.add_argument("--models", help="some of the networks, joined by commas; else all")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--backends", default="cudnn", help="libraries, the preferred first")
    parser.add_argument("--objects", action="store_true", help="build CUTLASS's kernels with nvcc")
    add_options(parser)
    parser.add_argument("--seconds", type=float, default=600, help="of one row, at most")
    parser.add_argument("--gib", type=float, default=12, help="of memory for one row, at most")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.row:
        return _child(args)
    facts = {"date": date.today().isoformat(), "backends": args.backends}
    rows = Rows(parser, args, ("model", "dtype", "batch"), facts)
    wanted = {
        "models": args.models.split(",") if args.models else networks(),
        "dtypes": args.dtypes.split(","), "batches": args.batches.split(","),
    }  # fmt: skip
    known = {"models": networks(), "dtypes": list(DTYPES), "batches": None}
    for what, names in known.items():
        if names is not None and (unknown := [n for n in wanted[what] if n not in names]):
            parser.error(f"--{what}: {', '.join(unknown)} is none of {', '.join(names)}")
    if not all(n.isascii() and n.isdigit() and int(n) for n in wanted["batches"]):
        parser.error(f"--batches must be positive numbers, got {args.batches}")
    keys = [(m, d, int(b)) for m in wanted["models"] for b in wanted["batches"]
            for d in wanted["dtypes"]]  # fmt: skip
    more = ["--backends", args.backends, *(["--objects"] if args.objects else [])]
    rows.measure(keys, lambda *key: measured(key, more, args.seconds, args.gib))
    asked = rows.of(keys)
    Console(width=150).print(_table(asked, len(keys)))
    return int(any(row["status"] != "ok" for row in asked))


def _table(rows: Sequence[dict[str, Any]], wanted: int) -> Table:
    table = Table(title=f"{len(rows)} of {wanted} steps")
    for name in ("model", "dtype", "batch", "status", "s", "convolutions", "products", "kernels"):
        table.add_column(name, justify="right" if name != "model" else "left")
    table.add_column("what stays, and why", overflow="fold")
    for row in rows:
        counts = ["", "", ""]
        if "convolutions" in row:
            counts = [
                f"{row[k]['offloaded']}/{row[k]['total']}" for k in ("convolutions", "products")
            ]
            counts.append(f"{row['kernels']['generated']}/{row['kernels']['all']}")
        said = "; ".join(f"{n} {reason}" for reason, n in row.get("fallbacks", {}).items())
        table.add_row(
            row["model"], row["dtype"], str(row["batch"]), row["status"], f"{row['seconds']:.0f}",
            *counts, escape(row.get("message", "") or said),
        )  # fmt: skip
    return table


if __name__ == "__main__":
    raise SystemExit(main())
