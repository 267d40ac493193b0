"""What tests do without because it takes its time and is not what they look at.

LLVM's optimizations are half of what compiling a test's module takes; how programs are compiled for
users is what tests of kernels and of pipelines see, and the generator `targets`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import tvm
from tvm.target import Target

from byoc_cudnn.building import toolchain
from relay_wgrad.building import program

FAST = Target({"kind": "llvm", "opt-level": 0})
_NEAR = 4  # frames whose lines TVM's parser may read: its own, a class, and what has that


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


@contextmanager
def shallow_stacks() -> Iterator[None]:
    """While inside, lists of frames have the source lines of the nearest ones alone.

    TVM's parser of scripts asks for all frames, of which pytest has sixty; for each that is of no
    file, as the importer's are, Python looks through all modules.
    """

    def frames(frame: FrameType | None, context: int = 1) -> list[inspect.FrameInfo]:
        found: list[inspect.FrameInfo] = []
        while frame:
            code = frame.f_code
            near: Any = (code.co_filename, frame.f_lineno, code.co_name, None, None)
            if len(found) < _NEAR:
                near = inspect.getframeinfo(frame, context)
            found.append(inspect.FrameInfo(frame, *near))
            frame = frame.f_back
        return found

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(inspect, "getouterframes", frames)
        yield
