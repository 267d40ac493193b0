"""Checks that options of several backends share: types of fields, GPUs to build for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

Archs = int | tuple[int, ...]
"""GPUs as nvcc numbers them; one library has machine code for each of several."""


def check_types(backend: str, options: Any, types: Mapping[str, type | None]) -> None:
    """Raises TypeError for a field whose value is not of its type, naming both.

    types : of fields that are no bool, None of what is checked elsewhere.  A field that is None by
        default may be that.
    """
    for field in fields(options):
        value, wanted = getattr(options, field.name), types.get(field.name, bool)
        if wanted is None or (value is None and field.default is None):
            continue
        if type(value) is not wanted:
            raise TypeError(f"{backend}: {field.name} must be {wanted.__name__}, got {value!r}")


def checked_arch(backend: str, arch: Any, known: Collection[int]) -> Archs:
    """One GPU, or several, the oldest first, each once.

    Raises TypeError for what is no number or tuple of numbers; ValueError for others than known.
    """
    several = isinstance(arch, (tuple, list))  # a list, in what was JSON
    archs = tuple(arch) if several else (arch,)
    if not all(type(one) is int for one in archs):
        raise TypeError(f"{backend}: arch must be int, or a tuple of them, got {arch!r}")
    if not archs or not set(archs) <= set(known):
        names = ", ".join(map(str, known))
        raise ValueError(f"{backend}: arch must be one of {names}, got {arch}")
    archs = tuple(sorted(set(archs)))
    return archs if len(archs) > 1 else archs[0]


def all_archs(arch: Archs) -> tuple[int, ...]:
    """The oldest first."""
    return (arch,) if isinstance(arch, int) else arch
