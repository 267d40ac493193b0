"""The name of a compiled module's parts."""

from __future__ import annotations


def mangle_module_name(name: str | None) -> str:
    """`tvmgen_default` for "default", `tvmgen` for no name.

    Raises ValueError for a name that has the prefix already, or is not ASCII.
    """
    if not name:
        return "tvmgen"
    if name.startswith("tvmgen"):
        raise ValueError(f"mangle_module_name: {name!r} must not start with tvmgen")
    if not name.isascii():
        raise ValueError(f"mangle_module_name: {name!r} must be ASCII")
    return f"tvmgen_{name}"
