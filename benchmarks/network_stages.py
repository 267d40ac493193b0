"""One network on its way to a training step, by stages: `benchmarks cpu networks`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

import byoc_cudnn
from benchmarks.network_zoo import BATCH, Loss, build
from byoc_cudnn.report import PRODUCT
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.training.step import ADJOINT, converted, step_module
from relay_wgrad.transform import count_reasons, layout_changes

LIBRARIES = ("cudnn", "cutlass")
Send = Callable[[dict[str, Any]], None]


@contextmanager
def _timed_export(spent: list[float]) -> Iterator[None]:
    export = torch.export.export

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return export(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - began)

    with mock.patch.object(torch.export, "export", timed):
        yield


def facts_of_network(network: torch.nn.Module, side: int) -> dict[str, Any]:
    """What a row says of a network before anything is done with it."""
    convolutions = sum(isinstance(m, torch.nn.modules.conv._ConvNd) for m in network.modules())
    count = sum(p.numel() for p in network.parameters())
    return {"image": side, "parameters": count, "layers": convolutions}


def _watch() -> Callable[[], float]:
    """Seconds since it was asked last."""
    began = time.perf_counter()

    def lap() -> float:
        nonlocal began
        now, last = time.perf_counter(), began
        began = now
        return round(now - last, 2)

    return lap


def stages(name: str, send: Send) -> None:
    """Sends the facts of a network after each stage; raises where one fails."""
    torch.set_num_threads(1)
    lap = _watch()
    network, side = build(name, initial=False)
    send({**facts_of_network(network, side), "made_s": lap()})
    spent: list[float] = []
    with _timed_export(spent):
        graph = from_torch(
            Loss(network), (torch.rand(BATCH, 3, side, side),), loss="own", dropout="mask",
            name=name,
        )  # fmt: skip
    send({"import_s": lap(), "export_s": round(sum(spent), 2), "notes": list(graph.notes)})
    rest(graph, send)


def rest(graph: TrainingGraph, send: Send) -> None:
    """Sends the facts of a training graph after each stage from its gradient on."""
    lap = _watch()
    step = step_module(
        graph, dtype="float16", scaled=True, wide_weight_gradients=False, raise_norms=True
    )
    send({"gradient_s": lap(), "bindings": len(step[ADJOINT].body.blocks[0].bindings)})
    last = converted(step, "NHWC")
    reasons = dict(count_reasons(layout_changes(last[ADJOINT], step[ADJOINT])))
    send({"layout_s": lap(), "between": reasons.get("between", 0),
          "fixed": reasons.get("fixed", 0), "changes": reasons})  # fmt: skip
    if reasons.get("between"):
        raise ValueError(f"{reasons['between']} changes of layout between operators")
    _, report = byoc_cudnn.partition(last, LIBRARIES)
    entries = [entry for entry in report.entries if entry.op != PRODUCT]
    left = sorted({f"{e.op}: {e.reason}" for e in entries if not e.backend})
    send({"partition_s": lap(), "convolutions": len(entries),
          "offloaded": sum(bool(e.backend) for e in entries), "left": left})  # fmt: skip
