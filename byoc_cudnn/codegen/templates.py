"""Templates: C++ text that generated sources are made of, a backend's own or shared."""

from __future__ import annotations

from importlib.resources import files


def template(backend: str, name: str) -> str:
    """The text of a file of `backends/<backend>/templates`, or of `templates`, which all share."""
    root = files("byoc_cudnn")
    own = root / "backends" / backend / "templates" / name
    found = own if own.is_file() else root / "templates" / name
    return found.read_text(encoding="utf-8")
