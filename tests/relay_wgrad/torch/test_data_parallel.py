"""`TrainingStep` in several processes, under PyTorch's wrappers of modules."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import run_ranks
from tests.support.torch import data_parallel


def test_wrappers_do_as_one_process() -> None:
    for done in run_ranks(Path(data_parallel.__file__), 2):
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("as one process") == len(data_parallel.CHECKS)
