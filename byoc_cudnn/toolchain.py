"""The public path of `find and its like`, which is in `building.toolchain`."""

from .building.toolchain import Toolchain, ToolchainError, find, preload

__all__ = [
    "Toolchain",
    "ToolchainError",
    "find",
    "preload",
]
