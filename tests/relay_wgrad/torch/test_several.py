"""Many tensors by few kernels: values, and what PyTorch sees of memory that copies share."""

from __future__ import annotations

import pytest
import torch

from relay_wgrad.torch import several
from relay_wgrad.torch.several import ALIGNED, SMALL, Copies, CopyEach

SHAPES = ((4, 4), (3,), (2, 5, 3, 3), (), (0, 3), (8,), (7, 1, 2), (0,), (SMALL,), (1,))
DTYPES = (torch.float32, torch.float16, torch.int64)


def tensors() -> dict[int, torch.Tensor]:
    """By places with others between them; one is no contiguous one."""
    torch.manual_seed(0)
    many = [torch.randn(shape).mul(100).to(d) for d in DTYPES for shape in SHAPES]
    return {2 * i + 1: x for i, x in enumerate([*many, torch.randn(4, 6).t()])}


def test_copies_are_tensors_of_their_own() -> None:
    given = tensors()
    results: list[torch.Tensor | None] = [None] * (2 * len(given) + 1)
    copies = Copies(given)
    copies.into(results)
    first = [x for x in results if x is not None]
    copies.into(results)
    for (place, x), before in zip(given.items(), first, strict=True):
        copy = results[place]
        assert copy is not None
        assert torch.equal(copy, x)
        assert copy.dtype == x.dtype
        assert copy.stride() == x.stride()
        assert not copy._is_view()
        assert copy.data_ptr() % ALIGNED == 0
        assert not x.numel() or len({copy.data_ptr(), before.data_ptr(), x.data_ptr()}) == 3
    assert [x for x in results[::2] if x is not None] == []
    for x in first[:3]:
        x.add_(1)
    assert [x._version for x in first[:4]] == [2, 2, 2, 1]  # PyTorch's copy is the first
    assert all(torch.equal(x, y) for x, y in zip(first[3:], [*given.values()][3:], strict=True))


@pytest.mark.parametrize("shapes", [[(3,), (9,)], [(2, 3), (5, 1)], [(3,)]])
def test_of_one_kind(shapes: list[tuple[int, ...]]) -> None:
    given = {i: torch.randn(shape) for i, shape in enumerate(shapes)}
    results: list[torch.Tensor | None] = [None] * len(given)
    Copies(given).into(results)
    for i, x in given.items():
        copy = results[i]
        assert copy is not None
        assert torch.equal(copy, x)


def test_a_small_one_keeps_little() -> None:
    results: list[torch.Tensor | None] = [None] * 100
    Copies(tensors()).into(results)
    assert max(x.untyped_storage().nbytes() for x in results[1:13:2] if x is not None) < SMALL


def test_large_ones_share_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of up to so many bytes; one that lies otherwise has its own."""
    monkeypatch.setattr(several, "SMALL", 16)
    monkeypatch.setattr(several, "BLOCK", 256)
    shapes = [(4, 4), (32,), (3, 3), (8, 8), (100,), (2, 2, 5), (5,)]
    given = {i: torch.randn(shape) for i, shape in enumerate(shapes)}
    given[len(given)] = torch.randn(4, 6).t()
    results: list[torch.Tensor | None] = [None] * len(given)
    Copies(given).into(results)
    storages = list[int]()
    for i, x in given.items():
        copy = results[i]
        assert copy is not None
        assert torch.equal(copy, x)
        assert copy.stride() == x.stride()
        assert not copy._is_view()
        storages.append(copy.untyped_storage().data_ptr())
    assert [storages.index(at) for at in storages] == [0, 0, 0, 3, 4, 5, 5, 7]
    assert len({storages[0], storages[3], storages[4], storages[5], storages[7]}) == 5


@pytest.mark.parametrize("half", [False, True])
def test_copies_between_dtypes(half: bool) -> None:
    sources = [*tensors().values()]
    to = torch.float16 if half else None
    copy_each = CopyEach()
    for _ in range(2):
        targets = [torch.zeros_like(x, dtype=to) for x in sources]
        copy_each(targets, sources)
        for target, source in zip(targets, sources, strict=True):
            assert torch.equal(target, source.to(target.dtype))
