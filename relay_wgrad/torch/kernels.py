"""Kernels for PyTorch's tensors: built once for each problem of a process, called by DLPack.

On the CPU they are those of `legalize.cpu`.  For CUDA see `cuda_kernels`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from .. import threads
from ..ambient import outside
from ..backend_names import STOCK
from ..layouts import ACTIVATIONS, KERNELS
from ..locks import lock
from ..problem import ConvKind, ConvProblem
from ..ranks import OWN
from ..rules import out_size
from . import cache, cuda_kernels, mostly_padding
from .cache import Kernel, Slot, clock

# (strides, padding (top, left, bottom, right), dilation, groups); of volumes with depth first
Geometry = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]
Options = tuple[bool | None, bool | None, bool | None]  # benchmark, deterministic, allow_tf32

DTYPES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
LAYOUTS = {(rank, False): (ACTIVATIONS[rank], KERNELS[rank]) for rank in OWN} | {
    (2, True): ("NHWC", "OHWI"),
    (3, True): ("NDHWC", "ODHWI"),
}  # by rank and channels last
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}
LAST = {2: (0, 2, 3, 1), 3: (0, 2, 3, 4, 1)}  # the axes of a tensor with channels last
ALIGNMENT = {"cpu": 64, "cuda": 16}  # bytes; where PyTorch allocates tensors is more than that

_winograd = False  # whether CPU kernels may use it; see `allow_winograd`


class allow_winograd:  # noqa: N801 - called as a function, as `torch.set_grad_enabled` is
    """Whether float32 3x3 CPU kernels may use Winograd's algorithm where it is faster.

    From the call on, or, as a context manager, until its end.  False at first: sums of transformed
    values round otherwise than PyTorch's direct sums, and an infinity or a large number of one
    pixel reaches its neighbours (docs/howto/torch.md).  What counts is when a kernel runs, so that
    of a backward pass too; it holds for the whole process.  The bits are the same every time.
    """

    def __init__(self, allow: bool = True) -> None:
        global _winograd
        if not isinstance(allow, bool):
            raise TypeError(f"allow_winograd: allow must be a bool, got {allow!r}")
        self._before, _winograd = _winograd, allow

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        global _winograd
        _winograd = self._before


def winograd_is_allowed() -> bool:
    """What `allow_winograd` has said."""
    return _winograd


_lock = lock(threading.RLock)
_heard: list[tuple[ConvKind, str]] | None = None  # see `recorded_calls`


@contextmanager
def recorded_calls() -> Iterator[list[tuple[ConvKind, str]]]:
    """Within it, (kind, whose kernel it was) of each call, in any thread."""
    global _heard
    before, _heard = _heard, []
    try:
        yield _heard
    finally:
        _heard = before


class Prepared(NamedTuple):
    """What a call does, except for what depends on its operands' addresses."""

    slot: Slot | None  # the kernel's; None: an empty sum
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dense: tuple[bool, bool]  # the operands that kernels can take without a copy
    last: tuple[bool, bool, bool]  # operands and result that go to kernels as NHWC
    alignment: int


def channels_last(tensor: torch.Tensor) -> bool:
    """Whether a tensor's memory order is NHWC.  One that is a batch counts as NCHW: its order is
    that of all its parts together.
    """
    try:
        return _is_last(tensor)
    except RuntimeError as error:
        if "not tracked with proxy" not in str(error):
            raise
        from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

        # Its sizes are symbols of a trace around the one that runs, in which comparing them would
        # be a step.
        with disable_proxy_modes_tracing():
            return _is_last(tensor)


def _is_last(tensor: torch.Tensor) -> bool:
    if is_batched(tensor):
        return False
    (_, c, *sizes), (_, step, *steps) = tensor.shape, tensor.stride()
    if step != 1:  # one of several channels that lie as images do, which is most tensors
        return False
    # By strides, as PyTorch's convolutions tell: of one channel or pixel both orders are dense.
    least = c
    for size, stride in zip(reversed(sizes), reversed(steps), strict=True):
        if size == 0 or stride < least:
            return False
        least = stride * size
    return bool(least > 1)


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a transform at any level has batched a tensor: PyTorch knows no order of it."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        if functorch.is_batchedtensor(tensor):
            return True
        tensor = functorch.get_unwrapped(tensor)
    return functorch.is_legacy_batchedtensor(tensor)


def memory_format(is_last: bool, rank: int) -> torch.memory_format:
    return FORMATS[rank] if is_last else torch.contiguous_format


