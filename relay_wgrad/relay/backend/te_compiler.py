"""`relay.backend.te_compiler`, whose cache of functions scripts clear: there is none here."""

from __future__ import annotations


class TECompiler:
    """What `get` gives."""

    def clear(self) -> None:
        """Nothing: each `relay.build` compiles anew."""


def get() -> TECompiler:
    """The compiler."""
    return TECompiler()


__all__ = ["TECompiler", "get"]
