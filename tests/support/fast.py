"""What tests do without because it takes its time and is not what they look at.

LLVM's optimizations are half of what compiling a test's module takes; how programs are compiled for
users is what tests of kernels and of pipelines see, and the generator `targets`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import tvm
from tvm.target import Target

from byoc_cudnn.building import toolchain
from relay_wgrad.building import program

FAST = Target({"kind": "llvm", "opt-level": 0})


@contextmanager
def unoptimized_programs() -> Iterator[None]:
    """While inside, the package's programs for CPUs are compiled so, whatever their targets say,
    and so are the libraries' host code in C++.

    Kernels are chosen, scheduled and lowered for the target as it is.
    """
    optimized = program.objects

    def quick(kernels: Any, target: tvm.target.Target, *rest: Any) -> Any:
        return optimized(kernels, Target({**target.export(), "opt-level": 0}), *rest)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(program, "objects", quick)
        monkeypatch.setattr(toolchain, "OPTIMIZATION", "-O0")
        yield
