"""One side of a row of `benchmarks.gpu_training --against`, in a process of its own.

    python -m benchmarks.gpu_sides SIDE '{"model": …, "batch": …, "image": …, "dtype": …}'

Prints one line of JSON.  A side is `ours`, compiled as a whole, of which it times the calls and, on
a GPU, the replays of one CUDA graph; `step`, `relay_wgrad.torch.TrainingStep`; or PyTorch's:
`eager`, `compile` (`torch.compile`), `graphs` (mode "reduce-overhead").  Each computes the loss and
the gradients of all parameters from the same weights and batch: NHWC, tf32 allowed in "tf32",
autocast or `step_module`'s mixed precision in halves, a loss scale in "f16".

`memory` is what the process takes of the device from before the first tensor on, at the end of all:
what allocators hold.  `allocated`: PyTorch's own count of the most that lived, in its own sides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.gpu_models import Built, build

HALVES = {"f16": torch.float16, "bf16": torch.bfloat16}
DTYPES = ("tf32", "f32", *HALVES)
PYTORCH = ("eager", "compile", "graphs")
SIDES = ("ours", *PYTORCH, "step")
SCALE = 1024.0
ROUNDS, CALLS, WARM = 7, 4, 3


class Row(NamedTuple):
    """What is measured; `image` None: the model's own size."""

    model: str
    batch: int
    image: int | None
    dtype: str


def milliseconds(call: Callable[[], Any], device: str) -> list[float]:
    """Of one call, in each round; by the device's events where it has them."""
    found = []
    for _ in range(ROUNDS if device == "cuda" else 1):
        if device == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(CALLS):
                call()
            stop.record()
            stop.synchronize()
            found.append(float(start.elapsed_time(stop)) / CALLS)
        else:
            began = time.perf_counter()
            call()
            found.append((time.perf_counter() - began) * 1e3)
    return found


def batch_of(row: Row, built: Built) -> tuple[Any, Any]:
    """(images, labels), seeded, on the CPU."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((row.batch, 3, built.image, built.image), np.float32)
    return torch.tensor(x), torch.tensor(rng.integers(0, built.classes, row.batch))


def norm(gradients: Any) -> float:
    """Of all gradients together."""
    return float(sum(g.double().square().sum() for g in gradients) ** 0.5)


def pytorch(side: str, row: Row, built: Built, device: str) -> dict[str, Any]:
    """PyTorch's sides and `step`."""
    x, labels = (t.to(device) for t in batch_of(row, built))
    module = built.module.to(device)
    began = time.perf_counter()
    if side == "step":
        import relay_wgrad
        import relay_wgrad.torch as rt

        relay_wgrad.register()
        with torch.autocast(device, HALVES.get(row.dtype), enabled=row.dtype in HALVES):
            loss_of: Any = rt.TrainingStep(module, x, loss="cross_entropy")
    else:
        module = module.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)

        def loss_of(images: Any, wanted: Any) -> Any:
            return torch.nn.functional.cross_entropy(module(images), wanted)

        if side != "eager":
            mode = "reduce-overhead" if side == "graphs" else None
            loss_of = torch.compile(loss_of, mode=mode)
    scale = SCALE if row.dtype == "f16" else 1.0
    parameters = [p for p in module.parameters() if p.requires_grad]

    def call() -> Any:
        for parameter in parameters:
            parameter.grad = None
        if side == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, HALVES.get(row.dtype), enabled=row.dtype in HALVES):
            loss = loss_of(x, labels)
        (loss * scale).backward()
        return loss

    first = call()
    found = {
        "loss": float(first.detach()),
        "norm": norm(p.grad for p in parameters if p.grad is not None) / scale,
        "build_s": time.perf_counter() - began,
    }
    del first
    for _ in range(WARM):
        call()
    return {**found, "rounds": milliseconds(call, device)}


def ours(row: Row, built: Built, device: str) -> dict[str, Any]:
    """The loss and all gradients as one compiled function."""
    import tvm

    import byoc_cudnn
    import relay_wgrad
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.training.devices import cuda_compiler, place
    from relay_wgrad.training.step import ADJOINT, converted, step_module

    relay_wgrad.register()
    x, labels = batch_of(row, built)
    began = time.perf_counter()
    graph = built.graph or from_torch(built.module, (x,))
    half = {"f16": "float16", "bf16": "bfloat16"}.get(row.dtype)
    where = place("cuda:0" if device == "cuda" else "cpu")
    mod = step_module(
        graph, dtype=half, scaled=half == "float16", wide_weight_gradients=device != "cuda",
        raise_norms=where.norms,
    )  # fmt: skip
    mod = converted(mod, where.layout)
    if device == "cuda":
        from relay_wgrad.pipeline.cuda import cuda_pipeline

        mod, _ = byoc_cudnn.partition_for_cudnn(
            mod, benchmark=True, products=True, allow_tf32=row.dtype != "f32"
        )  # fmt: skip
        with cuda_compiler():
            library = byoc_cudnn.build(mod, pipeline=cuda_pipeline(keep_memory=True))
            vm = library.virtual_machine(where.device)
    else:
        vm = where.compile(mod, lambda what: None).vm
    values = {s.name: v for s, v in zip(graph.inputs, (x.numpy(), labels.numpy()), strict=False)}
    arrays = [*graph.arguments({**graph.draws(0, 0), **values})]
    arrays += [np.float32(SCALE)] if half == "float16" else []
    args = [tvm.runtime.tensor(np.asarray(a), where.device) for a in arrays]
    del arrays

    def call() -> Any:
        return vm[ADJOINT](*args)

    outputs, gradients = call()
    found: dict[str, Any] = {
        "loss": float(outputs[0].numpy()),
        "norm": norm(torch.from_numpy(g.numpy()) for g in gradients),
        "build_s": time.perf_counter() - began,
    }
    del outputs, gradients
    for _ in range(WARM):
        call()
    found["rounds"] = milliseconds(call, device)
    if device == "cuda":
        found["vm_ms"] = statistics.median(found["rounds"])
        try:
            from relay_wgrad.training.capture import Captured
            from relay_wgrad.training.devices import cuda_runtime

            captured = Captured(cuda_runtime(), vm, ADJOINT, args, where.device)
            found["graph_rounds"] = milliseconds(captured.replay, device)
            found["graph_ms"] = statistics.median(found["graph_rounds"])
        except Exception as error:  # of libraries of many kinds; the calls were measured
            found["graph_error"] = str(error).strip().partition("\n")[0]
    return found


def measure(side: str, row: Row, device: str) -> dict[str, Any]:
    """A side's figures."""
    is_gpu = device == "cuda"
    if is_gpu:
        from tests.support.gpu.runner import choose_compiler

        choose_compiler()
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = row.dtype != "f32"
        torch.backends.cuda.matmul.allow_tf32 = row.dtype != "f32"
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
    built = build(row.model, row.batch, row.image)
    make = ours if side == "ours" else lambda *rest: pytorch(side, *rest)
    found = make(row, built, device)
    found["ms"] = min(found.get("graph_ms", np.inf), statistics.median(found["rounds"]))
    if is_gpu:
        torch.cuda.synchronize()
        found["memory"] = before - torch.cuda.mem_get_info()[0]
        if side != "ours":
            found["allocated"] = torch.cuda.max_memory_allocated()
    return found


def main() -> int:
    """Prints one side's figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_sides")
    parser.add_argument("side", choices=SIDES)
    parser.add_argument("row")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    print(json.dumps(measure(args.side, Row(**json.loads(args.row)), args.device)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
