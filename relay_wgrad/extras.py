"""Packages of the extras, `pip install relay-wgrad[…]`: loaded where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def extra_module(module: str, need: str, extra: str) -> Any:
    """A module of an extra.  Raises ModuleNotFoundError, with its `need`, without the package."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        how = f"{need}: pip install relay-wgrad[{extra}]"
        raise ModuleNotFoundError(how, name=error.name) from error
