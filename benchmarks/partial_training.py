"""Training of some parameters beside PyTorch with the others frozen: memory and time.

    python -m benchmarks.partial_training --json FILE [--resume] [--networks resnet50,mobilenet_v2]
        [--parts all,last,norms,biases,still] [--batch 8] [--image 224] [--steps 5]
        [--device cuda] [--dtype bfloat16] [--seconds 80]

A row is a network, a part of its parameters and a side, each in a process of its own, steps of SGD
with momentum in training mode.  `peak` is what steps add to the process, which holds parameters and
data already, or to the device, with the optimizer's state; `plan` is what the compiled step sets
aside for intermediate results.  Times are the shortest of the steps'.  With --resume rows that FILE
has are kept; after --seconds no more are begun.  On a GPU all processes compile at once, and are
measured one by one.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.cpu_timing import cpu_model
from benchmarks.parent import end_with_parent
from benchmarks.plain_networks import build
from relay_wgrad import output

Part = Callable[[torch.nn.Module], list[str]]
_LAST = 10  # tensors


def _names(module: torch.nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def _norms(module: torch.nn.Module) -> list[str]:
    return [
        f"{layer}.{name}" for layer, norm in module.named_modules()
        if isinstance(norm, torch.nn.BatchNorm2d) for name, _ in norm.named_parameters()
    ]  # fmt: skip


def _biases(module: torch.nn.Module) -> list[str]:
    return [name for name in _names(module) if name.endswith(".bias")]


PARTS: dict[str, Part] = {
    "all": _names,
    "last": lambda module: _names(module)[-_LAST:],
    "norms": _norms,
    "biases": _biases,
    "still": _biases,
}
"""Name -> the names of what is trained.  `still`: with running statistics in all norms."""


class Case(NamedTuple):
    """What is measured."""

    name: str
    part: str
    batch: int
    image: int
    steps: int
    device: str
    dtype: str

    def network(self) -> tuple[torch.nn.Module, list[str]]:
        """The network, and what is trained."""
        module = build(self.name)
        if self.part == "still":
            for layer in module.modules():
                layer.training = not isinstance(layer, torch.nn.BatchNorm2d)
        return module, PARTS[self.part](module)


class Ready(NamedTuple):
    """A side that can take steps: what takes so many and says the loss, the bytes that steps need
    and that are there already, and what else is known."""

    steps: Callable[[int], float]
    state: int = 0
    facts: Callable[[], dict[str, Any]] = dict


def _resident(key: str = "VmHWM") -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _in_use() -> int:
    free, whole = torch.cuda.mem_get_info()
    return int(whole - free)


def measured(case: Case, side: Ready) -> dict[str, Any]:
    """What steps add, and the seconds of the fastest; on a GPU ten at a time, after some."""
    on_cpu = case.device == "cpu"
    each = 1 if on_cpu else 10
    before = _resident("VmRSS") if on_cpu else _in_use()
    if on_cpu:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    else:
        side.steps(each)
    times, last = [], 0.0
    for _ in range(case.steps):
        start = time.perf_counter()
        last = side.steps(each)
        times.append((time.perf_counter() - start) / each)
    peak = (_resident() if on_cpu else _in_use()) - before + side.state
    return {"peak": peak, "seconds": min(times), "loss": last, **side.facts()}


def ours(case: Case) -> Ready:
    """This package."""
    import relay_wgrad
    from relay_wgrad.cores import configure_threads
    from relay_wgrad.frontend import from_torch
    from relay_wgrad.inspection.partial_training import left_out
    from relay_wgrad.training import Trainer

    relay_wgrad.register()
    configure_threads()
    module, chosen = case.network()
    x = torch.zeros(case.batch, 3, case.image, case.image)
    graph = from_torch(module, (x,), trainable=chosen)
    start = time.perf_counter()
    trainer = Trainer(
        graph, case.device, optimizer="momentum", lr=1e-3, layout="NHWC", dtype=case.dtype
    )
    compiled, values = time.perf_counter() - start, graph.random_batch(0)
    counts = left_out(graph).part
    facts = {
        "plan": trainer.compiled.planned_bytes, "compile": compiled, "tensors": counts.tensors,
        "wgrads": counts.wgrads, "dgrads": counts.dgrads,
    }  # fmt: skip
    state = sum(graph.params[name].nbytes for name in graph.trainable)
    return Ready(lambda n: list(trainer.train([values] * n))[-1], state, lambda: facts)


def theirs(form: Any, case: Case) -> Ready:
    """PyTorch, in a memory format."""
    torch.backends.cudnn.benchmark = True
    module, chosen = case.network()
    module = module.to(case.device, memory_format=form)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in chosen)
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

    return Ready(steps)


SIDES: dict[str, Callable[[Case], Ready]] = {
    "ours": ours,
    "pytorch": partial(theirs, torch.contiguous_format),
    "channels_last": partial(theirs, torch.channels_last),
}
"""The last two are PyTorch's; the table has the faster one."""
_ON_GPU = ("ours", "channels_last")