def result_shape(
    kind: ConvKind, first: Sequence[int], second: Sequence[int], size: Sequence[int], g: Geometry
) -> tuple[int, ...]:
    """The result's shape.  `size`: of dgrad and wgrad, what does not follow from the operands."""
    strides, padding, dilation, groups = g
    if kind is ConvKind.DGRAD:
        return (first[0], second[1] * groups, *size)
    if kind is ConvKind.WGRAD:
        return (first[1], second[1] // groups, *size)
    rank = len(strides)
    pixels = [
        out_size(
            first[2 + i], padding[i] + padding[rank + i], second[2 + i], strides[i], dilation[i]
        )
        for i in range(rank)
    ]
    return (first[0], second[0], *pixels)


def run(
    kind: ConvKind,
    first: torch.Tensor,
    second: torch.Tensor,
    bias: torch.Tensor | None,
    size: tuple[int, ...],
    geometry: Geometry,
    options: Options,
) -> torch.Tensor:
    """One fprop, dgrad or wgrad; operands and `size`, as `result_shape` has it, fit each other.

    `options`: None for what `torch.backends` says.
    """
    if first.is_cuda and first.get_device() != torch.cuda.current_device():
        # TVM and cuDNN's libraries make a tensor's device the current one, and leave it so.
        with torch.cuda.device(first.device):
            return run(kind, first, second, bias, size, geometry, options)
    dtype, device = first.dtype, first.device
    asked = resolved(options) if first.is_cuda else _winograd
    key = (
        kind, first.shape, first.stride(), second.shape, second.stride(), dtype, device, size,
        geometry, asked,
    )  # fmt: skip
    prepared = cache.kept.prepared  # of calls that differ in nothing but numbers and addresses
    found = prepared.get(key)
    if found is None:
        with outside():
            found = _prepare(key, first, second)
    slot, shape, strides, dense, last, alignment = found
    out = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    if slot is None:
        out.zero_()
    else:
        slot.used = clock()
        if _heard is not None:
            _heard.append((kind, slot.what))
        if first.is_cuda and torch.cuda.is_current_stream_capturing():
            slot.is_pinned = True  # replays of the graph call it, whoever else does not
        # Kernels load whole vectors; and DLPack does not know of a lazy minus.
        if not dense[0] or first.data_ptr() % alignment or first.is_neg():
            first = _dense(first, last[0], alignment)
        if not dense[1] or second.data_ptr() % alignment or second.is_neg():
            second = _dense(second, last[1], alignment)
        order = LAST[len(geometry[0])]
        slot.kernel(
            first.permute(order) if last[0] else first,
            second.permute(order) if last[1] else second,
            out.permute(order) if last[2] else out,
        )
    if bias is not None:
        out += bias.view(1, -1, *[1] * len(geometry[0]))
    return out


def _prepare(key: Any, first: torch.Tensor, second: torch.Tensor) -> Prepared:
    kind, _, _, _, _, dtype, device, size, geometry, options = key
    rank = len(geometry[0])
    if device.type == "cuda" and options.benchmark and torch.cuda.is_current_stream_capturing():
        options = options._replace(benchmark=False, backends=())  # nothing can be measured now
        key = (*key[:-1], options)
    last = (channels_last(first), channels_last(second))
    out_last = last[0] or last[1]
    if device.type == "cuda":
        last = (out_last, out_last)  # cuDNN has no others
    shape = result_shape(kind, first.shape, second.shape, size, geometry)
    out = torch.empty(shape, device="meta", memory_format=memory_format(out_last, rank))
    kernel_key, slot = None, None
    if first.numel() and second.numel() and out.numel():
        kernel_key, slot = _kernel(
            (kind, first.shape, second.shape, shape, geometry, last, dtype, device, options)
        )
    dense = (
        first.is_contiguous(memory_format=memory_format(last[0], rank)),
        second.is_contiguous(memory_format=memory_format(last[1], rank)),
    )
    prepared = Prepared(slot, shape, out.stride(), dense, (*last, out_last), ALIGNMENT[device.type])
    cache.kept.add_prepared(key, kernel_key, prepared)
    return prepared


def _dense(tensor: torch.Tensor, is_last: bool, alignment: int) -> torch.Tensor:
    """The tensor in one of the two memory orders, aligned; a copy only where need be."""
    tensor = tensor.resolve_neg().contiguous(memory_format=memory_format(is_last, tensor.dim() - 2))
    return tensor.clone() if tensor.data_ptr() % alignment else tensor


def resolved(options: Options) -> cuda_kernels.Asked:
    """CUDA's options, with what `torch.backends.cudnn` says where they say nothing."""
    benchmark, deterministic, allow_tf32 = options
    flags = torch.backends.cudnn
    if deterministic is None:
        deterministic = flags.deterministic or torch.are_deterministic_algorithms_enabled()
    benchmark = bool(flags.benchmark if benchmark is None else benchmark)
    return cuda_kernels.Asked(
        benchmark,
        bool(deterministic),
        bool(flags.allow_tf32 if allow_tf32 is None else allow_tf32),
        cuda_kernels.compared if benchmark else (),
    )


def _kernel(key: Any) -> tuple[Any, Slot]:
    """A problem's kernel, and the key that it is kept under."""
    device, options = key[-2:]
    problem, kept, shared = problem_of(key), cache.kept, False
    with _lock:
        if device.type == "cpu" and not options and problem.rank == 2:
            # Of a layer whose batches differ, the second and all further ones share a kernel of
            # any number of images: as fast (docs/howto/torch.md), while one takes half a second to
            # build.  One that may be Winograd's needs the number.
            family = (replace(problem, n=0), problem.flop < threads.SERIAL_FLOP)
            if shared := not kept.is_first(family, problem.n):
                key = family
        slot = kept.find(key)
        if slot is None:
            whose: list[str] = []
            build = _builder(device, options, shared, whose)
            slot = kept.add(key, mostly_padding.kernel(problem, build))
            slot.what = ", ".join(dict.fromkeys(whose))
        return key, slot


def _builder(
    device: torch.device, options: Any, shared: bool, whose: list[str]
) -> Callable[[ConvProblem], Kernel]:
    """`shared`: of CPU kernels, whether for any number of images.  `whose`: is told of each."""

    def build(problem: ConvProblem) -> Kernel:
        if device.type == "cpu":
            whose.append(STOCK)
            return cpu_kernel(problem, options, shared)
        name, kernel = cuda_kernels.kernel(problem, device, options)
        whose.append(name)
        return kernel

    return build


def problem_of(key: Any) -> ConvProblem:
    """The problem of a key.  Raises ValueError where it is none."""
    kind, first, second, out, (strides, padding, dilation, groups), last, dtype, _, _ = key
    probe = ConvProblem(kind, 1, 1, 1, 1, 1, 1, 1)
    shapes = dict(zip(probe.roles, (first, second, out), strict=True))
    is_last = dict(zip(probe.roles, (*last, last[0] or last[1]), strict=True))
    rank, name = len(strides), DTYPES[dtype]
    problem = ConvProblem.from_shapes(
        kind, shapes["data"], shapes["weight"], strides=strides, padding=padding,
        dilation=dilation, groups=groups,
        data_layout=LAYOUTS[rank, is_last["data"]][0],
        kernel_layout=LAYOUTS[rank, is_last["weight"]][1],
        grad_layout=LAYOUTS[rank, is_last["grad"]][0],
        data_dtype=name, weight_dtype=name, grad_dtype=name,
    ).check()  # fmt: skip
    for role, shape in shapes.items():
        want = problem.canonical_shape(role)
        if tuple(shape) != want:  # of a direct call of an operator, or of a trace with other sizes
            raise ValueError(
                f"{kind.value}: {role} must have shape {want} in {problem.repro()}, got"
                f" {tuple(shape)}"
            )
    return problem


# ---- CPU -----------------------------------------------------------------------------------------


def cpu_kernel(problem: ConvProblem, winograd: bool, shared: bool = False) -> Kernel:
    """LLVM's, compiled, or loaded where a process has compiled it before.

    `shared`: for any number of images.
    """
    import tvm

    from legalize import cpu

    from ..building.disk_cache import DiskCache
    from ..building.program import compiled_functions

    serial = problem.flop < threads.SERIAL_FLOP
    target = cpu.host_target(1 if serial else None, allow_winograd=winograd)
    if shared:
        problem = replace(problem, n=tvm.tirx.Var("n", "int64"))
    module = tvm.IRModule({"main": cpu.prim_func(problem, target)})
    kernel: Kernel = compiled_functions(module, target, DiskCache())["main"]
    if serial:
        return kernel
    return lambda first, second, out: threads.run(
        kernel, first, second, out, threads=torch.get_num_threads()
    )
