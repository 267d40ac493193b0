"""`TrainingStep` in PyTorch's own loop on a GPU, beside PyTorch's sides, each in its own process.

    python -m benchmarks.gpu_training_step --batch 32 --json rows.json

Forward and backward in bfloat16 by autocast, gradients dropped before each step; milliseconds a
step, the host's share of them, seconds until twelve steps are done, and memory of the device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SIDES = ("graphs", "plain", "backend", "compile", "eager")
"""`TrainingStep` as CUDA graphs and without; ours by torch.compile; torch.compile with CUDA graphs;
eager.  PyTorch's are channels last."""
NETWORKS = ("resnet50", "mobilenet_v3_large")


def measured(network: str, side: str, batch: int) -> dict[str, Any]:
    """One row."""
    import torch
    import torchvision

    import relay_wgrad
    import relay_wgrad.torch as rt

    torch.manual_seed(0)
    module = getattr(torchvision.models, network)().cuda()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    start = time.perf_counter()
    step: Any = module
    if side in ("graphs", "plain"):
        relay_wgrad.register()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            step = rt.TrainingStep(module, images, graphs=side == "graphs")
    else:
        module.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
        if side == "compile":
            step = torch.compile(module, mode="reduce-overhead")
        elif side == "backend":
            relay_wgrad.register()
            step = torch.compile(module, backend="relay_wgrad")

    def once() -> Any:
        for parameter in module.parameters():
            parameter.grad = None
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = step(images)
        loss = torch.nn.functional.cross_entropy(out.float(), labels)
        loss.backward()
        return loss

    losses = [once().item() for _ in range(12)]
    first = time.perf_counter() - start
    times = sorted(_timed(once) for _ in range(7))
    free, whole = torch.cuda.mem_get_info()
    squares = (p.grad.double().square().sum() for p in module.parameters())
    return {
        "network": network, "side": side, "batch": batch, "ms": round(times[3][0], 3),
        "host_ms": round(times[3][1], 3), "first_s": round(first, 1), "loss": losses[0],
        "norm": float(sum(squares)) ** 0.5, "gib": round((whole - free) / 2**30, 2),
        "captured": getattr(step, "captured", None), "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }  # fmt: skip


def _timed(once: Callable[[], Any], steps: int = 20) -> tuple[float, float]:
    """(milliseconds of the device, of the host) for a step."""
    import torch

    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    events[0].record()
    start = time.perf_counter()
    for _ in range(steps):
        once()
    host = time.perf_counter() - start
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / steps, host / steps * 1e3


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.gpu_training_step", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--networks", nargs="*", default=NETWORKS, metavar="NAME")
    parser.add_argument("--sides", nargs="*", default=SIDES, choices=SIDES)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--json", type=Path, help="write the rows")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        print(json.dumps(measured(args.networks[0], args.sides[0], args.batch)))
        return 0
    rows = []
    for network in args.networks:
        for side in args.sides:
            command = [sys.executable, "-m", "benchmarks.gpu_training_step", "--one"]
            command += ["--networks", network, "--sides", side, "--batch", str(args.batch)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{network} {side}: {done.stderr[-500:]}", file=sys.stderr)
                continue
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            row = rows[-1]
            print(f"{network:20} {side:8} {row['ms']:8.2f} ms, host {row['host_ms']:.2f}")
            if args.json:
                args.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
