"""Training on images of digits: losses and accuracy beside PyTorch's, over seeds.

The network, the images and their order are those of examples/digits.py.  A side is a device and a
dtype; all begin at the same parameters and see the same batches.  "resumed" says whether a trainer
that went on from a saved state half-way has the parameters of one that was never interrupted, bit
for bit.
"""

from __future__ import annotations

import argparse
import copy
import runpy
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import relay_wgrad
from benchmarks.runner import Benchmark, Case, Measure, Option, Row
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import from_torch
from relay_wgrad.training import Trainer, state

EXAMPLE = Path(__file__).parents[1] / "examples" / "digits.py"
LR, MOMENTUM = 0.02, 0.9


class Task:
    """What is learned: a network at its start, batches, images that are held back."""

    def __init__(self, seed: int, path: str | None) -> None:
        self.digits = SimpleNamespace(**runpy.run_path(str(EXAMPLE)))
        torch.manual_seed(seed)
        self.module: torch.nn.Module = self.digits.network()
        images, labels = self.digits.digits(path)
        # Another seed, another order.
        order = np.random.default_rng(seed).permutation(len(labels) - self.digits.HELD_BACK)
        self.images, self.labels = images[order], labels[order]
        self.held = images[-self.digits.HELD_BACK :], labels[-self.digits.HELD_BACK :]

    def batch(self, step: int) -> tuple[Any, Any]:
        """(images, labels) of a step, in float32 and int64."""
        n = self.digits.BATCH
        at = np.arange(step * n, (step + 1) * n) % len(self.labels)
        return self.images[at], self.labels[at]

    def right(self, module: torch.nn.Module) -> int:
        """How many of the images that were held back are named rightly."""
        with torch.no_grad():
            found = module.cpu().eval()(torch.tensor(self.held[0])).argmax(1).numpy()
        return int((found == self.held[1]).sum())


def ours(task: Task, device: str, dtype: str | None, steps: int) -> dict[str, Any]:
    """Losses, accuracy, and whether a resumed training is the same."""
    module = copy.deepcopy(task.module)
    graph = from_torch(module, (torch.zeros(task.digits.BATCH, 1, 8, 8),))
    name = graph.inputs[0].name
    half = steps // 2

    def made() -> Trainer:
        scale = "dynamic" if dtype == "float16" else None
        return Trainer(
            graph, device, optimizer="momentum", lr=LR, dtype=dtype, loss_scale=scale
        )  # fmt: skip

    def run(trainer: Trainer, first: int, last: int) -> list[float]:
        given = (
            dict(zip((name, "labels"), task.batch(i), strict=True)) for i in range(first, last)
        )
        return list(trainer.train(given))

    trainer = made()
    losses = run(trainer, 0, half)
    with tempfile.TemporaryDirectory() as folder:
        state.save(trainer, Path(folder, "state"))
        other = made()
        state.restore(other, Path(folder, "state"))
    losses += run(trainer, half, steps)
    again = run(other, half, steps)
    same = again == losses[half:] and all(
        np.array_equal(trainer.params[n].numpy(), other.params[n].numpy()) for n in trainer.params
    )
    trained = {graph.onnx_names[n]: torch.tensor(v.numpy()) for n, v in trainer.params.items()}
    module.load_state_dict(trained, strict=False)
    return {"losses": losses, "right": task.right(module), "resumed": same}


def pytorch(task: Task, device: str, steps: int) -> dict[str, Any]:
    """The same in eager mode."""
    module = copy.deepcopy(task.module).to(device)
    optimizer = torch.optim.SGD(module.parameters(), LR, MOMENTUM)
    losses = []
    for step in range(steps):
        x, labels = (torch.tensor(a, device=device) for a in task.batch(step))
        loss = torch.nn.functional.cross_entropy(module(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return {"losses": [float(v) for v in losses], "right": task.right(module)}


SIDES = ("cpu", "torch:cpu")
ON_GPU = ("cpu", "cuda", "cuda:float16", "cuda:bfloat16", "torch:cpu", "torch:cuda")


def cases(args: argparse.Namespace) -> Iterator[Case]:
    for side in args.sides or (ON_GPU if args.on_gpu else SIDES):
        yield Case({"side": side, "seeds": args.seeds, "steps": args.steps})


def begin(cases: Sequence[Case], args: argparse.Namespace) -> Measure:
    relay_wgrad.register()
    configure_threads()
    tasks = [Task(seed, args.data or None) for seed in range(args.seeds)]
    return lambda case: trained(case.key["side"], tasks, args.steps)


def trained(side: str, tasks: Sequence[Task], steps: int) -> Row:
    """A run for each seed; a side is "torch:" and a device, or a device, or it, ":" and a dtype."""
    if side.startswith("torch:"):
        runs = [pytorch(task, side.partition(":")[2], steps) for task in tasks]
    else:
        device, _, dtype = side.partition(":")
        runs = [ours(task, device, dtype or None, steps) for task in tasks]
    differs = any(run.get("resumed") is False for run in runs)
    return {"runs": runs, **({"reason": "a resumed training differs"} if differs else {})}


def draw(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """With `--png` each side's losses, a running mean over ten steps, of its first seed."""
    if not args.png:
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    for row in rows:
        mean = np.convolve(row["runs"][0]["losses"], np.ones(10) / 10, "valid")
        style = "--" if row["side"].startswith("torch") else "-"
        axis.plot(mean, style, lw=1, label=row["side"])
    axis.set(xlabel="step", ylabel="loss, mean of ten steps", yscale="log")
    axis.legend()
    figure.savefig(args.png, dpi=100)


BENCHMARK = Benchmark(
    cases, begin, finish=draw,
    options={
        "sides": Option((), f"of {', '.join(ON_GPU)}"),
        "seeds": Option(3, "of parameters and orders"),
        "steps": Option(300, "of a training"),
        "data": Option("", "an .npz with `images` and `labels`"),
        "png": Option("", "a file for the picture"),
    },
    columns=(
        ("side",),
        ("last losses", lambda row: ", ".join(f"{statistics.fmean(run['losses'][-20:]):.4f}"
                                              for run in row["runs"])),
        ("right", lambda row: ", ".join(str(run["right"]) for run in row["runs"])),
        ("resumed", lambda row: all(run["resumed"] for run in row["runs"])), ("reason",),
    ),
)  # fmt: skip
