"""One network of `benchmarks gpu compile`, trained in several ways, in a process of its own.

Processes compile side by side, and what uses the GPU then has it alone by a lock on a file, so that
cuDNN's plans and our kernels are chosen by undisturbed times.  `eager` goes first: what cuDNN chose
for it Inductor uses too.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import importlib.util
import math
import multiprocessing
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import gpu_models, gpu_timing, network_zoo, plain_networks
from benchmarks.errors import distance
from benchmarks.gpu_sides import HALVES, MOST_CALLS, ROUND_MS, ROUNDS, SCALE, settings
from benchmarks.gpu_split import host_ms
from benchmarks.network_steps import APART, apart

OTHERS = ("eager", "exact", "inductor", "convolutions", "graphs", "captured")
"""Ways beside ours, in the order in which they are taken.  "graphs" and
"captured" are Inductor's by `mode="reduce-overhead"` and ours with CUDA graphs."""
CLASSES = {"cpu": network_zoo.CLASSES, "cuda": gpu_models.CLASSES}
RATE, MOMENTUM = 2e-3, 0.9
NUDGES = 8
_SIDES = (64, 96, 128)  # pixels
_WARM = 2
_ROUNDED = 1e-5  # of a loss: what needs no explanation
aten = torch.ops.aten


class Problem(NamedTuple):
    """What is measured of a network.  lock : a file by which processes have the GPU alone."""

    name: str
    sides: tuple[str, ...]
    steps: int
    device: str
    dtype: str
    batch: int
    image: int | None
    lock: str = ""


# ---- a network -----------------------------------------------------------------------------------


def problem(case: Problem) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """(network with its loss, images, labels) on the CPU, seeded.

    Raises ValueError for a name that is no network's, or is one of torchvision's without it.
    """
    classes, sides = CLASSES[case.device], (case.image,) if case.image else _SIDES
    if case.name == "unet" or case.name.startswith("onnx:"):
        built = gpu_models.build(case.name, case.batch, case.image or sides[0])
        module, side, classes = built.module, built.image, built.classes
    elif importlib.util.find_spec("torchvision") is not None:
        module, side = network_zoo.build(f"torchvision/{case.name}", sides=sides, classes=classes)
    elif case.name in plain_networks.NETWORKS:
        module, side = plain_networks.build(case.name), sides[0]
        classes = plain_networks.CLASSES
    else:
        raise ValueError(f"{case.name}: a network of torchvision, which is not installed")
    if case.device == "cuda":
        module = gpu_models.still(module)
    torch.manual_seed(1)
    images = torch.randn(case.batch, 3, side, side)
    with torch.no_grad():
        scores = network_zoo.tensors_of(copy.deepcopy(module)(images))[0]
    shape = (case.batch, *scores.shape[2:])  # of pixels, where the network segments
    return network_zoo.Loss(module.train()), images, torch.randint(classes, shape)


