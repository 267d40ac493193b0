"""The public path of `Data`, which is in `training.data`."""

from .training.data import Data

__all__ = [
    "Data",
]
