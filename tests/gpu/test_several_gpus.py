"""Several processes on as many GPUs by NCCL, beside one that has all of each batch, and beside the
same steps without CUDA graphs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.gpu import several_gpus
from tests.support.processes import run_ranks

pytestmark = pytest.mark.gpu


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus() -> None:
    ended = run_ranks(Path(several_gpus.__file__), 2, forked=False)
    # Who failed by itself ended with 1; who waited for it was ended.
    for done in sorted(ended, key=lambda done: done.returncode != 1):
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        assert "as one process" in done.stdout
