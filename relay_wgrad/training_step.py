"""The public path of `step_module`, which is in `training.step`."""

from .training.step import step_module

__all__ = [
    "step_module",
]
