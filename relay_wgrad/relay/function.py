"""Relay's name for the module of functions."""

from .ast import Function as Function
