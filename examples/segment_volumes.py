"""A residual U-Net of volumes in nnU-Net's manner finds balls and ellipsoids in noise, by patches.

Its forward and backward passes are compiled as a whole; the loop, Dice with cross-entropy and the
optimizer are PyTorch's.  The module itself is trained beside it on the same patches: what differs
is rounding.  `--device cuda` on a GPU.
"""

import argparse
import copy
import itertools
import sys
import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import relay_wgrad
import relay_wgrad.torch as rt

SIDE, PATCH, BATCH, CLASSES, WIDTHS = 40, 24, 2, 3, (8, 16, 32)


def block(inside, outside, stride=1, act=True):
    return [
        nn.Conv3d(inside, outside, 3, stride, padding=1), nn.InstanceNorm3d(outside, affine=True),
        *[nn.LeakyReLU(0.01, inplace=True)] * act,
    ]  # fmt: skip


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.parts = nn.Sequential(
            *block(inside, outside, stride), *block(outside, outside, act=False)
        )
        self.shortcut = nn.Sequential(
            *[nn.AvgPool3d(stride)] * (stride > 1),
            *[nn.Conv3d(inside, outside, 1, bias=False)] * (inside != outside),
        )
        self.act = nn.LeakyReLU(0.01, inplace=True)

    def forward(self, x):
        return self.act(self.parts(x) + self.shortcut(x))


class UNet(nn.Module):
    """Logits (N, classes, D, H, W) of volumes (N, 1, D, H, W), whose sizes 4 divides."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(*block(1, WIDTHS[0]))
        pairs = list(itertools.pairwise(WIDTHS))
        self.down = nn.ModuleList(
            [Residual(WIDTHS[0], WIDTHS[0], 1), *(Residual(c, k, 2) for c, k in pairs)]
        )
        self.up = nn.ModuleList(nn.ConvTranspose3d(k, c, 2, 2) for c, k in pairs[::-1])
        self.join = nn.ModuleList(nn.Sequential(*block(2 * c, c)) for c, _ in pairs[::-1])
        self.head = nn.Conv3d(WIDTHS[0], CLASSES, 1)

    def forward(self, x):
        x, kept = self.stem(x), []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
        for up, join, left in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([up(x), left], 1))
        return self.head(x)


def volume(generator):
    """(an image (D, H, W) of noise in which two balls and two ellipsoids are brighter, labels)."""
    places = torch.stack(torch.meshgrid(*[torch.arange(SIDE)] * 3, indexing="ij"), -1).float()
    labels = torch.zeros((SIDE,) * 3, dtype=torch.int64)
    for kind in (1, 2, 1, 2):
        center = torch.rand(3, generator=generator) * (SIDE - 12) + 6
        radii = torch.rand(1, generator=generator) * 3 + 4
        if kind == 2:
            stretch = torch.tensor([0.5, 1.0, 1.7])
            radii = radii * stretch[torch.randperm(3, generator=generator)]
        labels[(((places - center) / radii) ** 2).sum(-1) < 1] = kind
    noise = torch.randn(labels.shape, generator=generator)
    return (labels > 0) * 1.5 + 0.7 * noise, labels


def patch(volumes, generator):
    """A batch of patches from anywhere, turned over at random: (N, 1, …), (N, …)."""
    images, labels = [], []
    for _ in range(BATCH):
        image, wanted = volumes[int(torch.randint(len(volumes), (), generator=generator))]
        at = torch.randint(SIDE - PATCH + 1, (3,), generator=generator).tolist()
        where = tuple(slice(a, a + PATCH) for a in at)
        over = [a for a in range(3) if torch.rand((), generator=generator) < 0.5]
        images.append(image[where].flip(over)[None])
        labels.append(wanted[where].flip(over))
    return torch.stack(images), torch.stack(labels)


def soft_dice(logits, labels):
    """Of each class but the background, in the whole batch: 1 where all is right."""
    found, truth = logits.softmax(1), one_hot(labels, CLASSES).movedim(-1, 1).float()
    axes = (0, 2, 3, 4)
    both, sizes = (found * truth).sum(axes), found.sum(axes) + truth.sum(axes)
    return ((2 * both + 1e-5) / (sizes + 1e-5))[1:].mean()


@torch.no_grad()
def dice(module, volumes, device):
    """Of the classes that are chosen, in volumes that were not seen; of whole ones at once."""
    module.eval()
    images = torch.stack([image[None] for image, _ in volumes]).to(device)
    labels = torch.stack([wanted for _, wanted in volumes]).to(device)
    chosen = one_hot(module(images).argmax(1), CLASSES).movedim(-1, 1).float()
    module.train()
    return soft_dice(1e4 * chosen, labels).item()


def train(module, step, steps, volumes, held, device):
    """(losses, seconds of a step but the first, Dice before, in the middle and at the end)."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    losses, scores, began = [], [dice(module, held, device)], None
    for i in range(steps):
        images, labels = (t.to(device) for t in patch(volumes, generator))
        logits = step(images)
        loss = cross_entropy(logits, labels) + 1 - soft_dice(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        began = began or time.perf_counter()
        if i + 1 in (steps // 2, steps):
            seconds = (time.perf_counter() - began) / max(i, 1)
            scores.append(dice(module, held, device))
    return torch.tensor(losses), seconds, scores


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    volumes = [volume(generator) for _ in range(16)]
    volumes, held = volumes[:12], volumes[12:]

    relay_wgrad.register()
    module = UNet().to(args.device)
    twin = copy.deepcopy(module)
    step = rt.TrainingStep(module, patch(volumes, generator)[0].to(args.device))
    runs = [train(m, s, args.steps, volumes, held, args.device) for m, s in
            ((module, step), (twin, twin))]  # fmt: skip
    last = max(args.steps // 10, 1)
    for name, (losses, seconds, scores) in zip(("compiled here", "PyTorch"), runs, strict=True):
        said = ", ".join(f"{score:.2f}" for score in scores)
        print(f"{name}: {1e3 * seconds:.0f} ms a step, loss {losses[0]:.3f} to"
              f" {losses[-last:].mean():.3f}, Dice of held-out volumes {said}")  # fmt: skip
    (ours, _, scores), (theirs, _, _) = runs
    first = ((ours - theirs).abs() / theirs)[:10].max().item()
    means = [x[-last:].mean().item() for x in (ours, theirs)]
    print(f"losses: of the first ten steps at most {first:.0e} apart, means of the last {last}"
          f" {abs(means[0] - means[1]):.4f} apart")  # fmt: skip
    return 0 if first < 1e-2 and scores[-1] > scores[0] else 1


if __name__ == "__main__":
    sys.exit(main())
