"""Templates: C++ text that generated sources are made of, a backend's own or shared."""

from __future__ import annotations

from importlib.resources import files


def template(backend: str, name: str) -> str:
    """The text of a file of `backends/<backend>/templates`, or of `templates`, which all share."""
    own = files("byoc_cudnn") / "backends" / backend / "templates" / name
    return own.read_text(encoding="utf-8") if own.is_file() else shared(name)


def shared(name: str) -> str:
    """The text of a file of `templates`."""
    return (files("byoc_cudnn") / "templates" / name).read_text(encoding="utf-8")
