"""Templates: C++ text that generated sources are made of, a backend's own or shared."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files


def template(backend: str, name: str) -> str:
    """The text of a file of `backends/<backend>/templates`, or of `templates`, which all share."""
    own = files("byoc_cudnn") / "backends" / backend / "templates" / name
    return own.read_text(encoding="utf-8") if own.is_file() else shared(name)


def shared(name: str) -> str:
    """The text of a file of `templates`."""
    return of_room("", name)


@lru_cache(maxsize=64)
def of_room(room: str, name: str) -> str:
    """The text of a file of `<room>/templates`: a family of direct calls, or "" for all of them."""
    return (files("byoc_cudnn") / room / "templates" / name).read_text(encoding="utf-8")


def constants(room: str, name: str) -> dict[str, int]:
    """The whole numbers that such a file gives names: what Python must know of C++ is read there.

    >>> constants("", "device_packs.h")["kThreads"]
    256
    """
    lines = re.findall(r"^constexpr int(?:64_t)? (.*?);", of_room(room, name), re.MULTILINE)
    found = re.findall(r"(k\w+) = (\d+)(?=,|$)", "\n".join(lines), re.MULTILINE)
    return {name: int(value) for name, value in found}
