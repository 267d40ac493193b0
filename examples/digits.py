"""A convolutional network on scikit-learn's images of digits, trained on the CPU or a GPU.

    python examples/digits.py [--device cuda] [--dtype bfloat16] [--steps 300]

The same batches in the same order on either device; PyTorch, with the trained parameters, says how
many of the images that were held back are named rightly.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import relay_wgrad
from relay_wgrad.frontend import from_torch
from relay_wgrad.training import Trainer
from relay_wgrad.training.data import Data

BATCH, HELD_BACK = 64, 360


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip


def digits(path: str | None) -> tuple[Any, Any]:
    """(images (N, 1, 8, 8) from 0 to 1, labels), always in the same order."""
    if path is None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
    else:
        with np.load(path) as file:
            images, labels = file["images"], file["labels"]
    order = np.random.default_rng(0).permutation(len(labels))
    scaled = images.reshape(-1, 1, 8, 8).astype("float32") / 16
    return scaled[order], labels.astype("int64")[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or auto")
    parser.add_argument("--dtype", default=None, help="float16 or bfloat16")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument(
        "--data", metavar="FILE", help="an .npz with `images` and `labels`, 0 to 16"
    )
    args = parser.parse_args()

    relay_wgrad.register()
    torch.manual_seed(0)
    module = network()
    images, labels = digits(args.data)
    graph = from_torch(module, (torch.zeros(BATCH, 1, 8, 8),))
    name = graph.inputs[0].name
    data = Data(graph, {name: images[:-HELD_BACK], "labels": labels[:-HELD_BACK]})
    trainer = Trainer(graph, args.device, optimizer="momentum", lr=0.02, dtype=args.dtype)
    print(f"{data.samples} images, {args.steps} steps of {BATCH} on {trainer.place.name}")

    def batches() -> Iterator[dict[str, Any]]:
        for step in range(args.steps):
            yield data.batch(step)

    losses: list[float] = []
    for loss in trainer.train(batches()):  # a GPU's losses come ten at a time
        losses.append(loss)
        if len(losses) % 50 == 0:
            print(f"step {len(losses):4d}: loss {np.mean(losses[-50:]):.4f}")

    trained = {graph.onnx_names[n]: torch.tensor(v.numpy()) for n, v in trainer.params.items()}
    module.load_state_dict(trained, strict=False)
    with torch.no_grad():
        found = module.eval()(torch.tensor(images[-HELD_BACK:])).argmax(1).numpy()
    right = int((found == labels[-HELD_BACK:]).sum())
    print(f"{right} of {HELD_BACK} images that were held back are named rightly")
    if args.steps >= 300 and right < 0.97 * HELD_BACK:
        raise SystemExit("that is too few")


if __name__ == "__main__":
    main()
