"""Relay's name for the module of `Executor`."""

from .names import Executor as Executor
