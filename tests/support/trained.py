"""A trainer's state, taken and compared to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from relay_wgrad.training import Trainer


def snapshot(one: Trainer) -> dict[str, Any]:
    """What `Trainer.set_state` takes."""
    return {
        "params": {name: value.numpy() for name, value in one.params.items()},
        "state": [value.numpy() for value in one.state], **one.progress(),
    }  # fmt: skip


def same(one: dict[str, Any], other: dict[str, Any], *, nan: bool = False) -> bool:
    """Whether two are equal; `nan`: NaN is equal to itself."""
    arrays = [[*s["params"].values(), *s["state"]] for s in (one, other)]
    equal = all(np.array_equal(a, b, equal_nan=nan) for a, b in zip(*arrays, strict=True))
    return equal and all(one[key] == other[key] for key in one if key not in ("params", "state"))
