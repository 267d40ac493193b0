"""Many tensors by few kernels: PyTorch's functions of lists start one for each tensor where a list
has several dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def copy_each(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copies each source to its target."""
    lists: dict[object, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        theirs = lists.setdefault((target.dtype, source.dtype), ([], []))
        theirs[0].append(target)
        theirs[1].append(source)
    with torch.no_grad():
        for some, values in lists.values():
            torch._foreach_copy_(some, values)


def copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors in memory of their own."""
    lists: dict[torch.dtype, list[int]] = {}
    for i, x in enumerate(tensors):
        lists.setdefault(x.dtype, []).append(i)
    made = list(tensors)
    with torch.no_grad():
        for dtype, places in lists.items():
            some = [tensors[i] for i in places]
            new = (
                torch._foreach_mul(some, 1.0) if dtype.is_floating_point else map(torch.clone, some)
            )
            for i, x in zip(places, new, strict=True):
                made[i] = x
    return made