class Asked(TorchDispatchMode):
    """Counts the convolutions and gradients of convolutions that PyTorch computes within."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.convolution.default:
            self.count += 1
        elif func is aten.convolution_backward.default:
            self.count += sum(args[10][:2])
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def alone(case: Problem) -> Iterator[None]:
    """Within, no other process of this benchmark uses the GPU."""
    if not case.lock:
        yield
        return
    with Path(case.lock).open(encoding="utf-8") as file:  # closed, it is another's
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
        torch.cuda.synchronize()


@contextlib.contextmanager
def compiling(case: Problem) -> Iterator[None]:
    """Within, the GPU is used alone by what is compiled here, and not kept by its compilation."""
    from relay_wgrad.torch import compiler, inductor

    call, choice = compiler._Program.__call__, inductor.choice

    def called(*args: Any) -> Any:
        with alone(case):
            return call(*args)

    def chosen(*args: Any) -> Any:
        with alone(case):
            return choice(*args)

    with (
        mock.patch.object(compiler._Program, "__call__", called),
        mock.patch.object(inductor, "choice", chosen),
    ):
        yield


# ---- ways to train it ----------------------------------------------------------------------------


class Side:
    """A way to take steps with a copy of a network."""

    def __init__(self, name: str, case: Problem, module: Any, images: Any, labels: Any) -> None:
        self.name, self.case = name, case
        self.scale = SCALE if case.dtype == "f16" else 1.0
        dtype = torch.float64 if name == "exact" else torch.float32
        order = torch.channels_last if case.device == "cuda" else torch.contiguous_format
        self.module = copy.deepcopy(module).to(case.device, dtype, memory_format=order)
        self.images = images.to(case.device, dtype, memory_format=order)
        self.labels = labels.to(case.device)
        self.loss = self._compiled()
        self.rule = torch.optim.SGD(self.module.parameters(), RATE / self.scale, momentum=MOMENTUM)

    def _compiled(self) -> Any:
        from relay_wgrad.torch import compiler

        backends = {
            "ours": compiler.backend, "convolutions": compiler.convolutions_backend,
            "inductor": "inductor", "dynamo": "eager", "graphs": "inductor",
            "captured": compiler.backend,
        }  # fmt: skip
        if self.name not in backends:
            return self.module
        mode = "reduce-overhead" if self.name == "graphs" else None
        options = {"graphs": False} if self.name == "ours" else None
        backend = backends[self.name]
        return torch.compile(
            self.module, backend=backend, dynamic=False, mode=mode, options=options
        )

    def step(self) -> torch.Tensor:
        """The loss before it."""
        half = HALVES.get(self.case.dtype)
        self.rule.zero_grad()
        with torch.autocast(self.case.device, half, enabled=half is not None):
            loss: torch.Tensor = self.loss(self.images, self.labels)
        (loss * self.scale).backward()
        self.rule.step()
        return loss.detach()

    def trained(self) -> dict[str, Any]:
        """Steps, each with its own seed: losses, times of the host, breaks of the graph."""
        from torch._dynamo.utils import counters

        counters.clear()
        losses: list[float] = []
        seconds: list[float] = []

        def steps(count: int) -> None:
            for _ in range(count):
                torch.manual_seed(len(losses))
                began = time.perf_counter()
                losses.append(float(self.step()))
                seconds.append(time.perf_counter() - began)

        compiles = self.loss is not self.module
        with compiling(self.case) if compiles else alone(self.case):
            steps(1)
        with alone(self.case):
            steps(self.case.steps - 1)
        usual = statistics.median(seconds[_WARM:] or seconds)
        found: dict[str, Any] = {"losses": losses, "first_s": round(seconds[0], 2)}
        if self.case.device == "cpu":
            found["ms"] = 1e3 * usual
        return found | {"breaks": sum(counters["graph_break"].values())}


def facts_of_ours(side: str) -> dict[str, Any]:
    """What became of the graphs of this process since the last call."""
    from relay_wgrad.torch import reports

    graphs = reports.compiled_graphs()
    reports._graphs.clear()
    lines = [line for graph in graphs for line in graph.convolutions]
    if side == "convolutions":
        taken = sum(line.partition(" ")[2].startswith("ours") for line in lines)
    else:
        taken = sum(len(graph.convolutions) for graph in graphs if not graph.reason)
    return {
        "convolutions": len(lines), "taken": taken,
        "kernels": dict(Counter(line.partition(":")[0] for line in lines)),
        "reasons": [graph.reason for graph in graphs if graph.reason],
        "notes": [note for graph in graphs for note in graph.notes],
    }  # fmt: skip


def timed(sides: Sequence[Side]) -> dict[str, list[float]]:
    """Milliseconds of each side's step by events, in rounds."""
    calls = {}
    for side in sides:
        one = gpu_timing.milliseconds([side.step], 1)
        calls[side.name] = min(MOST_CALLS, max(2, math.ceil(ROUND_MS / max(one, 1e-3))))
    rounds: dict[str, list[float]] = {side.name: [] for side in sides}
    for _ in range(ROUNDS):
        for side in sides:
            took = gpu_timing.milliseconds([side.step], calls[side.name])
            rounds[side.name].append(took)
    return rounds


