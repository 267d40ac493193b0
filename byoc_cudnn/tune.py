"""The public path of `tune`, which is in `tuning.tune`."""

from .tuning.tune import tune

__all__ = [
    "tune",
]
