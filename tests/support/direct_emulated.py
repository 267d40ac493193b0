"""Our own convolution kernels on a device that is the CPU: operands made, run, and compared."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from byoc_cudnn.backends.cuda_direct.family import of_planes
from byoc_cudnn.backends.cuda_direct.kernels import Kernel, source_of
from byoc_cudnn.backends.cuda_direct.model import ranked
from byoc_cudnn.fused import STEPS, operand_shape, reference
from relay_wgrad.problem import ConvProblem
from tests.support import cuda_emulated
from tests.support.cuda_emulated import DTYPES, aligned, emulated
from tests.support.problems import random_operands, relative_error, tolerance, torch_reference


class _Call(ctypes.Structure):
    """`RelayWgradDirectCall` of direct_problem.h."""

    _fields_ = (
        *((n, ctypes.c_int) for n in ("n", "d", "h", "w", "c", "k", "t", "r", "s", "z", "p", "q")),
        *((n, ctypes.c_int) for n in ("groups", "front", "top", "left")),
        ("stride", ctypes.c_int * 2), ("dilation", ctypes.c_int * 2), ("nchw", ctypes.c_bool),
        *((n, ctypes.c_void_p) for n in ("first", "second", "source", "result", "workspace")),
        ("wanted", ctypes.POINTER(ctypes.c_int64)),
    )  # fmt: skip


# Copies into shared memory are made at the last moment: when a thread waits for their group.
_COPIES = """\
struct Copy {
  void* to;
  const void* from;
  int bytes;
};
struct Copies {
  int launch = -1;
  unsigned block;
  std::vector<Copy> asked;
  std::vector<std::vector<Copy>> under_way;
};
inline Copies& copies() {  // of this thread of this block
  static std::vector<Copies> all(1024);
  Copies& mine = all[threadIdx.x];
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (mine.launch != emulated::launches || mine.block != block) {
    mine = {emulated::launches, block, {}, {}};
  }
  return mine;
}

template <int kBytes>
void copy(void* to, const void* from, bool there) {
  copies().asked.push_back({to, there ? from : nullptr, kBytes});
}
inline void grouped() {
  Copies& mine = copies();
  mine.under_way.push_back(mine.asked);
  mine.asked.clear();
}
template <int kLeft>
void arrived() {
  auto& under_way = copies().under_way;
  for (; under_way.size() > kLeft; under_way.erase(under_way.begin())) {
    for (const Copy& one : under_way.front()) {
      if (one.from != nullptr) {
        memcpy(one.to, one.from, one.bytes);
      } else {
        memset(one.to, 0, one.bytes);
      }
    }
  }
}

"""


def _late(source: str) -> str:
    begin = source.find("// Asks for bytes of shared memory")
    if begin < 0:
        return source
    return source[:begin] + _COPIES + source[source.index("// Elements in a row", begin) :]


@lru_cache(maxsize=8)
def library(folder: Path, *kernels: Kernel) -> Any:
    """Their functions, built together: most of g++'s time goes into headers."""
    path = folder / f"{len(list(folder.iterdir()))}.so"
    source = _late(emulated(source_of(kernels)))
    return cuda_emulated.library(source, path)


def some(problem: ConvProblem, epilogue: tuple[str, ...] = (), arch: int = 90) -> list[Kernel]:
    """Of each family, with rows ahead in registers and in shared memory, the fastest expected.

    With a warp for a block: a thread of the CPU is more dear than one of a GPU.  For the same
    reason the family that takes everything is there only where it is alone; those on tensor cores
    have `warps_emulated`.
    """
    found: dict[tuple[str, int], Kernel] = {}
    for choice in ranked(problem, epilogue, arch):
        kernel, numbers = choice.kernel, list(choice.kernel.numbers)
        if kernel.family in ("depthwise_bands", "depthwise_shares"):
            continue
        if numbers:
            numbers[-3] = 32
        key = (kernel.family, numbers[-1] if numbers else 0)
        found.setdefault(key, replace(kernel, numbers=tuple(numbers)))
    fast = [kernel for kernel in found.values() if kernel.numbers]
    return fast or list(found.values())


def share(
    functions: Any,
    kernel: Kernel,
    problem: ConvProblem,
    epilogue: tuple[str, ...] = (),
    seed: int = 0,
) -> float:
    """The error of a library's kernel on random operands, as a share of what rounding explains."""
    rng = np.random.default_rng(seed)
    values = random_operands(problem, rng)
    first, second, result = problem.roles
    operands = [
        v.astype(DTYPES[problem.dtype(role)])
        for v, role in zip(values, (first, second), strict=True)
    ]
    dtype = DTYPES[problem.dtype(result)]
    extra: dict[str, np.ndarray] = {}
    for step in (STEPS[name] for name in epilogue):
        if step.operand:
            x = rng.integers(-2, 3, operand_shape(step, problem)).astype(np.float64)
            if step.form.inner is not None:
                x.reshape(-1)[::7] = np.nan
            extra[step.operand] = x
    out = run(functions, kernel, problem, [*operands, *(x.astype(dtype) for x in extra.values())])
    exact = torch_reference(problem, *values)
    want = reference([STEPS[e] for e in epilogue], exact, extra, problem)
    return relative_error(out.astype(np.float64), want) / tolerance(problem)


def _call(p: ConvProblem, given: Sequence[np.ndarray | None], wanted: ctypes.c_int64) -> _Call:
    """Of two operands, an epilogue's, and the result; a workspace is asked for."""
    p = of_planes(p)
    d, t, z, front = (p.d, p.t, p.z, p.padding[0]) if p.rank == 3 else (1, 1, 1, 0)
    deep = p.rank - 2
    return _Call(
        *(p.n, d, p.h, p.w, p.c, p.k, t, p.r, p.s, z, p.p, p.q, p.groups), front,
        *p.padding[deep : deep + 2], p.strides[-2:], p.dilation[-2:], p.data_layout == "NCHW",
        *(x if x is None else x.ctypes.data for x in given), None, ctypes.pointer(wanted),
    )  # fmt: skip


def workspace(functions: Any, kernel: Kernel, p: ConvProblem) -> int:
    """The bytes that a kernel wants."""
    wanted = ctypes.c_int64(-1)
    assert getattr(functions, kernel.name)(ctypes.byref(_call(p, [None] * 4, wanted)), None) == 0
    return wanted.value


def run(functions: Any, kernel: Kernel, p: ConvProblem, given: Sequence[np.ndarray]) -> np.ndarray:
    """The result of two operands, and an epilogue's; it and the workspace begin as NaN."""
    operands = [aligned(x) for x in given]
    result = p.roles[2]
    out = aligned(np.full(p.shape(result), np.nan, DTYPES[p.dtype(result)]))
    wanted = ctypes.c_int64(-1)
    call = _call(p, [*operands[:2], *(operands[2:] or [None]), out], wanted)
    function = getattr(functions, kernel.name)
    assert function(ctypes.byref(call), None) == 0
    assert wanted.value >= 0
    workspace = np.full(wanted.value + 64, 255, np.uint8)
    kept = aligned(workspace)
    call.workspace, call.wanted = kept.ctypes.data, None
    assert function(ctypes.byref(call), None) == 0
    assert (kept[wanted.value :] == 255).all(), "written beyond the workspace"
    return out