def _worker(case: Case, side: str, pipe: Any) -> None:
    """Says that it is ready, waits, and measures; sends an error's text in place of figures."""
    try:
        if case.device != "cpu":
            torch.zeros(1, device=case.device)
        else:
            torch.set_num_threads(multiprocessing.cpu_count())
        ready = SIDES[side](case)
        pipe.send(None)
        pipe.recv()
        pipe.send(measured(case, ready))
    except (ValueError, RuntimeError, MemoryError) as error:
        pipe.send(f"{type(error).__name__}: {error}"[:2000])


def _with_parent(worker: Callable[..., None], *args: Any) -> None:
    end_with_parent()
    worker(*args)


class Run:
    """A process of a row: `worker` of these arguments and a pipe, into which it sends None when it
    is ready, then waits, and sends the figures; an error's text in place of either."""

    def __init__(self, worker: Callable[..., None], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(
            target=_with_parent, args=(worker, *args, other), daemon=True
        )
        self.process.start()
        other.close()
        self.first: Any = ""

    def received(self, until: float) -> Any:
        """What it sends, an error's text where it has none or time is up."""
        if not self.pipe.poll(max(0.0, until - time.monotonic())):
            return "time is up"
        try:
            return self.pipe.recv()
        except EOFError:
            return f"the process ended with {self.process.exitcode}"

    def ready(self, until: float) -> None:
        """Returns when it is ready, or has ended."""
        self.first = self.received(until)

    def row(self, until: float) -> dict[str, Any]:
        """Its figures, or the error."""
        found = self.received(until) if self.first == "" else self.first
        if found is None:
            self.pipe.send(None)
            found = self.received(until)
        self.process.kill()
        self.process.join()
        return found if isinstance(found, dict) else {"error": str(found)}


def table(rows: dict[str, dict[str, Any]]) -> Table:
    """All rows, PyTorch's beside ours."""
    shown = Table(title="training of some parameters")
    for title in ("network, part", "tensors", "wgrads", "dgrads", "step, s", "PyTorch",
                  "peak, MiB", "PyTorch", "plan, MiB"):  # fmt: skip
        shown.add_column(title, justify="left" if title.startswith("network") else "right")
    for key, row in rows.items():
        name, _, side = key.rpartition(" ")
        if side != "ours":
            continue
        if "error" in row:
            shown.add_row(name, row["error"][:60])
            continue
        sides = [rows[f"{name} {s}"] for s in SIDES if s != "ours" and f"{name} {s}" in rows]
        other = min((r for r in sides if "error" not in r), key=lambda r: r["seconds"], default={})
        mib = [f"{r['peak'] / 2**20:.0f}" if r else "" for r in (row, other)]
        shown.add_row(
            name, str(row["tensors"]), str(row["wgrads"]), str(row["dgrads"]),
            f"{row['seconds']:.4f}", f"{other['seconds']:.4f}" if other else "", *mib,
            f"{row['plan'] / 2**20:.0f}",
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
    parser.add_argument("--seconds", type=float, default=1e6, help="in which rows are measured")
    parser.add_argument("--json", required=True, help="where rows are kept, after each")
    parser.add_argument("--resume", action="store_true", help="keep the rows that FILE has")
    args = parser.parse_args()
    path = Path(args.json)
    where = cpu_model() if args.device == "cpu" else torch.cuda.get_device_name()
    facts = {"device": where, "dtype": args.dtype, "batch": args.batch, "image": args.image}
    kept = json.loads(path.read_text()) if args.resume and path.exists() else {}
    rows = kept.get("rows", {}) if all(kept.get(k) == v for k, v in facts.items()) else {}
    wanted = [
        (f"{name} {part} {side}", side, Case(name, part, args.batch, args.image, args.steps,
                                             args.device, args.dtype))
        for name in args.networks.split(",")
        for part in args.parts.split(",")
        for side in (SIDES if args.device == "cpu" else _ON_GPU)
    ]  # fmt: skip
    wanted = [row for row in wanted if "peak" not in rows.get(row[0], {})]
    until, at_once = time.monotonic() + args.seconds, 1 if args.device == "cpu" else len(wanted)
    running: dict[str, Run] = {}
    for i, (key, _, _) in enumerate(wanted):
        for other, side, case in wanted[i : i + at_once]:
            if other not in running:
                running[other] = Run(_worker, case, side)
        rows[key] = {**running[key].row(until), "date": time.strftime("%Y-%m-%d")}
        output.write_json(str(path), {**facts, "rows": rows})
    Console().print(table(rows))


if __name__ == "__main__":
    main()
