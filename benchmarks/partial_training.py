"""Training of some parameters beside PyTorch with the others frozen: memory and time.

A row is a network, a part of its parameters and a side, each in a process of its own, steps of SGD
with momentum in training mode.  `peak` is what steps add to the process, which holds parameters and
data already, or to the device, with the optimizer's state; `plan` is what the compiled step sets
aside for intermediate results.  Times are the shortest of the steps'.
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from benchmarks import child, plain_networks
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.cores import configure_threads, usable_cores

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


class Problem(NamedTuple):
    """What is measured."""

    name: str
    part: str
    side: str
    batch: int
    image: int
    dtype: str
    device: str
    steps: int

    def network(self) -> tuple[torch.nn.Module, list[str]]:
        """The network, and what is trained."""
        module = plain_networks.build(self.name)
        if self.part == "still":
            for layer in module.modules():
                layer.training = not isinstance(layer, torch.nn.BatchNorm2d)
        return module, PARTS[self.part](module)


class Ready(NamedTuple):
    """A side that can take steps: what takes so many and says the loss, the bytes that steps need
    and that are there already, and what else is known."""

    steps: Callable[[int], float]
    state: int = 0
    facts: Mapping[str, Any] = MappingProxyType({})


def _resident(key: str = "VmHWM") -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0


def _in_use() -> int:
    free, whole = torch.cuda.mem_get_info()
    return int(whole - free)


def measured(case: Problem, side: Ready) -> dict[str, Any]:
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
    return {"peak": peak, "seconds": min(times), "loss": last, **side.facts}


def ours(case: Problem) -> Ready:
    """This package."""
    import relay_wgrad
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
    return Ready(lambda n: list(trainer.train([values] * n))[-1], state, facts)


def theirs(form: Any, case: Problem) -> Ready:
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


SIDES: dict[str, Callable[[Problem], Ready]] = {
    "ours": ours,
    "pytorch": partial(theirs, torch.contiguous_format),
    "channels_last": partial(theirs, torch.channels_last),
}
"""The last two are PyTorch's; the table has the faster one."""
_ON_GPU = ("ours", "channels_last")


def row(*case: Any) -> dict[str, Any]:
    """A row, in this process."""
    problem = Problem(*case)
    if problem.device != "cpu":
        torch.zeros(1, device=problem.device)
    else:
        torch.set_num_threads(len(usable_cores()))
    return measured(problem, SIDES[problem.side](problem))


def cases(args: argparse.Namespace) -> Iterator[Case]:
    sides = _ON_GPU if args.on_gpu else SIDES
    device = "cuda" if args.on_gpu else "cpu"
    for name, part, side in itertools.product(args.suite, args.parts, sides):
        key = {"network": name, "part": part, "side": side, "batch": args.batch,
               "image": args.image, "dtype": args.dtype}  # fmt: skip
        yield Case(key, (*key.values(), device, args.steps))


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    return lambda case: child.row(row, *case.what)


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Ours over the faster of PyTorch's, in time and memory."""
    for row in (row for row in rows if row["side"] == "ours"):
        same = [r for r in rows if (r["network"], r["part"]) == (row["network"], row["part"])]
        if others := [r for r in same if r["side"] != "ours"]:
            other = min(others, key=lambda r: r["seconds"])
            time_, memory = (row[key] / max(other[key], 1e-9) for key in ("seconds", "peak"))
            yield (
                f"{row['network']} {row['part']}: {time_:.2f} of the time and {memory:.2f} of the"
                f" memory of {other['side']}"
            )


BENCHMARK = Benchmark(
    cases, begin, suites=plain_networks.NETWORKS, summary=summary,
    options={
        "parts": Option(tuple(PARTS), "what is trained", PARTS),
        "batch": Option(8, "images"),
        "image": Option(224, "the image's side"),
        "steps": Option(5, "that are timed"),
        "dtype": Option("float32", "", ("float32", "bfloat16")),
    },
    columns=(("network",), ("part",), ("side",), ("tensors",), ("wgrads",), ("dgrads",),
             ("step, s", "seconds", ".4f"), ("peak, MiB", "peak", ".0f", 2**-20),
             ("plan, MiB", "plan", ".0f", 2**-20), ("reason",)),
)  # fmt: skip
