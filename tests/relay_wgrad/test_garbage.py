"""What is there before a program is compiled is not collected meanwhile, and all is as before."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from relay_wgrad.garbage import older_objects_stay


class Ring:
    """An object that only a collection can take away."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def thawed() -> Iterator[None]:
    """Nobody has frozen objects; the tests themselves do."""
    was = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.unfreeze()
    if was:
        gc.freeze()


@pytest.mark.usefixtures("thawed")
def test_older_objects_stay_and_new_ones_go() -> None:
    older = weakref.ref(Ring())
    with older_objects_stay():
        new = weakref.ref(Ring())
        gc.collect()
        assert older() is not None
        assert new() is None
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert older() is None


@pytest.mark.usefixtures("thawed")
def test_an_error_thaws_too() -> None:
    with pytest.raises(ValueError, match="no program"), older_objects_stay():
        raise ValueError("no program")
    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("thawed")
def test_what_somebody_has_frozen_stays_so() -> None:
    gc.freeze()
    with older_objects_stay():
        gc.collect()
    assert gc.get_freeze_count() > 0


@pytest.mark.usefixtures("thawed")
def test_one_within_another() -> None:
    with older_objects_stay():
        with older_objects_stay():
            pass
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
