"""What tests ask of generated CUDA source."""

from __future__ import annotations

import re
from typing import Any


def cuda_source(module: Any) -> str:
    """The CUDA text of a compiled module and all that it imports."""
    own = module.inspect_source("cuda") if module.kind == "cuda" else ""
    return "".join([own, *map(cuda_source, module.imports)])


def read_back(code: str) -> list[str]:
    """Tensors in memory, as kernel:tensor, that a kernel reads after it has written them.

    nvcc reads what may be one of two tensors by the cache for what is never written, and pointers
    that are `__restrict__` tell it that the other one is.
    """
    found = []
    for kernel in re.split(r'extern "C" __global__ ', code)[1:]:
        head, _, body = kernel.partition("{")
        function = re.findall(r"(\w+)\(", head)[-1]
        for name in re.findall(r"__restrict__ (\w+)", head):
            writes = re.findall(rf"\b{name}\[[^=;]*\] = |\({name} \+[^=;]*\)\) = ", body)
            uses = re.findall(rf"\b{name}\b", body)
            if writes and len(uses) > len(writes):
                found.append(f"{function}:{name}")
    return found


def own_elements(code: str) -> int:
    """Of the largest array that a thread has for itself: beyond some KiB it is no register."""
    arrays = re.findall(r"^\s*alignas\(\d+\) \w+ \w+\[(\d+)\];", code, re.MULTILINE)
    return max(map(int, arrays), default=0)


def pool_calls(module: Any) -> int:
    """How often a compiled module and all that it imports ask for memory of TVM's pool."""
    own = module.inspect_source("ll") if module.kind == "llvm" else ""
    return own.count("TVMBackendAllocWorkspace") + sum(map(pool_calls, module.imports))
