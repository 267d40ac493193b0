"""Training of some parameters on the CPU beside PyTorch with the others frozen: memory and time.

    python -m benchmarks.partial_training --json FILE [--resume] [--networks resnet50,mobilenet_v2]
        [--parts all,last,head,biases] [--batch 8] [--image 224] [--steps 5]
        [--device cuda] [--dtype bfloat16]

A row is a network, a part of its parameters and a side, each in a process of its own, steps of SGD
with momentum in training mode.  `peak` is what steps add to the process, which holds parameters and
data already; on a GPU what is in use there, with parameters and kernels.  `plan` is what the
compiled step sets aside for intermediate results.  Times are the shortest of the steps'.  With
--resume rows that FILE has are kept.  Needs torchvision.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.cpu_timing import cpu_model
from benchmarks.gpu_models import build
from relay_wgrad import output
from relay_wgrad.frontend.partial import Choice

PARTS: dict[str, str | None] = {
    "all": None,
    "last": "layer4,fc,features.1[678],classifier",
    "head": "fc,classifier",
    "biases": "*.bias",
}
"""Name -> patterns; of each network those are used that match any of its parameters."""


def choice(module: torch.nn.Module, part: str) -> tuple[str, ...] | None:
    """The patterns of a part that a module has."""
    given = PARTS[part]
    if given is None:
        return None
    names = [name for name, _ in module.named_parameters()]
    return tuple(p for p in given.split(",") if any(Choice((p,)).trains(n) for n in names))


class Case(NamedTuple):
    """What is measured."""

    name: str
    part: str
    batch: int
    image: int
    steps: int
    device: str
    dtype: str


def _resident(key: str = "VmHWM") -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _in_use(case: Case) -> int:
    """Of the process, or of the device, bytes."""
    if case.device == "cpu":
        return _resident("VmRSS")
    free, whole = torch.cuda.mem_get_info()
    return int(whole - free)


def _measured(case: Case, steps: Callable[[int], float], before: int) -> dict[str, float]:
    """What steps add, and the seconds of the fastest; on a GPU ten at a time, after some."""
    each = 1 if case.device == "cpu" else 10
    if case.device == "cpu":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    else:
        steps(each)
    times, last = [], 0.0
    for _ in range(case.steps):
        start = time.perf_counter()
        last = steps(each)
        times.append((time.perf_counter() - start) / each)
    peak = _resident() if case.device == "cpu" else _in_use(case)
    return {"peak": peak - before, "seconds": min(times), "loss": last}


def ours(case: Case) -> dict[str, Any]:
    """A row of this package."""
    import relay_wgrad
    from legalize.cpu import configure_threads
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.inspection.partial import left_out
    from relay_wgrad.training import Trainer

    relay_wgrad.register()
    configure_threads()
    if case.device != "cpu":
        torch.zeros(1, device=case.device)
    before = _in_use(case)
    module = build(case.name, case.batch, case.image).module
    x = torch.zeros(case.batch, 3, case.image, case.image)
    graph = from_torch(module, (x,), trainable=choice(module, case.part))
    start = time.perf_counter()
    trainer = Trainer(
        graph, case.device, optimizer="momentum", lr=1e-3, layout="NHWC", dtype=case.dtype
    )
    compiled, values = time.perf_counter() - start, graph.random_batch(0)
    if case.device == "cpu":
        before = _in_use(case)
    found = _measured(case, lambda n: list(trainer.train([values] * n))[-1], before)
    counts = left_out(graph).part
    return {
        **found, "plan": trainer.compiled.planned_bytes, "compile": compiled,
        "tensors": counts.tensors, "wgrads": counts.wgrads, "dgrads": counts.dgrads,
    }  # fmt: skip


def theirs(form: Any, case: Case) -> dict[str, Any]:
    """A row of PyTorch, in a memory format."""
    if case.device != "cpu":
        torch.zeros(1, device=case.device)
        torch.backends.cudnn.benchmark = True
    before = _in_use(case)
    module = build(case.name, case.batch, case.image).module
    module = module.to(case.device, memory_format=form)
    chosen = Choice(choice(module, case.part) or ())
    for key, parameter in module.named_parameters():
        parameter.requires_grad_(chosen.trains(key))
    wanted = [p for p in module.parameters() if p.requires_grad]
    rule = torch.optim.SGD(wanted, 1e-3, momentum=0.9)
    x = torch.randn(case.batch, 3, case.image, case.image).to(case.device, memory_format=form)
    labels = torch.randint(1000, (case.batch,)).to(case.device)
    half = case.dtype != "float32"

    def steps(count: int) -> float:
        for _ in range(count):
            rule.zero_grad()
            with torch.autocast(case.device, torch.bfloat16, enabled=half):
                loss = torch.nn.functional.cross_entropy(module(x), labels)
            loss.backward()
            rule.step()
        return float(loss.detach())

    if case.device == "cpu":
        before = _in_use(case)
    return _measured(case, steps, before)


SIDES: dict[str, Any] = {
    "ours": ours,
    "pytorch": partial(theirs, torch.contiguous_format),
    "channels_last": partial(theirs, torch.channels_last),
}
"""The last two are PyTorch's; the table has the faster one."""


def table(rows: dict[str, dict[str, Any]]) -> Table:
    """All rows, PyTorch's beside ours."""
    shown = Table(title="training of some parameters")
    for title in ("network, part", "wgrads", "dgrads", "step, s", "PyTorch", "peak, MiB", "PyTorch",
                  "plan, MiB"):  # fmt: skip
        shown.add_column(title, justify="left" if title.startswith("network") else "right")
    for key, row in rows.items():
        name, _, side = key.rpartition(" ")
        if side != "ours":
            continue
        sides = [rows[f"{name} {s}"] for s in SIDES if s != "ours" and f"{name} {s}" in rows]
        other = min(sides, key=lambda r: r["seconds"], default={})
        mib = [f"{r['peak'] / 2**20:.0f}" if r else "" for r in (row, other)]
        shown.add_row(
            name, str(row["wgrads"]), str(row["dgrads"]), f"{row['seconds']:.3f}",
            f"{other['seconds']:.3f}" if other else "", *mib, f"{row['plan'] / 2**20:.0f}",
        )  # fmt: skip
    return shown


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--networks", default="resnet50,mobilenet_v2")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--json", required=True, help="where rows are kept, after each")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    args = parser.parse_args()
    path = Path(args.json)
    where = cpu_model() if args.device == "cpu" else torch.cuda.get_device_name()
    facts = {"device": where, "dtype": args.dtype, "batch": args.batch, "image": args.image}
    kept = json.loads(path.read_text()) if args.resume and path.exists() else {}
    rows = kept.get("rows", {}) if all(kept.get(k) == v for k, v in facts.items()) else {}
    context = multiprocessing.get_context("spawn")
    for name in args.networks.split(","):
        for part in args.parts.split(","):
            for side, measure in SIDES.items():
                key = f"{name} {part} {side}"
                if key in rows:
                    continue
                with ProcessPoolExecutor(1, context) as pool:
                    case = Case(
                        name, part, args.batch, args.image, args.steps, args.device, args.dtype
                    )
                    future = pool.submit(measure, case)
                    rows[key] = {**future.result(), "date": time.strftime("%Y-%m-%d")}
                output.write_json(str(path), {**facts, "rows": rows})
    Console().print(table(rows))


if __name__ == "__main__":
    main()
