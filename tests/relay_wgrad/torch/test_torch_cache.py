"""The kernels that a process keeps: bounded, given back, right for whoever is in one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import relay_wgrad.torch as rt
from relay_wgrad.torch import cache
from tests.support.children import run_code
from tests.support.torch.cases import error, quick_kernels

F = torch.nn.functional
W = torch.randn(4, 2, 3, 3, dtype=torch.float64)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with quick_kernels():
        yield


def data(width: int, images: int = 1) -> torch.Tensor:
    return torch.randn(images, 2, 5, width, dtype=torch.float64)


def is_right(x: torch.Tensor) -> bool:
    return error(rt.convolution(x, W, padding=1), F.conv2d(x, W, padding=1)) < 1e-12


def test_the_least_recently_called_goes() -> None:
    rt.set_cache_size(3)
    for width in (5, 6, 7, 5, 8, 5):  # 8 drops 6
        assert is_right(data(width))
    assert rt.cache_info() == (3, 3, 4, 1)
    for width in (5, 7, 8):
        assert is_right(data(width))
    assert rt.cache_info().built == 4
    assert is_right(data(6))
    assert rt.cache_info() == (3, 3, 5, 2)
    assert len(cache.kept.prepared) <= 3  # none of a kernel that is gone
    rt.set_cache_size(1)
    assert rt.cache_info() == (1, 1, 5, 4)
    rt.clear_cache()
    assert rt.cache_info().kernels == 0
    assert not cache.kept.prepared
    assert is_right(data(6))


@pytest.mark.parametrize(("size", "kind"), [(0, ValueError), (-1, ValueError), (2.0, TypeError)])
def test_sizes_that_are_none(size: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="set_cache_size: kernels must be"):
        rt.set_cache_size(size)


GIVEN_BACK = """
import gc
import sys
from pathlib import Path

import torch

import relay_wgrad.torch as rt
from tests.support.children import run_code
from tests.support.torch.cases import error, quick_kernels

def run(widths):
    w = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    for width in widths:
        x = torch.randn(1, 2, 5, width, dtype=torch.float64)
        want = torch.nn.functional.conv2d(x, w, padding=1)
        assert error(rt.convolution(x, w, padding=1), want) < 1e-12
    gc.collect()
    mappings = len(Path("/proc/self/maps").read_text().splitlines())
    return mappings, int(Path("/proc/self/statm").read_text().split()[1]) * 4096

before, more = map(int, sys.argv[1:])
with quick_kernels():
    rt.set_cache_size(2)
    count, held = run(range(5, 5 + before))
    mappings, resident = run(range(5 + before, 5 + before + more))
assert mappings <= count + 6, (count, mappings)  # of a kernel three
assert resident < held + (24 << 20), (held, resident)  # all would be more than 2 MiB each
"""


@pytest.mark.longer_cases("20-100")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
@pytest.mark.parametrize(("before", "more"), [(8, 8), (20, 100)])
def test_memory_is_given_back(before: int, more: int) -> None:
    """In a process of its own: what other tests left behind is freed and taken there meanwhile."""
    done = run_code(GIVEN_BACK, str(before), str(more))
    assert done.returncode == 0, done.stderr


def test_batches_share_a_kernel() -> None:
    """The first number of images has its own, and keeps it; all others have one together."""
    w = W.clone().requires_grad_()
    results = {}
    for images in (4, 2, 3, 1, 7, 4):
        torch.manual_seed(images)
        x = data(6, images).requires_grad_()
        out = rt.convolution(x, w, padding=1)
        got = torch.autograd.grad(out.sin().sum(), (x, w))
        want = torch.autograd.grad(F.conv2d(x, w, padding=1).sin().sum(), (x, w))
        assert max(map(error, got, want)) < 1e-12
        known = results.setdefault(images, got)
        assert all(map(torch.equal, known, got))
    assert rt.cache_info().built == 6
    rt.set_cache_size(1)
    torch.manual_seed(4)
    x = data(6, 4)
    before = rt.convolution(x, W, padding=1)
    rt.convolution(x[:3], W, padding=1)
    assert torch.equal(rt.convolution(x, W, padding=1), before)  # of a kernel built anew


def test_batches_with_winograd() -> None:
    with rt.allow_winograd():
        for images in (1, 2, 3):
            assert is_right(data(6, images))
    assert rt.cache_info().built == 3


def test_threads() -> None:
    """Each thread drops what the others are calling."""
    rt.set_cache_size(2)
    right: list[bool] = []

    def work(first: int) -> None:
        for width in (5, 6, 7):
            right.append(is_right(data(first + width)))
            if width == 6:
                rt.clear_cache()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert right == [True] * 9
    assert rt.cache_info().kernels <= 2


def test_a_call_keeps_its_kernel() -> None:
    """Dropped while it runs: it ends, and is not prepared again."""
    rt.set_cache_size(4)
    x = data(5)
    want = rt.convolution(x, W)
    (slot,) = cache.kept.slots.values()
    kernel = slot.kernel

    def during(first: Any, second: Any, out: Any) -> None:
        rt.clear_cache()
        kernel(first, second, out)

    slot.kernel = during
    assert torch.equal(rt.convolution(x, W), want)
    assert rt.cache_info().kernels == 0
    assert torch.equal(rt.convolution(x, W), want)
