"""What commands take: a process is timed, and one that fails is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import commands
from relay_wgrad.cli.main import COMMANDS


def test_a_command_is_timed(tmp_path: Path) -> None:
    seconds, processor = commands.measured("--version", str(tmp_path))
    assert seconds > 0
    assert processor > 0
    with pytest.raises(RuntimeError, match=r"exit code 2: .*invalid choice: 'trian'"):
        commands.measured("trian", str(tmp_path))
    with pytest.raises(RuntimeError, match="exit code 0"):
        commands.measured("--version", str(tmp_path), 2)
    for words in commands.REFUSED.values():
        commands.measured(words, str(tmp_path), 2)


def test_the_words_are_commands() -> None:
    assert {words.split()[0] for words in commands.WORK.values()} <= set(COMMANDS)
    helped = [words.partition(" ")[0] for words in commands.ANSWERS.values() if " --help" in words]
    assert helped == list(COMMANDS)
