"""How far arrays are from others, in relative norm: NumPy's, or PyTorch's on any device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

FLOOR = 1e-6
"""Of all norms together: what a norm counts for at least.  A true zero has nothing but rounding."""


def distance(got: Iterable[Any], want: Iterable[Any]) -> float:
    """Over all arrays together: ‖got - want‖ / ‖want‖."""
    squares = [(_square(_wide(a) - _wide(b)), _square(b)) for a, b in zip(got, want, strict=True)]
    return float((sum(far for far, _ in squares) / sum(norm for _, norm in squares)) ** 0.5)


def norm(arrays: Iterable[Any]) -> float:
    """Of all arrays together."""
    return sum(map(_square, arrays)) ** 0.5


def furthest(got: Iterable[Any], want: Iterable[Any]) -> tuple[float, int]:
    """(‖error‖ / max(‖want‖, 1e-6 ‖all‖) of the array where it is largest, that one's place)."""
    wanted = list(want)
    total = norm(wanted)
    errors = [far_from(a, b, total) for a, b in zip(got, wanted, strict=True)]
    worst = int(np.argmax(errors))  # NaN is the largest
    return errors[worst], worst


def far_from(got: Any, want: Any, total: float) -> float:
    """‖error‖ / max(‖want‖, 1e-6 total)."""
    return norm([_wide(got) - _wide(want)]) / max(norm([want]), FLOOR * total)


def _wide(array: Any) -> Any:
    return array.double() if isinstance(array, torch.Tensor) else np.asarray(array, "float64")


def _square(array: Any) -> float:
    return float((_wide(array) ** 2).sum())
