"""Kernels for PyTorch's tensors on CUDA.

cuDNN's, of a library that the host's compiler builds once, where it takes the problem and is
found, else those of `legalize.cuda`.  Under `benchmark` they are compared with what other backends
have for the problem, by times of this machine that are kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch

from ..backend_names import STOCK
from ..keys import SYMBOL
from ..problem import ConvProblem
from .cache import Kernel


class Asked(NamedTuple):
    """Options of a call, resolved.  backends : that are compared with cuDNN's."""

    benchmark: bool
    deterministic: bool
    allow_tf32: bool
    backends: tuple[str, ...] = ()

    @property
    def given(self) -> dict[str, bool]:
        return {"deterministic": self.deterministic, "allow_tf32": self.allow_tf32}


compared: tuple[str, ...] = ("cuda_direct",)


def set_backends(*names: str) -> tuple[str, ...]:
    """What `benchmark=True` compares with cuDNN on CUDA; returns what it was.

    names : of backends (`byoc_cudnn.partition`'s): at first "cuda_direct".  With "cutlass" too, a
        layer's first call takes minutes of nvcc.  None: cuDNN alone.  It holds for the process.

    Raises TypeError for what is no string, ValueError for an unknown backend.
    """
    global compared
    from byoc_cudnn.table import backend_of

    for name in names:
        backend_of(name)
    before, compared = compared, tuple(name for name in dict.fromkeys(names) if name != "cudnn")
    return before


def kernel(problem: ConvProblem, device: torch.device, asked: Asked) -> tuple[str, Kernel]:
    """(whose it is, the kernel)."""
    if asked.backends and problem.data_dtype != "float64":
        from byoc_cudnn.tuning import single_convolution

        if single_convolution.are_any(
            problem, backends := dict.fromkeys(asked.backends, asked.given)
        ):
            name, options, call = _base(problem, device, asked)
            base = single_convolution.Base(name, options, _of_any_tensors(call))
            chosen = single_convolution.choose(problem, base, backends, device.index or 0)
            mine = chosen.call is base.call
            return chosen.backend, call if mine else chosen.call
    name, _, call = _base(problem, device, asked)
    return name, call


def prefetch(problems: Sequence[ConvProblem], device: torch.device, asked: Asked) -> int:
    """Builds what these problems will want, all at once; how many kernels."""
    from byoc_cudnn.tuning import single_convolution

    backends = dict.fromkeys(asked.backends, asked.given)
    return single_convolution.prefetch(problems, backends, device.index or 0)


def _of_any_tensors(call: Kernel) -> Kernel:
    """A kernel that takes tensors of TVM too, then on the default stream."""
    if not inspect.isfunction(call):
        return call  # of a library

    def called(*tensors: Any) -> None:
        first, second, out = (torch.from_dlpack(tensor) for tensor in tensors)
        with torch.cuda.stream(torch.cuda.default_stream(first.device)):
            call(first, second, out)

    return called


def _base(problem: ConvProblem, device: torch.device, asked: Asked) -> tuple[str, Any, Kernel]:
    """What computes a problem where nothing is compared: whose, its options, the kernel."""
    from byoc_cudnn.backends.cudnn import check as cudnn
    from byoc_cudnn.building import toolchain

    found = toolchain.find()
    if not found.missing():
        options = cudnn.Options(benchmark=asked.benchmark, **asked.given)
        if cudnn.check(problem, ""):
            return cudnn.NAME, asdict(options), _cudnn(problem, options)
        if cudnn.check(inner := _unpadded(problem), ""):
            return cudnn.NAME, asdict(options), _padded(problem, _cudnn(inner, options))
    toolchain.preload(found)
    import tvm

    from legalize import cuda

    from ..training.cuda_tools import cuda_compiler

    target = tvm.target.Target.from_device(tvm.cuda(device.index or 0))
    with cuda_compiler():
        if problem.rank == 3:
            return STOCK, {}, _of_any_rank(problem, target)
        return STOCK, {}, of_its_memory(cuda.prim_func(problem, target), target)


def _of_any_rank(problem: ConvProblem, target: Any) -> Kernel:
    """One plain reduction: `legalize.cuda` has kernels of two dimensions."""
    from tvm import IRModule, te
    from tvm.s_tir import dlight

    from legalize import generic

    operands = [
        te.placeholder(problem.shape(role), problem.dtype(role), name=role)
        for role in problem.roles[:2]
    ]
    made = generic.te_conv(problem, *operands)
    module = IRModule({"main": te.create_prim_func([*operands, made])})
    with target:
        module = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)
    return of_its_memory(module["main"], target)


def _unpadded(problem: ConvProblem) -> ConvProblem:
    """The problem of which the padding is a part of the data."""
    rank = problem.rank
    ends = zip(problem.padding[:rank], problem.padding[rank:], strict=True)
    sizes = [size + sum(end) for size, end in zip(problem.spatial, ends, strict=True)]
    named = dict(zip("dhw"[-rank:], sizes, strict=True))
    return replace(problem, padding=(0,) * (2 * rank), **named)


def _padded(problem: ConvProblem, kernel: Kernel) -> Kernel:
    """The kernel of a problem, made of that of `_unpadded(problem)`."""
    rank = problem.rank
    before, after = problem.padding[:rank], problem.padding[rank:]
    place = problem.roles.index("data")
    # What `pad` reads: the last axis first.  Channels are the last in NHWC.
    ends = zip(reversed(before), reversed(after), strict=True)
    widths = [width for end in ends for width in end]
    if problem.data_layout[-1] == "C":
        widths = [0, 0, *widths]
    axes = [problem.data_layout.index(letter) for letter in "DHW"[-rank:]]

    def padded(*tensors: torch.Tensor) -> None:
        given = list(tensors)
        data = given[place] = torch.nn.functional.pad(tensors[place], widths)
        kernel(given[0], given[1], given[2])
        if place == 2:  # the result, of which this takes what is within the padding
            for axis, start, size in zip(axes, before, problem.spatial, strict=True):
                data = data.narrow(axis, start, size)
            tensors[place].copy_(data)

    return padded


def _cudnn(problem: ConvProblem, options: Any) -> Kernel:
    from byoc_cudnn.backends.cudnn.loaded import convolution

    kernel: Kernel = convolution(problem, options)
    return kernel


def of_its_memory(func: Any, target: Any) -> Kernel:
    """The kernel of a function of two operands and a result, compiled by TVM.

    What it keeps between its launches is PyTorch's memory: TVM's own is one for all streams of a
    thread, and goes back to the device while a captured graph has its address.
    """
    from ..pipeline.workspaces import with_workspaces

    func, buffers = with_workspaces(func, 3)
    kernel: Kernel = compiled(func, target)
    wanted = [([int(n) for n in b.ty.shape], getattr(torch, str(b.ty.dtype))) for b in buffers]

    def called(first: Any, second: Any, out: Any) -> None:
        more = [torch.empty(shape, dtype=dtype, device=out.device) for shape, dtype in wanted]
        kernel(first, second, out, *more)

    return called if wanted else kernel


def compiled(func: Any, target: Any) -> Any:
    """The kernel of a function, compiled by TVM."""
    import tvm

    module = tvm.compile(tvm.IRModule({"main": func.with_attr(SYMBOL, "main")}), target=target)
    return module["main"]
