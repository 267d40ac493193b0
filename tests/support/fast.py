"""CPUs without LLVM's optimizations: half of what compiling a test's module takes.

For tests of what is computed.  How it is compiled for users is what tests of kernels and of
pipelines see, and the generator `targets`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tvm
from tvm.target import Target

from relay_wgrad.building import program

FAST = Target({"kind": "llvm", "opt-level": 0})


@contextmanager
def unoptimized_programs() -> Iterator[None]:
    """While inside, the package's programs for CPUs are compiled so, whatever their targets say.

    Kernels are chosen, scheduled and lowered for the target as it is.
    """
    optimized = program.objects

    def quick(kernels: Any, target: tvm.target.Target, *rest: Any) -> Any:
        return optimized(kernels, Target({**target.export(), "opt-level": 0}), *rest)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(program, "objects", quick)
        yield
