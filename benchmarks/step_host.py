"""What a `TrainingStep` of ResNet-50 takes of the host: `python -m benchmarks.step_host`.

The least of many rounds, in processor time of the thread, of a call's search and of the comparison
with what `forward` has read in it.  The network is narrow: how many layers it has counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import relay_wgrad
import relay_wgrad.torch as rt

CALLS = 20


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu, self.downsample = nn.ReLU(inplace=True), None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def resnet50(width: int) -> nn.Module:
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    channels = width
    for stage, count in enumerate((3, 4, 6, 3)):
        blocks = []
        for i in range(count):
            stride = 2 if i == 0 and stage else 1
            blocks.append(Bottleneck(channels, width << stage, stride))
            channels = 4 * (width << stage)
        layers.append(nn.Sequential(*blocks))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def least(call: Callable[[], Any], seconds: float) -> float:
    """Microseconds of one call."""
    found, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.thread_time()
        for _ in range(CALLS):
            call()
        found = min(found, (time.thread_time() - began) / CALLS)
    return 1e6 * found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each time (default 10)")
    seconds = parser.parse_args().seconds
    relay_wgrad.register()
    x = torch.randn(2, 3, 32, 32)
    step = rt.TrainingStep(resnet50(4), x)
    print(f"finding the program: {least(lambda: step._program((x,)), seconds):.0f} us")
    program: Any = step._program((x,))
    if hasattr(program, "depends"):
        print(f"comparing: {least(program.depends.is_current, seconds):.0f} us")


if __name__ == "__main__":
    main()
