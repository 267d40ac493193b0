"""A command in this process, for all tests of the command line."""

from __future__ import annotations

from typing import Any

import pytest

from relay_wgrad.cli.main import main


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], registered: None) -> Any:
    """Runs a command in this process: (exit code, standard output, standard error)."""

    def call(*args: str) -> tuple[int, str, str]:
        try:
            code = main(args)
        except SystemExit as left:  # argparse's way out
            code = int(left.code or 0)
        return code, *capsys.readouterr()

    return call
