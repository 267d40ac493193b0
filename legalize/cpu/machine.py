"""What kernels need to know of a CPU: registers, caches, cores; and TVM's threads on this host."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.target import Target, codegen

from relay_wgrad.given import of_type, truth, whole
from relay_wgrad.problem import DTYPE_BYTES


@dataclass(frozen=True)
class Machine:
    """A CPU as the kernels see it."""

    vector_bytes: int  # of one register
    registers: int  # vector registers
    cores: int  # that share the work, as far as the target says
    # Of caches, unless the target is this host: what most have.
    l2_bytes: int = 1 << 20  # per core; only a scale: half as much costs little
    l1_way_bytes: int = 4096  # addresses so far apart share a set; a page, on nearly all CPUs
    l1_ways: int = 8
    line_bytes: int = 64  # of a cache
    allows_winograd: bool = True

    def lanes(self, dtype: str) -> int:
        """Elements of an accumulator's dtype in one register."""
        return self.vector_bytes // DTYPE_BYTES[dtype]

    def line(self, dtype: str) -> int:
        """Elements of a cache line."""
        return self.line_bytes // DTYPE_BYTES[dtype]

    @property
    def l1_bytes(self) -> int:
        return self.l1_way_bytes * self.l1_ways

    @property
    def has_few_registers(self) -> bool:
        """Whether a register tile is so small that its operands must wait in a level-1 cache."""
        return self.registers < 32


# (feature of the target, vector bytes, vector registers), best first.  Without a feature that is
# listed here a target still has 16 bytes: SSE2 is part of x86-64, and LLVM splits what is too wide.
_ISA = (
    ("avx512f", 64, 32),
    ("avx2", 32, 16),
    ("sse2", 16, 16),
    ("neon", 16, 32),
    ("vsx", 16, 32),
)
NO_WINOGRAD = "no-winograd"  # a target's key: direct convolutions only
# Where a target does not say, kernels are cut so that this many cores have even work.
_CORES = 8


def machine(target: Target) -> Machine:
    """The table's row for a target of kind llvm."""
    cores = int(target.attrs.get("num-cores", 0)) or _CORES
    features = codegen.llvm_get_cpu_features(target)
    own = target.attrs.get("mcpu") == codegen.llvm_get_system_cpu()
    known: dict[str, Any] = {**_caches()} if own else {}
    known["allows_winograd"] = NO_WINOGRAD not in target.keys
    for feature, width, registers in _ISA:
        if feature in features:
            return Machine(width, registers, cores, **known)
    return Machine(16, 16, cores, **known)


@lru_cache(maxsize=1)
def _caches() -> dict[str, int]:
    """What this host says of its caches, by the names of `Machine`'s fields."""
    found: dict[str, int] = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        words = [_read(folder / name) or "" for name in ("level", "type", "size")]
        ways = _read(folder / "ways_of_associativity") or ""
        line = _read(folder / "coherency_line_size") or ""
        if words[1] == "Instruction" or not words[2].endswith("K") or not words[2][:-1].isdigit():
            continue
        size = int(words[2][:-1]) << 10
        if words[0] == "1" and ways.isdigit() and int(ways) and line.isdigit() and int(line):
            found |= {
                "l1_way_bytes": size // int(ways), "l1_ways": int(ways), "line_bytes": int(line),
            }  # fmt: skip
        elif words[0] == "2":
            found["l2_bytes"] = size
    return found


def host_target(cores: int | None = None, *, allow_winograd: bool = True) -> Target:
    """LLVM for the CPU of this host with all its instructions; plain "llvm" means SSE2 on x86.

    `cores`: for so many; by default all that this process may use.  `allow_winograd`: whether
    float32 sums of 3x3 kernels may be taken by Winograd's algorithm where it is faster; its
    relative error is around 1e-6.  A target says no by the key "no-winograd".

    Raises TypeError for another type of either, ValueError for less than one core.
    """
    truth("host_target: allow_winograd", allow_winograd)
    cores = len(usable_cores()) if cores is None else whole("host_target: cores", cores, 1)
    keys = ["cpu"] if allow_winograd else ["cpu", NO_WINOGRAD]
    return Target(
        {
            "kind": "llvm", "keys": keys, "mcpu": codegen.llvm_get_system_cpu(),
            "num-cores": cores,
            # LLVM's level 3 copies loops for each of their conditions: no faster, measured over
            # ResNet-50, and up to three times as long to compile.
            "opt-level": 2,
        }
    )  # fmt: skip


def usable_cores() -> list[int]:
    """One logical processor of each physical core that this process may run on.

    The affinity mask is counted, siblings of one core count once, and a CPU quota of the
    container cuts the list.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
    else:  # not Linux
        allowed = list(range(os.cpu_count() or 1))
    first: dict[str, int] = {}
    for cpu in allowed:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings = _read(path) or str(cpu)
        first.setdefault(siblings, cpu)
    cores = sorted(first.values())
    quota = _quota()
    return cores if quota is None else cores[: max(1, int(quota + 0.5))]


_MOST = 4096  # threads of TVM's pool


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
    of_type("configure_threads: most", most, (int, np.integer, type(None)), "a number of threads")
    given = os.environ.get("TVM_NUM_THREADS", "1")
    if not (given.isascii() and given.isdecimal() and len(given) < 6 and 0 < int(given) <= _MOST):
        raise ValueError(f"TVM_NUM_THREADS must be from 1 to {_MOST}, got {given!r}")
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
    v2 = _read(Path("/sys/fs/cgroup/cpu.max"))
    v1 = [_read(Path(f"/sys/fs/cgroup/cpu/cpu.cfs_{x}_us")) for x in ("quota", "period")]
    words: list[Any] = v2.split() if v2 else v1
    try:
        quota, period = float(words[0]), float(words[1])
    except (TypeError, ValueError, IndexError):
        return None
    return quota / period if quota > 0 and period > 0 else None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
