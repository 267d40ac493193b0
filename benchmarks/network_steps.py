"""Networks of different families trained on a GPU in half precision, beside PyTorch's losses.

    python -m benchmarks.network_steps [--json FILE [--resume]] [--models NAMES] [--dtypes f16,bf16]
                                       [--jobs N] [--time-budget SECONDS] [--device cuda]

Each network is trained by `Trainer` for 20 steps of SGD on one batch, and by PyTorch on the same
device in float32 and by autocast, with the same weights, dropout masks and other random numbers; in
a process of its own, several at a time.  "furthest" is the greatest distance of two losses from
PyTorch's in float32, of its first; "PyTorch's" that of PyTorch's own in half precision.  A row
fails beyond `APART` and four times that, and with a reason where training fails.  What the time
budget ends has no row: `--resume` begins it again.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.kept import Rows, add_options
from benchmarks.parent import end_with_parent

# One of each family, of those whose steps are compiled soonest.
NAMES = (
    "timm/test_byobnet", "timm/test_efficientnet", "torchvision/resnet18", "timm/resnetv2_18",
    "torchvision/squeezenet1_1", "timm/ese_vovnet19b_slim_dw", "timm/cs3darknet_focus_s",
    "timm/resnest14d", "timm/legacy_seresnet18", "timm/starnet_s050", "timm/regnetx_002",
    "timm/test_resnet", "timm/lcnetv2_small", "torchvision/mnasnet0_5", "timm/dla46x_c",
    "torchvision/mobilenet_v2", "timm/fasternet_t0", "timm/legacy_xception",
    "timm/test_efficientnet_gn", "timm/test_mambaout", "timm/skresnet18", "timm/test_nfnet",
    "timm/selecsls42",
    "timm/hgnetv2_b0", "timm/cpubone_nano", "torchvision/shufflenet_v2_x0_5",
    "timm/test_convnext", "torchvision/googlenet", "timm/test_vit", "timm/mixer_s32_224",
    "timm/mobilenetv3_small_050", "timm/visformer_tiny", "timm/dpn48b",
    "timm/inception_next_atto", "timm/edgenext_xx_small", "torchvision/regnet_y_400mf",
)  # fmt: skip
STEPS, BATCH = 20, 8
RATE = 5e-3
SCALE = 1024.0
APART = 0.05
DTYPES = {"f32": None, "f16": "float16", "bf16": "bfloat16"}
_UNLIMITED = 1e6  # seconds
Key = tuple[str, str]


# ---- one network, in a process of its own --------------------------------------------------------


def trained(name: str, dtypes: Sequence[str], device: str, steps: int) -> None:
    """Prints a row for each dtype, a line of JSON."""
    import torch

    import relay_wgrad
    from benchmarks.network_zoo import CLASSES, Loss, build, torchvision_models
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.training.trainer import Trainer
    from tests.support.gpu.runner import choose_compiler

    torchvision_models()
    relay_wgrad.register()
    if device != "cpu":
        choose_compiler()
        torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(1)
    network, side = build(name)
    module = Loss(network)
    images = torch.randn(BATCH, 3, side, side, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(BATCH) % CLASSES
    began = time.perf_counter()
    graph = from_torch(module, (images, labels), loss="own", dropout="mask", name=name)
    imported = round(time.perf_counter() - began, 1)
    data = [spec.name for spec in graph.inputs if spec.kind == "data"]
    batch = dict(zip(data, (images.numpy(), labels.numpy()), strict=True))
    theirs = _pytorch(module, graph, batch, device, steps, None)
    for dtype in dtypes:
        row: dict[str, Any] = {"name": name, "dtype": dtype, "image": side, "import_s": imported}
        try:
            half = _pytorch(module, graph, batch, device, steps, DTYPES[dtype])
            row |= {"pytorch": theirs, "autocast": half, "pytorchs": apart(half, theirs)}
            began = time.perf_counter()
            trainer = Trainer(graph, device, optimizer="sgd", lr=RATE, dtype=DTYPES[dtype],
                              layout="NHWC")  # fmt: skip
            row["compile_s"] = round(time.perf_counter() - began, 1)
            began = time.perf_counter()
            ours = list(trainer.train([batch] * steps))
            row["steps_s"] = round(time.perf_counter() - began, 1)
            found = trainer.compiled.convolutions
            row |= {
                "losses": ours, "first": ours[0], "last": ours[-1], "last_pytorch": theirs[-1],
                "furthest": apart(ours, theirs), "convolutions": len(found),
                "offloaded": sum(not c.source.startswith("generated") for c in found),
                "graph": bool(getattr(trainer._sized.last.step, "is_graph", False)),
                "notes": list(trainer.place.notes),
            }  # fmt: skip
            if not row["furthest"] <= max(APART, 4 * row["pytorchs"]):
                row["reason"] = f"losses part by {row['furthest']:.1%} of the first"
        except Exception as error:  # its reason is what the row is for
            said = (str(error).strip().splitlines() or [""])[0]
            row["reason"] = f"{type(error).__name__}: {said}"[:400]
        print(json.dumps(row), flush=True)


def apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The greatest distance, of the first; infinite where one is not finite."""
    far = np.abs(np.subtract(ours, theirs)).max() / abs(theirs[0])
    return float(far) if np.isfinite(far) else float("inf")


