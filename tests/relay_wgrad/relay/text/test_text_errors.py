"""Malformed texts: the documented error, with its place, soon."""

from __future__ import annotations

import re
import time
import tracemalloc

import pytest

from relay_wgrad import relay
from tests.support.relay.malformed import MALFORMED, REFUSED
from tests.support.relay.texts import fixture_text, main

SECONDS = 5.0  # far above what each takes (the largest text is scanned for its length alone)


def _error(text: str) -> relay.RelayTextError:
    begin = time.process_time()
    with pytest.raises(relay.RelayTextError) as caught:
        relay.fromtext(text)
    assert time.process_time() - begin < SECONDS
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.line >= 1
    assert error.column >= 1
    _shows_place(text, error)
    # The chain of a library's errors is of no use to who wrote the text.
    assert error.__cause__ is None
    assert error.__context__ is None
    assert len(str(error)) < 1000
    return error


def _shows_place(text: str, error: relay.RelayTextError) -> None:
    """The caret stands below the character that line and column name."""
    shown, caret = error.excerpt.split("\n")
    assert caret.strip() == "^"
    line = text.split("\n")[error.line - 1]
    at = caret.index("^")
    assert len(line) >= error.column - 1
    if error.column <= len(line) and line[error.column - 1].isprintable():
        assert shown[at] == line[error.column - 1]


def test_there_are_a_hundred() -> None:
    assert len(MALFORMED) >= 100
    assert len({text for _, text, _, _ in MALFORMED}) == len(MALFORMED)


@pytest.mark.parametrize(
    ("text", "line", "piece"), [case[1:] for case in MALFORMED], ids=[case[0] for case in MALFORMED]
)
def test_malformed(text: str, line: int, piece: str) -> None:
    error = _error(text)
    assert piece in error.problem
    assert line in (0, error.line)
    assert not isinstance(error, relay.UnsupportedConstructError)


@pytest.mark.parametrize(
    ("text", "line", "construct"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_refused(text: str, line: int, construct: str) -> None:
    error = _error(text)
    assert isinstance(error, relay.UnsupportedConstructError)
    assert construct in error.construct
    assert error.line == line


@pytest.mark.parametrize("name", ["smallnet_grad", "smallnet_grad_nhwc_cutlass"])
def test_every_truncation(name: str) -> None:
    text = fixture_text(name)
    # A text that ends between two functions, or before its metadata, may be whole.
    whole = {match.end() for match in re.finditer(r"^\}\n+", text, re.MULTILINE)}
    whole |= {end - 1 for end in whole} | {len(text) - 1}
    for cut in range(0, len(text), 37):
        if cut not in whole:
            with pytest.raises(relay.RelayTextError):
                relay.fromtext(text[:cut])


def test_limits_are_settable() -> None:
    text = main("((((%x))))")
    relay.fromtext(text)
    with pytest.raises(relay.RelayTextError, match="deeper than 3"):
        relay.fromtext(text, max_depth=3)
    with pytest.raises(relay.RelayTextError, match="max_size = 20"):
        relay.fromtext(text, max_size=20)
    relay.fromtext(text, max_size=len(text))
    deep = main("(" * 2000 + "%x" + ")" * 2000)
    assert relay.fromtext(deep, max_depth=3000)["main"].body is not None


def test_memory_is_bounded() -> None:
    text = main("f(" * 500_000)
    tracemalloc.start()
    try:
        with pytest.raises(relay.RelayTextError):
            relay.fromtext(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(text)


def test_no_text() -> None:
    with pytest.raises(TypeError, match="bytes"):
        relay.fromtext(b"def")  # type: ignore[arg-type]


def test_the_parser_is_sound_after_an_error() -> None:
    text = fixture_text("smallnet_grad")
    for broken in (text[:3000], main("%y"), main("fn (%y) { %z }")):
        with pytest.raises(relay.RelayTextError):
            relay.fromtext(broken)
        assert relay.astext(relay.fromtext(text)) == text


def test_long_lines_are_cut() -> None:
    error = _error(main("f(" + "%x, " * 5000 + "%y" + ", %x" * 5000 + ")"))
    assert error.excerpt.count("%y") == 1
    assert len(error.excerpt) < 300
