"""Training on images of digits: losses and accuracy beside PyTorch's, over seeds.

    python -m benchmarks.digits_curves [--sides cpu,cuda,cuda:bfloat16,torch:cpu,torch:cuda]
                                       [--seeds 3] [--steps 300] [--data FILE.npz]
                                       [--json FILE] [--png FILE] [--beside FILES]

The network, the images and their order are those of examples/digits.py.  A side is a device and a
dtype; all begin at the same parameters and see the same batches.  "resumed" says whether a trainer
that went on from a saved state half-way has the parameters of one that was never interrupted, bit
for bit.  `--beside` shows sides that ran elsewhere, by their `--json`, so that sides of two
machines, or those of one in processes side by side, come into one table and one picture.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import tempfile
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import relay_wgrad
from relay_wgrad import output
from relay_wgrad.cores import configure_threads
from relay_wgrad.frontend import from_torch
from relay_wgrad.training import Trainer, state

ROOT = Path(__file__).parent.parent
LR, MOMENTUM = 0.02, 0.9


def example() -> ModuleType:
    """examples/digits.py."""
    spec = importlib.util.spec_from_file_location("digits", ROOT / "examples" / "digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Task:
    """What is learned: a network at its start, batches, images that are held back."""

    def __init__(self, seed: int, path: str | None) -> None:
        self.digits = example()
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


def run(side: str, task: Task, steps: int) -> dict[str, Any]:
    """One training of a side: "torch:" and a device, or a device, or a device ":" and a dtype."""
    if side.startswith("torch:"):
        return pytorch(task, side.partition(":")[2], steps)
    device, _, dtype = side.partition(":")
    return ours(task, device, dtype or None, steps)


def earlier(paths: str | None, seeds: int, steps: int) -> list[dict[str, Any]]:
    """Rows of other runs' JSON; ValueError where they had other seeds or steps."""
    rows: list[dict[str, Any]] = []
    for path in paths.split(",") if paths else ():
        rows += json.loads(Path(path).read_text())["rows"]
    for row in rows:
        had = len(row["runs"]), len(row["runs"][0]["losses"])
        if had != (seeds, steps):
            raise ValueError(
                f"{row['side']}: {had[0]} seeds of {had[1]} steps, not {seeds} of {steps}"
            )
    return rows


def show(rows: list[dict[str, Any]], title: str, held: int) -> None:
    """Last losses, accuracy and what resuming gave, a line a side."""
    table = Table(title=title)
    for column in ("side", "last losses", f"right of {held}", "resumed"):
        table.add_column(column)
    for row in rows:
        runs = row["runs"]
        last = ", ".join(f"{statistics.fmean(r['losses'][-20:]):.4f}" for r in runs)
        same = {r["resumed"] for r in runs if "resumed" in r}
        table.add_row(
            row["side"], last, ", ".join(str(r["right"]) for r in runs),
            "" if not same else "differs" if False in same else "same bits",
        )  # fmt: skip
    Console(width=110).print(table)


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Each side's losses, a running mean over ten steps, of its first seed."""
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
    figure.savefig(path, dpi=100)


def main() -> int:
    """1 where a resumed training differs, or a side is outside of the others' seeds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.digits_curves")
    both = "cpu,torch:cpu"
    if torch.cuda.is_available():
        both = "cpu,cuda,cuda:float16,cuda:bfloat16,torch:cpu,torch:cuda"
    parser.add_argument("--sides", default=both)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--data", metavar="FILE", help="an .npz with `images` and `labels`")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--png", metavar="FILE")
    parser.add_argument("--beside", metavar="FILES", help="earlier --json, separated by commas")
    args = parser.parse_args()
    relay_wgrad.register()
    configure_threads()
    tasks = [Task(seed, args.data) for seed in range(args.seeds)]
    rows = earlier(args.beside, args.seeds, args.steps)
    for side in args.sides.split(",") if args.sides else ():
        rows.append({"side": side, "runs": [run(side, task, args.steps) for task in tasks]})
    show(rows, f"digits, {args.steps} steps, {args.seeds} seeds", len(tasks[0].held[1]))
    if args.json:
        output.write_json(args.json, {"date": date.today().isoformat(), "rows": rows})
    if args.png:
        draw(rows, args.png)
    return int(any(r.get("resumed") is False for row in rows for r in row["runs"]))


if __name__ == "__main__":
    raise SystemExit(main())
