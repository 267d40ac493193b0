"""Training of some parameters on the CPU beside PyTorch with the others frozen: memory and time.

    python -m benchmarks.partial_training --json FILE [--resume] [--networks resnet50,mobilenet_v2]
        [--parts all,last,biases,norms] [--batch 8] [--image 224] [--steps 5]

A row is a network, a part of its parameters and a side, each in a process of its own, steps of SGD
with momentum in training mode.  `peak` is what steps add to the process, which holds parameters and
data already; `plan` is what the compiled step sets aside for intermediate results.  Times are the
shortest of the steps'.  With --resume rows that FILE has are kept.  Needs torchvision.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

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


def _peak(key: str = "VmHWM") -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _measured(steps: Any, count: int) -> dict[str, float]:
    """What steps add to the process, and the shortest of them."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, times, last = _peak("VmRSS"), [], 0.0
    for _ in range(count):
        start = time.perf_counter()
        last = steps()
        times.append(time.perf_counter() - start)
    return {"peak": _peak() - before, "seconds": min(times), "loss": last}


def ours(name: str, part: str, batch: int, image: int, count: int) -> dict[str, Any]:
    """A row of this package."""
    import relay_wgrad
    from legalize.cpu import configure_threads, host_target
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.inspection.partial import left_out
    from relay_wgrad.training import Trainer

    relay_wgrad.register()
    configure_threads()
    module = build(name, batch, image).module
    x = torch.zeros(batch, 3, image, image)
    graph = from_torch(module, (x,), trainable=choice(module, part))
    start = time.perf_counter()
    trainer = Trainer(graph, host_target(), optimizer="momentum", lr=1e-3, layout="NHWC")
    compiled, values = time.perf_counter() - start, graph.random_batch(0)
    found = _measured(lambda: trainer.step(values), count)
    counts = left_out(graph).part
    return {
        **found, "plan": trainer.compiled.planned_bytes, "compile": compiled,
        "tensors": counts.tensors, "wgrads": counts.wgrads, "dgrads": counts.dgrads,
    }  # fmt: skip


def theirs(form: Any, name: str, part: str, batch: int, image: int, count: int) -> dict[str, Any]:
    """A row of PyTorch, in a memory format."""
    module = build(name, batch, image).module.to(memory_format=form)
    chosen = Choice(choice(module, part) or ())
    for key, parameter in module.named_parameters():
        parameter.requires_grad_(chosen.trains(key))
    rule = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 1e-3, momentum=0.9)
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, image, image, generator=rng).to(memory_format=form)
    labels = torch.randint(1000, (batch,), generator=rng)

    def step() -> float:
        rule.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), labels)
        loss.backward()
        rule.step()
        return float(loss.detach())

    return _measured(step, count)


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
    parser.add_argument("--json", required=True, help="where rows are kept, after each")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    args = parser.parse_args()
    path = Path(args.json)
    facts = {"cpu": cpu_model(), "batch": args.batch, "image": args.image}
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
                    future = pool.submit(measure, name, part, args.batch, args.image, args.steps)
                    rows[key] = {**future.result(), "date": time.strftime("%Y-%m-%d")}
                output.write_json(str(path), {**facts, "rows": rows})
    Console().print(table(rows))


if __name__ == "__main__":
    main()
