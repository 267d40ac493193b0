"""The cores that this process may use, and TVM's thread pool on them."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .argument_types import check_type


def usable_cores() -> list[int]:
    """One logical processor of each physical core that this process may run on.

    The affinity mask is counted, siblings of one core count once, and a CPU quota of the
    container cuts the list.
    """
    first: dict[str, int] = {}
    for cpu in _allowed():
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings = text_of(path) or str(cpu)
        first.setdefault(siblings, cpu)
    cores = sorted(first.values())
    return cores[: _within_quota(len(cores))]


def usable_processors() -> int:
    """How many logical processors this process may run on at a time: siblings of one core count
    each, for work that waits for memory; a CPU quota of the container cuts them."""
    return _within_quota(len(_allowed()))


def _allowed() -> list[int]:
    """The logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # not Linux


def _within_quota(count: int) -> int:
    """So many processors, or as many as the container's CPU quota is worth."""
    quota = _quota()
    return count if quota is None else max(1, min(count, int(quota + 0.5)))


_MOST = 4096  # threads of TVM's pool


class _Mine(threading.local):
    """What a thread knows of its own pool."""

    is_configured = False


_mine = _Mine()


def configure_threads_once() -> None:
    """`configure_threads` in a thread that has not called it, where OMP_NUM_THREADS is the most.

    The thread itself stays on every logical processor, and so does what it starts.
    """
    if _mine.is_configured:
        return
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    limit = int(given) if given.isascii() and given.isdecimal() and int(given) else None
    with affinity_kept():
        configure_threads(limit)


@contextlib.contextmanager
def affinity_kept() -> Iterator[set[int]]:
    """Within it TVM may bind this thread to a pool's cores; gives those that it may use, before and
    after."""
    if not hasattr(os, "sched_getaffinity"):  # not Linux
        yield {0}
        return
    allowed = os.sched_getaffinity(0)
    yield allowed
    os.sched_setaffinity(0, allowed)


def configure_threads(most: int | None = None) -> int:
    """Lets TVM's thread pool use every core that this process may; returns their number.

    `most`: no more threads than that; at least 1.

    TVM takes half of the logical processors on x86, whether or not they are siblings.  A set
    TVM_NUM_THREADS is respected: then nothing is changed.  A pool belongs to the thread that runs
    the model and cannot grow beyond what its first kernel made it, so call this in that thread
    before.  Workers of a thread that is gone stay; `relay_wgrad.threads` runs kernels for others.

    Raises ValueError for a TVM_NUM_THREADS that is no number of threads: TVM would start them all;
    TypeError for a `most` that is no integer.
    """
    import tvm

    check_type(
        "configure_threads: most", most, (int, np.integer, type(None)), "a number of threads"
    )
    given = os.environ.get("TVM_NUM_THREADS", "1")
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and 0 < int(given) <= _MOST):
        raise ValueError(f"TVM_NUM_THREADS must be from 1 to {_MOST}, got {given!r}")
    _mine.is_configured = True
    if "TVM_NUM_THREADS" not in os.environ:
        cores = usable_cores()
        # Threads may move among all cores, fewer too: other processes, which have the same list,
        # disturb less.
        share_all_cores, threads = -3, len(cores) if most is None else max(1, most)
        configure = tvm.get_global_func("runtime.config_threadpool")
        configure(share_all_cores, min(threads, len(cores)), [str(core) for core in cores])
    return int(tvm.get_global_func("runtime.NumThreads")())


def _quota() -> float | None:
    """CPUs that the control group allows, or None for no limit."""
    v2 = text_of(Path("/sys/fs/cgroup/cpu.max"))
    v1 = [text_of(Path(f"/sys/fs/cgroup/cpu/cpu.cfs_{x}_us")) for x in ("quota", "period")]
    words: list[Any] = v2.split() if v2 else v1
    try:
        quota, period = float(words[0]), float(words[1])
    except (TypeError, ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def text_of(path: Path) -> str | None:
    """Of a file of the system, without the line's end; None where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
