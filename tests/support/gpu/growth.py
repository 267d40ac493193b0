"""How much memory a process has taken, of the device and of the host."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import torch

DEVICE, HOST = 2 << 20, 32 << 20  # what is no growth: others' work, Python's own


def taken() -> tuple[int, int]:
    """(bytes of the device that are not free, bytes of the process), when all work is done."""
    gc.collect()
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return total - free, pages * resource.getpagesize()


def grown(before: tuple[int, int], after: tuple[int, int]) -> list[str]:
    """Which of both grew."""
    limits = {"device": DEVICE, "host": HOST}
    return [
        name for name, most, old, new in zip(limits, limits.values(), before, after, strict=True)
        if new > old + most
    ]  # fmt: skip