def relative(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest difference of two losses of a step, of theirs."""
    return max(abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True))


def rounding(
    case: Problem, module: Any, images: Any, labels: Any, losses: Sequence[float]
) -> float:
    """How far eager mode goes from its own losses when each number of the images is a rounding off,
    up or down at random: the furthest of some runs, since one may turn a ReLU, or may not."""
    eps = torch.finfo(HALVES.get(case.dtype, torch.float32)).eps
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(NUDGES):
        signs = torch.randint(2, images.shape, generator=generator) * 2 - 1
        beside = Side("eager", case, module, images * (1 + eps * signs), labels)
        found.append(apart(beside.trained()["losses"], losses))
    return max(found)


def measured(case: Problem) -> Iterator[dict[str, Any] | None]:
    """None when all sides have taken their first steps; then the row."""
    module, images, labels = problem(case)
    if case.device == "cuda":
        from tests.support.gpu.runner import choose_compiler

        choose_compiler()
        settings(case.dtype)
    row: dict[str, Any] = {"image": images.shape[-1], "sides": {}}
    figures, sides = row["sides"], []
    for name in (*(side for side in OTHERS if side in case.sides), "ours"):
        sides.append(Side(name, case, module, images, labels))
        figures[name] = sides[-1].trained()
        if name in ("ours", "convolutions", "captured"):
            figures[name] |= facts_of_ours(name)
    if "eager" in figures:
        (eager,) = (side for side in sides if side.name == "eager")
        states = (side.module.state_dict().values() for side in (sides[-1], eager))
        row["state"] = distance(*states)
    plain = Side("eager", case, module, images, labels)
    with alone(case), Asked() as asked:
        plain.step()
    del plain
    row |= {"asked": asked.count, "breaks_added": figures["ours"]["breaks"]}
    if row["breaks_added"]:
        own = Side("dynamo", case._replace(steps=1), module, images, labels).trained()
        row["breaks_added"] -= own["breaks"]
    if "eager" in figures:
        losses = {name: figures[name]["losses"] for name in figures}
        row |= {"furthest": apart(losses["ours"], losses["eager"]),
                "relative": relative(losses["ours"], losses["eager"])}  # fmt: skip
        if "exact" in losses:
            row |= {"eagers": apart(losses["eager"], losses["exact"]),
                    "ours_exact": apart(losses["ours"], losses["exact"])}  # fmt: skip
        if row["furthest"] > max(_ROUNDED, 4 * row.get("eagers", 0.0)):
            row["rounding"] = rounding(case, module, images, labels, losses["eager"])
    yield None
    if case.device == "cuda":
        for name, rounds in timed(sides).items():
            figures[name] |= {"rounds": rounds, "ms": statistics.median(rounds)}
        for side in sides:
            figures[side.name]["host_ms"] = host_ms(side.step)
    yield row | reason(row)


def reason(row: dict[str, Any]) -> dict[str, str]:
    """Why a row is not as it should be."""
    ours, said = row["sides"]["ours"], []
    if ours["reasons"]:
        said.append("; ".join(ours["reasons"]))
    if row["breaks_added"]:
        said.append(f"{row['breaks_added']} graph breaks are added")
    known = max(row.get(key, 0.0) for key in ("eagers", "rounding"))
    if not row.get("furthest", 0.0) <= max(APART, 4 * known):
        said.append(f"losses part by {row['furthest']:.1%} of the first")
    return {"reason": "; ".join(said)[:400]} if said else {}


def worker(case: Problem, pipe: Any) -> None:
    """Says that it is ready, waits, and sends the row; an error's text in its place."""
    warnings.simplefilter("ignore")
    if case.device == "cpu":
        torch.set_num_threads(multiprocessing.cpu_count())
    try:
        for found in measured(case):
            pipe.send(found)
            if found is None:
                pipe.recv()
    except Exception as error:  # of any kind: the row says it
        said = (str(error).strip().splitlines() or [""])[0]
        pipe.send(f"{type(error).__name__}: {said}"[:400])
