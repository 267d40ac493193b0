"""The command line: one file a command; `main` runs it."""

from .main import main

__all__ = ["main"]
