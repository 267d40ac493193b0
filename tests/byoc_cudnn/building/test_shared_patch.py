"""Changes of what is global: made once, undone once, also where making one is interrupted."""

from __future__ import annotations

import contextlib

import pytest

from byoc_cudnn.building.shared_patch import InUse


def test_the_first_makes_and_the_last_undoes() -> None:
    seen: list[str] = []

    def make(undo: contextlib.ExitStack) -> None:
        seen.append("made")
        undo.callback(seen.append, "undone")

    change = InUse(make)
    for _ in range(2):
        with change():
            with change(), contextlib.suppress(KeyError):
                raise KeyError
            assert seen == ["made"]
        assert seen == ["made", "undone"]
        seen.clear()


def test_what_is_made_by_half_is_undone() -> None:
    seen: list[str] = []

    def make(undo: contextlib.ExitStack) -> None:
        undo.callback(seen.append, "undone")
        raise KeyboardInterrupt

    change = InUse(make)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), change():
            seen.append("inside")
        assert seen == ["undone"]
        seen.clear()