def _pytorch(
    module: Any, graph: Any, batch: dict[str, Any], device: str, steps: int, half: str | None
) -> list[float]:
    """PyTorch's losses, with the random numbers that the trainer draws."""
    import torch

    from tests.support.torch.op_cases import Given

    class There(Given):
        def next(self, p: float = 1.0) -> Any:
            return super().next(p).to(device)

    module = copy.deepcopy(module).to(device)
    named = dict(module.named_parameters())
    trained = [named[graph.onnx_names[name]] for name in graph.trainable]
    data = [torch.from_numpy(value).to(device) for value in batch.values()]
    scale = SCALE if half == "float16" else 1.0
    found = []
    for step in range(steps):
        values = graph.draws(0, step)
        drawn = [(spec, values[spec.name]) for spec in graph.inputs if spec.name in values]
        kind = getattr(torch, half or "bfloat16")
        with There(drawn), torch.autocast(device, dtype=kind, enabled=half is not None):
            loss = module(*data)
        gradients = torch.autograd.grad(loss.float() * scale, trained, allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(trained, gradients, strict=True):
                if gradient is not None:
                    parameter -= RATE / scale * gradient
        found.append(float(loss.detach()))
    return found


# ---- all rows ------------------------------------------------------------------------------------


def rows_of(
    name: str, dtypes: Sequence[str], device: str, steps: int, seconds: float
) -> list[dict[str, Any]]:
    """A network's rows, from a process of its own; those that the time ended are missing."""
    command = [sys.executable, "-m", "benchmarks.network_steps", "--one", name, "--device", device,
               "--dtypes", ",".join(dtypes), "--steps", str(steps)]  # fmt: skip
    ended = False
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            ended = True
            out, err = child.communicate()
    rows = [json.loads(line) for line in out.splitlines() if line.startswith('{"name"')]
    if not ended and len(rows) < len(dtypes):
        reason = f"the process died (exit status {child.returncode}): {err.strip()[-300:]}"
        rows.append({"name": name, "dtype": dtypes[len(rows)], "reason": reason})
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Trains what the command line asks for; 1 where a row is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network_steps")
    parser.add_argument("--models", help="joined by commas; else one of each family")
    add_options(parser)
    parser.add_argument("--dtypes", default="f16,bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    dtypes = args.dtypes.split(",")
    if unknown := set(dtypes) - set(DTYPES):
        parser.error(f"--dtypes: {', '.join(sorted(unknown))} is not of {', '.join(DTYPES)}")
    if args.one:
        end_with_parent()
        trained(args.one, dtypes, args.device, args.steps)
        return 0
    names = args.models.split(",") if args.models else list(NAMES)
    kept = Rows(parser, args, ("name", "dtype"), {"steps": args.steps})

    def rows_left(name: str, left: Sequence[str]) -> list[dict[str, Any]]:
        seconds = min(kept.seconds_left, _UNLIMITED)
        return rows_of(name, left, args.device, args.steps, seconds) if seconds > 0 else []

    with ThreadPoolExecutor(args.jobs) as pool:
        todo = [(name, [d for d in dtypes if kept.misses((name, d))]) for name in names]
        for done in as_completed([pool.submit(rows_left, *one) for one in todo if one[1]]):
            kept.keep(*done.result())
    rows = kept.of((name, dtype) for name in names for dtype in dtypes)
    printed = Console(width=170)
    printed.print(_table(rows))
    good = [row for row in rows if "reason" not in row]
    printed.print(
        f"{len(rows)} of {len(names) * len(dtypes)} rows, {len(good)} without a failure, of"
        f" {len({row['name'] for row in good})} networks"
    )
    return int(len(good) < len(rows))


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table()
    keys = ("dtype", "import_s", "compile_s", "steps_s", "convolutions", "offloaded", "graph",
            "first", "last", "last_pytorch", "furthest", "pytorchs")  # fmt: skip
    for name in ("network", *keys[:-1], "PyTorch's", "reason"):
        table.add_column(name.replace("_", " "))
    for row in rows:
        cells = [row.get(key, "") for key in keys]
        shown = [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells]
        table.add_row(row["name"], *shown, escape(row.get("reason", "")))
    return table


if __name__ == "__main__":
    raise SystemExit(main())
