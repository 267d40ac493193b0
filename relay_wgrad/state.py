"""The public path of `states of a training`, which is in `training.state`."""

from .training.state import check, header, need, read, restore, save, write

__all__ = [
    "check",
    "header",
    "need",
    "read",
    "restore",
    "save",
    "write",
]
