"""`TrainingStep` in several processes, under PyTorch's wrappers of modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import run_ranks
from tests.support.torch import data_parallel

DAILY = ("no_sync", "overlap", "static_graph")


def run(*names: str) -> None:
    for done in run_ranks(Path(data_parallel.__file__), 2, *names):
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("as one process") == len(names)


def test_data_parallel_does_as_one_process() -> None:
    run(*DAILY)


@pytest.mark.longer("two wrappers stay")
def test_other_wrappers_do_as_one_process() -> None:
    run(*(name for name in data_parallel.CHECKS if name not in DAILY))
