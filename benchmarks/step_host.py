"""What the host does for a step: calls from PyTorch, and the reading of images.

`calls`: of a `TrainingStep` of ResNet-50 the search for the program, and the comparison with what
`forward` has read in it; images are small: how many layers there are counts.  Of a convolution a
call without and with its gradients, ours and PyTorch's, so small that its kernels take no time to
speak of.  The least of many rounds, in processor time of the thread, on a GPU by the clock, which
it is ahead of.

`steps`, on a CPU: forward and backward of ResNet-50 by a `TrainingStep` and by `torch.compile`'s
backend as graphs whose launches, and copies, do nothing; and how much that is above an empty
`autograd.Function` over the same parameters, which is called in turns with it.

`images`: JPEGs of 500x375 pixels in a folder (`ImageFolder`: decoded, a part cut out at random and
resized to 224x224) by so many threads, images a second; and those that a `Trainer` of ResNet-50 in
bfloat16 takes of them, on a CPU one of a sixteenth of its width: "waits" is the share of its time
in which it asks for a batch.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import torch

import relay_wgrad
import relay_wgrad.torch as rt
from benchmarks.gpu_sides import empty_call
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.frontend import TrainingGraph, from_torch
from relay_wgrad.torch import compiler, programs
from relay_wgrad.training.images import ImageFolder
from relay_wgrad.training.trainer import Trainer
from tests.support.torch import plain_networks

CALLS = 20
FILES, BATCH, WARM = 512, 64, 6
THREADS = (1, 2, 4, 8, 16, 32)
TRAINER = "a Trainer's images"
STEP = ("finding the program", "comparing")
WHOLE = ("TrainingStep", "torch.compile")
CONVOLUTION = ("forward, no gradient", "forward, recorded", "forward and backward()",
               "forward and autograd.grad")  # fmt: skip
F = torch.nn.functional


def least(call: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """Microseconds of one call."""
    call()
    found, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end:
        began = clock()
        for _ in range(CALLS):
            call()
        found = min(found, (clock() - began) / CALLS)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return 1e6 * found


def cases(args: argparse.Namespace) -> Iterator[Case]:
    if "images" in args.suite:
        for threads in THREADS:
            if threads <= (os.cpu_count() or 1):
                yield Case({"what": f"images, {threads} threads"}, threads)
        yield Case({"what": TRAINER})
    if "calls" in args.suite:
        yield from _calls()
    if "steps" in args.suite and not args.on_gpu:  # `gpu steps` has them
        yield from (Case({"what": f"a step, {what}"}, what) for what in WHOLE)


def _calls() -> Iterator[Case]:
    for what in STEP:
        yield Case({"what": what})
    for side in ("ours", "PyTorch's"):
        yield from (Case({"what": f"{what}, {side}"}) for what in CONVOLUTION)


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    torch.backends.cudnn.allow_tf32 = False
    clock = time.perf_counter if args.on_gpu else time.thread_time
    device = "cuda" if args.on_gpu else "cpu"
    calls: dict[str, Callable[[], Any]] = {}
    for side, function in (("ours", rt.convolution), ("PyTorch's", F.conv2d)):
        made = convolution(function, device)
        calls |= {f"{what}, {side}": call for what, call in zip(CONVOLUTION, made, strict=True)}
    names = {case.key["what"] for case in cases}
    if not names.isdisjoint(STEP):
        x = torch.randn(2, 3, 32, 32, device=device)
        step = rt.TrainingStep(plain_networks.ResNet50(width=4).to(device), x)
        program: Any = step._program((x,))
        calls |= zip(STEP, (lambda: step._program((x,)), program.depends.is_current), strict=True)
    folder: list[TemporaryDirectory[str]] = []

    def one(case: Case) -> Row:
        what = case.key["what"]
        if what in calls:
            return {"us": least(calls[what], args.seconds, clock)}
        if case.what in WHOLE:
            return whole(case.what, args.seconds)
        if not folder:  # it goes with the last case
            folder.append(TemporaryDirectory())
            write_images(Path(folder[0].name))
        if what == TRAINER:
            return trained(folder[0].name, args.on_gpu, args.seconds)
        return read(folder[0].name, case.what, args.seconds)

    return one


# ---- whole steps ---------------------------------------------------------------------------------


class Still:
    """A lane (`relay_wgrad.torch.replayed.Lane`) whose graphs do nothing."""

    def done(self, function: Callable[[], Any]) -> Any:
        return function()

    def captured(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        return function(), lambda: None

    def also(self, launch: Callable[[], None], work: Callable[[], None]) -> Callable[[], None]:
        return launch


def whole(what: str, seconds: float) -> Row:
    """Microseconds of a step's host, and those above an empty function's."""
    compiled_at = programs.compiled_at
    module = plain_networks.ResNet50(width=4).train()
    x, labels = torch.randn(2, 3, 32, 32), torch.arange(2)
    with ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for owner in (programs, compiler):
            put(owner, "compiled_at", lambda *given: replace(compiled_at(*given), work=Still))
        if what == "TrainingStep":
            loss: Any = rt.TrainingStep(module, x, loss="cross_entropy")
        else:
            loss = torch.compile(
                lambda x, labels: F.cross_entropy(module(x), labels), backend=compiler.backend
            )
        parameters = [*module.parameters()]

        def call() -> None:
            for parameter in parameters:
                parameter.grad = None
            loss(x, labels).backward()

        for _ in range(CALLS):
            call()
        for name in ("_foreach_copy_", "_foreach_add_"):
            put(torch, name, lambda *given: None)
        put(torch.Tensor, "clone", lambda x, **how: torch.empty_like(x))
        found, end = [float("inf")] * 2, time.monotonic() + seconds
        while time.monotonic() < end:
            for i, each in enumerate((call, lambda: empty_call(parameters))):
                found[i] = min(found[i], least(each, 0.2, time.thread_time))
    return {"us": found[0], "above": found[0] - found[1]}


# ---- images --------------------------------------------------------------------------------------


def write_images(folder: Path) -> None:
    """As of a camera: little of their spectrum is high, and a file has some 40 kB."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(FILES):
        pixels = np.zeros((375, 500, 3), "float32")
        for side in (4, 16, 64, 250):
            coarse = rng.uniform(-1, 1, (side, side, 3)).astype("float32")
            planes = [
                np.asarray(Image.fromarray(coarse[..., i]).resize((500, 375))) for i in range(3)
            ]
            pixels += np.stack(planes, -1) / side**0.5
        place = folder / str(number % 2)
        place.mkdir(exist_ok=True)
        image = Image.fromarray((pixels * 100 + 128).clip(0, 255).astype("uint8"))
        image.save(place / f"{number}.jpg", quality=90)


