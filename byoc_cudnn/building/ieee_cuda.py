"""TVM's CUDA kernels, compiled as IEEE 754 and CUDA's own functions have it.

TVM hands nvcc and NVRTC `--use_fast_math`, which PyTorch does not: division and roots are
approximate then, small numbers zero, and float32's tanh has 11 bits (`tanh.approx.f32`), log is
wrong near 1 and sin far from 0.  nvcc has a variable against it.  NVRTC's flags can be added to,
but no later flag takes the functions back, so the flag itself is left out.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Sequence
from typing import Any

from .shared_patch import InUse

_NOT_FAST = "TVM_CUDA_NVCC_NO_FAST_MATH"
_FAST = b"--use_fast_math"


def _enter(undo: contextlib.ExitStack) -> None:
    if _NOT_FAST not in os.environ:
        os.environ[_NOT_FAST] = "1"
        undo.callback(os.environ.pop, _NOT_FAST, None)
    try:
        nvrtc: Any = importlib.import_module("cuda.bindings.nvrtc")
        inner = nvrtc.nvrtcCompileProgram
    except (ImportError, RuntimeError, AttributeError):  # no bindings, or no library of theirs
        return

    def compile_program(program: Any, count: int, options: Sequence[bytes]) -> Any:
        given = list(options)
        if os.environ.get(_NOT_FAST) and _FAST in given:
            given.remove(_FAST)  # the first, TVM's; one that the user adds comes later
        return inner(program, len(given), given)

    nvrtc.nvrtcCompileProgram = compile_program
    undo.callback(setattr, nvrtc, "nvrtcCompileProgram", inner)


_in_use = InUse(_enter)


def exact_kernels() -> contextlib.AbstractContextManager[None]:
    """Within it TVM compiles CUDA without fast arithmetic, with NVRTC and with nvcc.

    What the user has set stays: an empty TVM_CUDA_NVCC_NO_FAST_MATH, and what
    TVM_CUDA_NVRTC_EXTRA_OPTS asks for.
    """
    return _in_use()
