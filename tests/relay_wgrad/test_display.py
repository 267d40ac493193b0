"""How numbers are shown: small models have small ones."""

from __future__ import annotations

import pytest

from relay_wgrad.display import Display, duration, milliseconds, work


@pytest.mark.parametrize(
    ("seconds", "text", "column"),
    [
        (12.345, "12.35 s", "12345.00"),
        (0.558, "0.56 s", "558.00"),
        (0.0123, "12.30 ms", "12.30"),
        (0.00039, "0.39 ms", "0.39"),
        (4.5e-5, "45 µs", "0.0450"),
    ],
)
def test_times(seconds: float, text: str, column: str) -> None:
    assert duration(seconds) == text
    assert milliseconds(seconds) == column


def test_work() -> None:
    assert work(98.9e9) == "98.9 GFLOP"
    assert work(2.5e6) == "2.5 MFLOP"
    assert work(36_864) == "36.9 kFLOP"


def test_a_part_that_counts_is_one_bar() -> None:
    display = Display(quiet=True)
    counted = (f"compiling: kernel {i} of 3, 0 from the cache" for i in (1, 2, 3))
    with display.parts() as begin:
        for text in ("differentiating", *counted, "loading"):
            begin(text)
    tasks = display.progress.tasks
    assert [task.description.partition(",")[0] for task in tasks] == [
        "differentiating", "compiling: kernel 3 of 3", "loading",
    ]  # fmt: skip
    assert all(task.finished for task in tasks)
