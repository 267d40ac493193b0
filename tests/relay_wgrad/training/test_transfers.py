"""Batches on their way to a device, from where they are: a stand-in for CUDA's runtime."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad.frontend import InputSpec
from relay_wgrad.training.loss_scale import FIELDS
from relay_wgrad.training.recycled import Recycled, memory_of
from relay_wgrad.training.transfers import CudaTransfers
from tests.support.cuda_stand_in import Counting, runtime

SHAPE = (4, 3, 64, 64)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Counting:
    return runtime(tmp_path_factory.mktemp("cudart"))


class Given:
    """Transfers of images and labels: what the device has got, how often memory was pinned."""

    def __init__(self, counted: Counting) -> None:
        self.counted, self.transfers = counted, CudaTransfers(counted, tvm.cpu(), 0)
        specs = [InputSpec("x", "data", SHAPE, "float32"), InputSpec("y", "labels", (4,), "int64")]
        self.places = self.transfers.places(specs)

    def step(self, images: Any) -> tuple[int, int]:
        """(times that memory was pinned, times that the host waited for an event)."""
        before, labels = self.counted.calls.copy(), np.arange(4)
        got = self.transfers.inputs(self.places, [images, labels])
        np.testing.assert_array_equal(got[0].numpy(), images)
        np.testing.assert_array_equal(got[1].numpy(), labels)
        self.transfers.done(tvm.runtime.tensor(np.zeros(len(FIELDS))), None)
        new = self.counted.calls - before
        return new["cudaHostAlloc"], new["cudaEventSynchronize"]


def test_recycled_memory() -> None:
    """It is another's when the array and its views are gone, and not before."""
    recycled = Recycled()
    first = recycled.empty((2, 3), "float32")
    first[...] = 1
    address, view = first.ctypes.data, first[1:, 1:]
    assert memory_of(first) is not None
    assert memory_of(first[:1]) is memory_of(np.ones(3)) is memory_of(first.T) is None
    del first
    gc.collect()
    other = recycled.empty((2, 3), "float32")
    assert other.ctypes.data != address
    other[...] = 2
    assert (view == 1).all()
    assert recycled.empty((3, 2), "int64").ctypes.data != address  # of another size
    del view
    assert recycled.empty((3, 2), "int32").ctypes.data == address
    assert recycled.empty((0, 3), "float32").shape == (0, 3)


def test_others_memory_is_copied_by_the_host(counted: Counting) -> None:
    given = Given(counted)
    images = np.random.default_rng(0).standard_normal(SHAPE, dtype="float32")
    first = given.step(images)[0]
    assert first >= 2  # images and labels, and the step's report
    assert [given.step(-images)[0], given.step(2 * images)[0]][-1] <= 1
    given.step(images[:, ::-1])


def test_recycled_memory_is_copied_from_where_it_is(counted: Counting) -> None:
    """It is pinned once; the array is held until the device has read it."""
    given, recycled = Given(counted), Recycled()
    places = []
    for step in range(8):
        images = recycled.empty(SHAPE, "float32")
        images[...] = step
        memory = memory_of(images)
        assert memory is not None
        places.append(memory.address)
        given.step(images)
        assert memory.is_pinned
        del images
        gc.collect()
        assert recycled.empty(SHAPE, "float32").ctypes.data != memory.address
    # Two are on their way while a third is filled; the fourth is the one that looked for it.
    assert len({*places}) <= 4
    assert counted.calls["cudaHostAlloc"]


def test_pinned_memory_of_others(counted: Counting) -> None:
    """It is copied from where it is, and the host waits for that: its owner may write over it."""
    given, images = Given(counted), np.empty(SHAPE, "float32")
    address = images.ctypes.data
    counted.call("cudaHostRegister", address, images.nbytes, 0)
    try:
        waits = []
        for step in range(4):
            images[...] = step
            waits.append(given.step(images)[1])
        assert min(waits) >= 2  # for the place, and for the copy
        assert given.step(images + 1)[1] == 1
        given.step(images[:, :, ::-1].copy())
    finally:
        counted.call("cudaHostUnregister", address)
    assert given.step(images)[1] == 1


def test_memory_that_cannot_be_pinned(counted: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "pin", lambda *_: False)
    given, images = Given(counted), Recycled().empty(SHAPE, "float32")
    images[...] = 3
    given.step(images)
