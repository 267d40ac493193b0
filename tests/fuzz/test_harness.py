"""What generators share: every way in which a case can end is told, and one line repeats it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from . import every
from .harness import failures, main
from .planted import GENERATOR, KINDS

ENDS = {"right": "passed", "refused": "refused", "wrong": "failed", "raises": "failed"}


@pytest.mark.longer("starts a process of TVM for each end")
def test_every_end_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "found.json"
    argv = ["--count", "7", "--jobs", "1", "--timeout", "4", "--json", str(path)]
    assert main(GENERATOR, argv) == 1
    found = json.loads(path.read_text())
    assert found["counts"] == {"passed": 1, "refused": 1, "failed": 2, "died": 3}
    assert found["labels"]["kind"] == {f"{k} {ENDS.get(k, 'died')}": 1 for k in KINDS}
    assert found["refused"] == {"for a reason": 1}
    messages = {x["line"].split()[0]: x["message"] for x in found["failed"]}
    assert messages["wrong"] == "3 is not 4"
    assert "KeyError" in messages["raises"]
    assert "SIGSEGV" in messages["crash"]
    assert "exit status 3" in messages["exit"]
    assert "no answer within 4 s" in messages["hang"]
    shown = capsys.readouterr().out
    assert "python -m tests.fuzz.planted --repro 'crash 0 4'" in shown


@pytest.mark.longer("starts processes of TVM")
def test_one_kind_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(GENERATOR, ["--only", "kind=right", "--count", "2", "--jobs", "1"]) == 0
    assert "2 passed" in capsys.readouterr().out
    assert main(GENERATOR, ["--repro", "wrong 0 2"]) == 1
    assert "3 is not 4" in capsys.readouterr().out


def test_share_in_this_process() -> None:
    assert [x.partition("\n")[0] for x in failures(GENERATOR, range(3))] == ["3 is not 4"]


@pytest.mark.parametrize(
    "argv", [["--only", "kind"], ["--jobs", "0"], ["--count", "-1"], ["--tree", "/nowhere"]]
)
def test_wrong_command_lines(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(GENERATOR, argv)
    assert raised.value.code == 2


def test_every_generator_has_a_row_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "testing.md").read_text(encoding="utf-8")
    assert len(every.names()) >= 8
    assert [name for name in every.names() if f"`{name}`" not in page] == []
    with pytest.raises(SystemExit):
        every.main(["nothing"])
