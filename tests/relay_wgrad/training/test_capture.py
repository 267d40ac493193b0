"""What a captured call leaves in memory, with a stand-in for the stream."""

from __future__ import annotations

import weakref
from typing import Any, cast

import pytest
import tvm

from relay_wgrad.training import capture
from tests.support.cuda_stand_in import Repeating


class Results:
    """Of a call; who holds them holds their memory."""


def test_no_call_finds_the_results_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    work, made, found = Repeating(), [], []

    def function(x: Any) -> Results:
        found.append(sum(ref() is not None for ref in made))
        results = Results()
        made.append(weakref.ref(results))
        return results

    monkeypatch.setattr(capture, "Lane", lambda runtime, device: work)
    machine: Any = {"f": function}
    captured = capture.Captured(cast("Any", None), machine, "f", [1], tvm.cpu())
    assert found == [0, 0]
    captured.replay()
    assert found == [0, 0, 0]
    assert work.calls == {"captured": 1, "launches": 1}
