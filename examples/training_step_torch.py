"""A network of handwritten digits whose forward and backward passes are compiled as a whole.

The loop is PyTorch's: its loss, its optimizer, its clipping, two batches for an update.  The first
update's gradients are compared with those of the module itself.
"""

import copy
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import relay_wgrad
import relay_wgrad.torch as rt

EPOCHS, BATCH, PARTS = 3, 64, 2


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 8 * 8, 10),
    )  # fmt: skip


def main():
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    images, held = images[:1536], images[1536:]
    labels, truth = labels[:1536], labels[1536:]

    relay_wgrad.register()
    module = network()
    twin = copy.deepcopy(module)
    step = rt.TrainingStep(module, images[:BATCH])
    optimizer = torch.optim.AdamW(step.parameters(), lr=3e-3)

    cross_entropy(step(images[:BATCH]), labels[:BATCH]).backward()
    cross_entropy(twin(images[:BATCH]), labels[:BATCH]).backward()
    pairs = zip(module.parameters(), twin.parameters(), strict=True)
    errors = [((a.grad - b.grad).norm() / b.grad.norm()).item() for a, b in pairs]
    print(f"gradients: at most {max(errors):.0e} away from PyTorch's")

    for epoch in range(EPOCHS):
        order = torch.randperm(len(images)).split(BATCH)
        for i, chosen in enumerate(order, 1):
            loss = cross_entropy(step(images[chosen]), labels[chosen])
            (loss / PARTS).backward()
            if i % PARTS == 0:
                nn.utils.clip_grad_norm_(step.parameters(), 5.0)
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch + 1}: loss {loss.item():.3f}")

    module.eval()
    with torch.no_grad():
        right = (module(held).argmax(1) == truth).float().mean().item()
    print(f"{100 * right:.0f}% of the held-out digits are right")
    return 0 if right > 0.85 and max(errors) < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
