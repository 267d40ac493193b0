"""Networks of different families trained on a GPU in half precision, beside PyTorch's losses.

Each network is trained by `Trainer` for 20 steps of SGD on one batch, and by PyTorch on the same
device in float32 and by autocast, with the same weights, dropout masks and other random numbers; in
a process of its own, several at a time.  "furthest" is the greatest distance of two losses from
PyTorch's in float32, of its first; "PyTorch's" that of PyTorch's own in half precision.  A row
fails beyond `APART` and four times that, and with a reason where training fails.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks import child
from benchmarks.modes import HALF
from benchmarks.runner import Benchmark, Case, Measure, Option, Row

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
DTYPES = ("f32", "f16", "bf16")


def trained(name: str, dtype: str, device: str, steps: int) -> Row:
    """A row, in this process."""
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
    row: Row = {"image": side, "import_s": round(time.perf_counter() - began, 1)}
    data = [spec.name for spec in graph.inputs if spec.kind == "data"]
    batch = dict(zip(data, (images.numpy(), labels.numpy()), strict=True))
    theirs = _pytorch(module, graph, batch, device, steps, None)
    half = _pytorch(module, graph, batch, device, steps, HALF[dtype])
    row |= {"pytorch": theirs, "autocast": half, "pytorchs": apart(half, theirs)}
    began = time.perf_counter()
    trainer = Trainer(graph, device, optimizer="sgd", lr=RATE, dtype=HALF[dtype], layout="NHWC")
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
    return row


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


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for name, dtype in itertools.product(args.models or NAMES, args.dtypes):
        yield Case({"name": name, "dtype": dtype, "steps": args.steps})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    def one(case: Case) -> Row:
        name, dtype, steps = case.key.values()
        return child.row(trained, name, dtype, "cuda" if args.on_gpu else "cpu", steps,
                         seconds=args.seconds)  # fmt: skip

    return one


BENCHMARK = Benchmark(
    cases, begin,
    options={
        "models": Option((), "torchvision/NAME or timm/NAME; else one of each family"),
        "dtypes": Option(("f16", "bf16"), "", DTYPES),
        "steps": Option(STEPS, "of the optimizer"),
        "seconds": Option(600.0, "of one row, at most"),
        "jobs": Option(max(1, (os.cpu_count() or 2) - 1), "processes at a time"),
    },
    columns=(
        ("network", "name"), ("dtype",), *((key.replace("_", " "), key) for key in (
            "import_s", "compile_s", "steps_s", "convolutions", "offloaded", "graph")),
        ("first", None, ".3g"), ("last", None, ".3g"), ("PyTorch's last", "last_pytorch", ".3g"),
        ("furthest", None, ".3g"), ("PyTorch's", "pytorchs", ".3g"), ("reason",),
    ),
)  # fmt: skip
