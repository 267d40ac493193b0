"""Relay's name for what `build` and `bind_params_by_name` are in."""

from .build import build as build
from .executor import create_executor as create_executor
from .expr import bind_params_by_name as bind_params_by_name
