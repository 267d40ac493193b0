"""Relay's name for the module of `Runtime`."""

from .names import Runtime as Runtime
