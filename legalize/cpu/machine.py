"""What kernels need to know of a CPU: registers, caches, cores."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tvm.target import Target, codegen
from tvm_ffi import get_global_func

from relay_wgrad.argument_types import checked_bool, checked_integer
from relay_wgrad.cores import text_of, usable_cores
from relay_wgrad.graph.shared_tasks import MANY, threads_of
from relay_wgrad.problem import DTYPE_BYTES


@dataclass(frozen=True)
class Machine:
    """A CPU as the kernels see it."""

    vector_bytes: int  # of one register
    registers: int  # vector registers
    cores: int  # that share the work, as far as the target says
    threads: int = 0  # the same, but 0 where it does not
    # Of caches, unless the target is this host: what most have.
    l2_bytes: int = 1 << 20  # per core; only a scale: half as much costs little
    l1_way_bytes: int = 4096  # addresses so far apart share a set; a page, on nearly all CPUs
    l1_ways: int = 8
    line_bytes: int = 64  # of a cache
    allows_winograd: bool = False
    has_tiles: bool = False  # AMX for bfloat16, which this process may use
    has_bfloat16: bool = False  # AVX512_BF16: products of pairs, and rounding

    def rounds(self, tasks: int) -> float:
        """How long so many equal tasks take, in times of one.

        Threads take each other's (`shared_tasks`), so cores need not be as fast as each other, but
        who has taken the last task may be slow.
        """
        even = -(-tasks // self.cores)
        return max(even, tasks / self.cores + _SLOW) if self.shares else even

    def is_even(self, tasks: int, some: int = 4) -> bool:
        """Whether so many equal tasks keep all cores at work.

        some : of each core, that others take some of them; fewer, where each costs a copy.
        """
        if self.shares:
            return tasks >= some * self.cores
        return tasks % self.cores == 0 or tasks > _MANY_TASKS * self.cores

    @property
    def shares(self) -> bool:
        """Whether threads take each other's tasks."""
        return self.threads >= MANY

    @property
    def most_parts(self) -> int:
        """Parts of a sum that are worth trying."""
        return (4 if self.shares else 2) * self.cores

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


# Of many threads some share a core: two on siblings have some 0.6 of a core's speed each, or 0.75
# where the mean is 1, so that the last task may take 1 / 0.75 of a time.
_SLOW = 1 / 3
_MANY_TASKS = 16  # of each core, from which on their number need not be a multiple of the cores'
# (feature of the target, vector bytes, vector registers), best first.  Without a feature that is
# listed here a target still has 16 bytes: SSE2 is part of x86-64, and LLVM splits what is too wide.
_ISA = (
    ("avx512f", 64, 32),
    ("avx2", 32, 16),
    ("sse2", 16, 16),
    ("neon", 16, 32),
    ("vsx", 16, 32),
)
WINOGRAD = "winograd"  # a target's key: not direct convolutions only
_TILES, _PAIRS = "amx-bf16", "avx512bf16"  # features that multiply numbers of bfloat16
# Linux's numbers for x86-64: arch_prctl, ARCH_REQ_XCOMP_PERM, the data of tiles.
TILES_REQUEST = (158, 0x1023, 18)
# Where a target does not say, kernels are cut so that this many cores have even work.
_CORES = 8


def machine(target: Target) -> Machine:
    """The table's row for a target of kind llvm."""
    threads = threads_of(target)
    cores = threads or _CORES
    features = codegen.llvm_get_cpu_features(target)
    own = target.attrs.get("mcpu") == codegen.llvm_get_system_cpu()
    known: dict[str, Any] = {**_caches()} if own else {}
    known["threads"] = threads
    known["allows_winograd"] = WINOGRAD in target.keys
    known["has_tiles"] = _TILES in features and (not own or tiles_are_permitted())
    known["has_bfloat16"] = _PAIRS in features
    for feature, width, registers in _ISA:
        if feature in features:
            return Machine(width, registers, cores, **known)
    return Machine(16, 16, cores, **known)


@lru_cache(maxsize=1)
def _caches() -> dict[str, int]:
    """What this host says of its caches, by the names of `Machine`'s fields."""
    found: dict[str, int] = {}
    for folder in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        words = [text_of(folder / name) or "" for name in ("level", "type", "size")]
        ways = text_of(folder / "ways_of_associativity") or ""
        line = text_of(folder / "coherency_line_size") or ""
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


@lru_cache(maxsize=1)
def tiles_are_permitted() -> bool:
    """Whether Linux lets this process use AMX's tiles, for which it asks."""
    is_known = sys.platform == "linux" and platform.machine() == "x86_64"
    return is_known and bool(ctypes.CDLL(None).syscall(*TILES_REQUEST) == 0)


def bfloat16_units(target: Target) -> str:
    """What computes a target's products of bfloat16, in words."""
    m, features = machine(target), codegen.llvm_get_cpu_features(target)
    refused = "AMX's tiles are refused by Linux: " if _TILES in features and not m.has_tiles else ""
    if m.has_tiles:
        return "AMX's tiles"
    return refused + (
        "AVX512_BF16's pairs" if m.has_bfloat16 else "none, it is converted to float32"
    )


def changed_features(cpu: str, present: Mapping[str, bool]) -> list[str]:
    """What a target says of a host beside its CPU model, as LLVM's `+feature` and `-feature`.

    LLVM's name of a host's CPU is that of its family and model. A virtual machine shows both and
    may disable instructions, of which any then ends the process by SIGILL; or it shows an older
    model than its instructions are of, where bfloat16's units would lie idle.

    cpu : LLVM's name.
    present : LLVM's features -> whether the host has them; one that is not in it is left alone.
    """
    of_model = codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": cpu}))
    disabled = sorted(name for name in of_model if not present.get(name, True))
    added = [name for name in (_TILES, _PAIRS) if present.get(name) and name not in of_model]
    return [*(f"-{name}" for name in disabled), *(f"+{name}" for name in added)]


@lru_cache(maxsize=1)
def _host() -> dict[str, Any]:
    """What a target says of this host's instructions."""
    cpu = codegen.llvm_get_system_cpu()
    changed = changed_features(cpu, get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")())
    return {"mcpu": cpu, **({"mattr": changed} if changed else {})}


def host_target(cores: int | None = None, *, allow_winograd: bool = False) -> Target:
    """LLVM for the CPU of this host with all its instructions; plain "llvm" means SSE2 on x86.

    `cores`: for so many; by default all that this process may use.  From four on no more threads
    than that share a loop, wherever the program runs, and fewer may.  `allow_winograd`: whether
    float32 sums of 3x3 kernels, of volumes Tx3x3, may be taken by Winograd's algorithm where it is
    faster; its relative error is around 1e-6, twice a direct sum's, and beside large numbers all of
    a small one.  A target says yes by the key "winograd": Relay's and Relax's programs are computed
    directly.

    Raises TypeError for another type of either, ValueError for less than one core.
    """
    checked_bool("host_target: allow_winograd", allow_winograd)
    if cores is None:
        cores = len(usable_cores())
    cores = checked_integer("host_target: cores", cores, 1)
    keys = ["cpu", WINOGRAD] if allow_winograd else ["cpu"]
    return Target(
        {
            **_host(), "kind": "llvm", "keys": keys, "num-cores": cores,
            # LLVM's level 3 copies loops for each of their conditions: no faster, measured over
            # ResNet-50, and up to three times as long to compile.
            "opt-level": 2,
        }
    )  # fmt: skip