@cache
def _graph(width: int) -> TrainingGraph:
    module = plain_networks.ResNet50(width=width)
    return from_torch(module, (torch.zeros(BATCH, 3, 224, 224),))


def read(folder: str, threads: int, seconds: float) -> Row:
    """What so many threads read, and nothing else."""
    data = ImageFolder(_graph(4), folder, threads=threads)
    data.batch(0)
    began, step = time.perf_counter(), 0
    while step < 2 or time.perf_counter() - began < seconds:
        step += 1
        data.batch(step)
    return {"images": BATCH * step / (time.perf_counter() - began)}


def trained(folder: str, on_gpu: bool, seconds: float) -> Row:
    """What a trainer takes of it, and alone of batches that are there."""
    graph = _graph(64 if on_gpu else 4)
    dtype = "bfloat16" if on_gpu else None
    trainer = Trainer(graph, "cuda" if on_gpu else "cpu", lr=1e-3, dtype=dtype)
    data, waits = ImageFolder(graph, folder), list[float]()

    def batches(source: Callable[[int], Any], until: float) -> Iterator[Any]:
        step = 0
        while step < WARM or time.perf_counter() < until:
            began = time.perf_counter()
            made = source(step)
            waits.append(time.perf_counter() - began)
            step += 1
            yield made

    def speed(source: Callable[[int], Any]) -> tuple[float, float]:
        """(images a second, the share of the time that was waited)."""
        for _ in trainer.train(batches(source, 0.0)):
            pass
        waits.clear()
        began = time.perf_counter()
        count = sum(1 for _ in trainer.train(batches(source, began + seconds)))
        took = time.perf_counter() - began
        return BATCH * count / took, sum(waits) / took

    first = data.batch(0)
    alone, _ = speed(lambda step: first)
    found, share = speed(data.batch)
    return {"images": found, "alone": alone, "waits": share}


def convolution(function: Any, device: str) -> list[Callable[[], Any]]:
    """Calls of it, as `CONVOLUTION` names them."""
    x, w = (torch.randn(shape, device=device) for shape in ((1, 8, 8, 8), (8, 8, 3, 3)))
    leaves = [t.clone().requires_grad_() for t in (x, w)]
    v = torch.ones(1, 8, 6, 6, device=device)
    return [
        lambda: function(x, w),
        lambda: function(*leaves),
        lambda: function(*leaves).backward(v),
        lambda: torch.autograd.grad(function(*leaves), leaves, v),
    ]


BENCHMARK = Benchmark(
    cases, begin, suites=("calls", "steps", "images"),
    options={"seconds": Option(5.0, "for each time")},
    columns=(
        ("what",), ("µs", "us", ".1f"), ("above an empty function", "above", ".1f"),
        ("images/s", "images", ".0f"),
        ("of batches that are there", "alone", ".0f"), ("waits", None, ".0%"), ("reason",),
    ),
)  # fmt: skip
