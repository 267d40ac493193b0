"""Several processes that train together, beside one that has all of each batch."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from relay_wgrad.frontend import from_onnx
from relay_wgrad.training.data import Data
from tests.support import several_processes
from tests.support.children import run_code
from tests.support.processes import run_ranks
from tests.support.training_models import residual_net

DAILY = (
    "fifty_steps",
    "sync_batch_norm",
    "sent_early",
    "graphs",
    "not_finite",
    "saved",
    "full_disk",
)
LAST = ("one_is_killed", "one_is_killed_in_a_graph")  # nobody goes on after one of them


def run(folder: Path, world: int, *names: str) -> None:
    for done in run_ranks(Path(several_processes.__file__), world, str(folder), *names):
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("is as it should be") == len(names)


def run_and_kill(folder: Path, *names: str) -> None:
    """The last check kills the second of two processes."""
    first, last = run_ranks(Path(several_processes.__file__), 2, str(folder), *names)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("is as it should be") == len(names)
    assert last.returncode == -signal.SIGKILL, last.stderr


def test_two_processes(tmp_path: Path) -> None:
    """What two do, and at the end what the first one hears when the second is killed."""
    run_and_kill(tmp_path, *DAILY, LAST[0])


@pytest.mark.longer("programs of their own; those of one stay")
def test_what_else_two_do(tmp_path: Path) -> None:
    names = [name for name in several_processes.CHECKS if name not in (*DAILY, *LAST)]
    run_and_kill(tmp_path, *names, LAST[1])


@pytest.mark.longer("needs three processes; two stay")
def test_three_processes(tmp_path: Path) -> None:
    """A number that sums of floats are not divided by exactly."""
    run(tmp_path, 3, "fifty_steps", "evaluation", "labels_that_count", "sent_early")


def test_parts_of_batches_are_disjoint() -> None:
    """Together they are one process's batches, in each epoch, the short one too."""
    graph = from_onnx(residual_net(blocks=0), batch="N")
    arrays = {
        "x": np.arange(23, dtype="float32")[:, None, None, None] * np.ones((3, 12, 12), "float32"),
        "labels": np.zeros(23, "int64"),
    }
    for drop_last in (True, False):
        whole = Data(graph, arrays, 5, size=9, drop_last=drop_last)
        parts = [Data(graph, arrays, 5, size=3, drop_last=drop_last, shard=(rank, 3))
                 for rank in range(3)]  # fmt: skip
        for step in range(2 * whole.batches):
            want = whole.batch(step)["x"]
            found = [part.batch(step)["x"] for part in parts]
            np.testing.assert_array_equal(np.concatenate(found), want)
            assert max(map(len, found)) - min(map(len, found)) <= 1
    for wrong, error in (((3, 3), ValueError), ((0,), ValueError), ((-1, 2), ValueError),
                         (2, TypeError)):  # fmt: skip
        with pytest.raises(error, match="shard"):
            Data(graph, arrays, size=3, shard=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a batch of 9 for each of 3 processes"):
        Data(graph, arrays, size=9, shard=(0, 3))


def test_masks_differ_by_process() -> None:
    graph = from_onnx(residual_net(blocks=0, dropout=0.5), dropout="mask")
    (mask,) = graph.draws(7, 1)
    first, other = (graph.draws(7, 1, rank=rank)[mask] for rank in (0, 1))
    np.testing.assert_array_equal(first, graph.draws(7, 1)[mask])
    assert not np.array_equal(first, other)


def test_needs_pytorch_and_a_launcher() -> None:
    for hidden, message in (
        ("", "ValueError: distributed=True: there is no process group, and the environment lacks"),
        ("import sys; sys.modules['torch'] = None; ",
         "ImportError: distributed=True needs PyTorch: pip install relay-wgrad[torch]"),
    ):  # fmt: skip
        done = run_code(
            f"{hidden}from relay_wgrad.training import processes; processes.Processes.join('cpu')"
        )
        assert message in done.stderr
