"""Places of tensors in one block of memory."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay_wgrad.pipeline.packing import ALIGNMENT, Lifetime, most_alive, packed

LIFETIMES = st.builds(
    lambda size, first, length: Lifetime(size, first, first + length),
    st.integers(0, 20_000), st.integers(0, 30), st.integers(0, 12),
)  # fmt: skip


def check(tensors: list[Lifetime]) -> None:
    """Two tensors have no byte in common while both are alive, and the block holds them all."""
    offsets, size = packed(tensors)
    places = [(t, o, o + t.size) for t, o in zip(tensors, offsets, strict=True)]
    for i, (tensor, begin, end) in enumerate(places):
        assert begin % ALIGNMENT == 0
        assert 0 <= begin <= end <= size
        for other, other_begin, other_end in places[:i]:
            together = tensor.first <= other.last and other.first <= tensor.last
            assert not (together and begin < other_end and other_begin < end), (tensor, other)
    assert size >= most_alive(tensors)


def slowly(tensors: list[Lifetime]) -> int:
    """`most_alive`, step by step."""
    steps = range(max((t.last for t in tensors), default=-1) + 1)
    sizes = [-(-t.size // ALIGNMENT) * ALIGNMENT for t in tensors]
    return max(
        (
            sum(n for n, t in zip(sizes, tensors, strict=True) if t.first <= step <= t.last)
            for step in steps
        ),
        default=0,
    )


@given(st.lists(LIFETIMES, max_size=40))
def test_tensors_that_live_together_are_apart(tensors: list[Lifetime]) -> None:
    check(tensors)
    assert most_alive(tensors) == slowly(tensors)


def test_it_beats_whole_storages() -> None:
    """The later two lie where the first was, which a plan of whole storages has no way to do."""
    tensors = [Lifetime(1 << 20, 0, 1), Lifetime(1 << 19, 2, 3), Lifetime(1 << 19, 2, 3)]
    assert packed(tensors).size == 1 << 20


def step(count: int) -> list[Lifetime]:
    """A training step's: a forward result lives until its layer's backward part."""
    rng, tensors = random.Random(0), []
    for i in range(count):
        size = rng.choice((1, 2, 3, 7, 10)) << rng.randrange(10, 20)
        tensors += [
            Lifetime(size, i, 2 * count - i),
            Lifetime(size, 2 * count - i, 2 * count + 3 - i),
        ]
    return tensors


def test_a_step_of_a_deep_network_is_packed_soon_and_well() -> None:
    tensors = step(800)
    began = time.process_time()
    size = packed(tensors).size
    assert time.process_time() - began < 2
    assert size <= 1.02 * most_alive(tensors)


def test_nothing_takes_nothing() -> None:
    assert packed([]) == ([], 0)
    assert packed([Lifetime(0, 3, 3)]) == ([0], 0)


@pytest.mark.parametrize("wrong", [Lifetime(-1, 0, 0), Lifetime(1, 2, 1)])
def test_what_cannot_be_is_refused(wrong: Lifetime) -> None:
    with pytest.raises(ValueError, match=rf"size={wrong.size}, first={wrong.first}"):
        packed([Lifetime(8, 0, 0), wrong])
