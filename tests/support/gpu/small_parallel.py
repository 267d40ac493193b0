"""`benchmarks.parallel_ways` of a network that is compiled at once."""

from __future__ import annotations

import sys

import torch

from benchmarks import parallel_ways
from benchmarks.gpu_models import Built


def small(name: str, batch: int, image: int | None) -> Built:
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(3, 4, 3, stride=4), torch.nn.Flatten(), torch.nn.Linear(64, 5))
    return Built(torch.nn.Sequential(*layers).train(), 16, None, 5)


if __name__ == "__main__":
    parallel_ways.build = small
    parallel_ways.main(*sys.argv[1:])
