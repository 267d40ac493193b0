"""Arguments of the functions, checked: every error names function, rule and both values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..argument_types import checked_if_given
from ..problem import ConvKind, transposed_size
from ..ranks import OWN, RANKS
from ..rules import out_size
from .kernels import DTYPES, Geometry, Options

Ints = int | Sequence[int]

# Signature -> (the operator's size, geometry) of calls that were found right.
_checked: dict[Any, tuple[tuple[int, ...], Geometry]] = {}
CHECKED = 10_000
"""Where there are more of them they are dropped."""

NAMES = {1: "conv1d", 2: "convolution", 3: "conv3d"}
"""Of the convolutions, by rank."""

AXES = {rank: ("depth", "height", "width")[-rank:] for rank in RANKS}
"""Of an image, by how many it has."""

BOUND = 2**30
"""Of strides, paddings, dilations and sizes: kernels count rows and columns, padded, in 32 bits."""


def signature(op: str, first: Any, second: Any, bias: Any, *given: Any) -> tuple[Any, ...] | None:
    """What the checks of a call read, so that they run once; None where they have to run.

    That is where the call is traced, and where an argument is not of the usual types: True and 1.0
    are equal to 1 and yet refused.
    """
    if not is_plain(first, second, bias):
        return None
    dtype, device = first.dtype, first.device
    if second.dtype != dtype or second.device != device or second.layout != torch.strided:
        return None
    if first.layout != torch.strided:
        return None
    count = None
    if bias is not None:
        if bias.dtype != dtype or bias.device != device:
            return None
        if bias.layout != torch.strided:
            return None
        count = bias.shape
    numbers = []
    for value in given:
        if type(value) is not int:
            if type(value) not in _SEQUENCES or {*map(type, value)} != _INT:
                return None
            value = tuple(value)
        numbers.append(value)
    return op, first.shape, second.shape, count, dtype, device, *numbers


def is_plain(first: Any, second: Any, bias: Any) -> bool:
    """Whether a call is eager and its operands are tensors of memory that nothing intercepts."""
    return not (
        type(first) not in _PLAIN
        or type(second) not in _PLAIN
        or (bias is not None and type(bias) not in _PLAIN)
        or torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or _is_included(_LEGACY_VMAP)
        or first.is_meta
        or first.is_nested  # and so without a shape
        or second.is_nested
        or (bias is not None and bias.is_nested)
        or _is_wrapped(first)  # perhaps of a transform that is over
        or _is_wrapped(second)
        or first._is_zerotensor()  # no memory: what a derivative that is zero may be
        or second._is_zerotensor()
        or (bias is not None and bias._is_zerotensor())
    )


_PLAIN = (torch.Tensor, torch.nn.Parameter)  # subclasses have dispatch rules of their own
_is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_is_included = torch._C._dispatch_tls_is_dispatch_key_included
# What `torch.autograd` uses for vectorize=True and is_grads_batched=True.
_LEGACY_VMAP = torch._C._dispatch_key_parse("VmapMode")
_SEQUENCES = (tuple, list, torch.Size)
_INT = {int}


known = _checked.get


def keep(
    key: tuple[Any, ...] | None, size: tuple[int, ...], g: Geometry
) -> tuple[tuple[int, ...], Geometry]:
    """Size and geometry, remembered for calls of this signature."""
    if key is not None:
        if len(_checked) >= CHECKED:
            _checked.clear()
        _checked[key] = (size, g)
    return size, g


def ints(
    op: str, name: str, value: Any, counts: tuple[int, ...], low: int, each: int = 1
) -> tuple[int, ...]:
    """A tuple of as many ints as `counts` allows, none below `low`, nor `BOUND` or more; one int
    stands for `each`.  NumPy's integers are ints, as for PyTorch."""
    if not isinstance(value, (tuple, list)):
        value = (value,) * each
    for v in value:
        if not isinstance(v, (int, torch.SymInt, np.integer)) or isinstance(v, bool):
            raise TypeError(f"{op}: {name} must be integers, got {v!r} in {tuple(value)}")
    value = tuple(int(v) if isinstance(v, np.integer) else v for v in value)
    if len(value) == 1:
        value = (value[0],) * each
    if len(value) not in counts:
        words = " or ".join(str(count) for count in counts)
        raise ValueError(f"{op}: {name} must have {words} values, got {value}")
    for v in value:
        if v < low:
            raise ValueError(f"{op}: {name} must be at least {low}, got {value}")
        if v >= BOUND:
            raise ValueError(f"{op}: {name} must be less than {BOUND}, got {value}")
    return value


def geometry(
    op: str, rank: int, stride: Ints, padding: Any, dilation: Ints, groups: Any
) -> Geometry:
    """Raises TypeError or ValueError naming the argument that is wrong."""
    if isinstance(padding, str):
        layer = f"; relay_wgrad.torch.Conv{rank}d takes words" if op == NAMES[rank] else ""
        raise TypeError(f"{op}: padding must be integers, got {padding!r}{layer}")
    pads = ints(op, "padding", padding, (rank, 2 * rank), 0, rank)
    if len(pads) == rank:
        pads = (*pads, *pads)
    if isinstance(groups, np.integer):
        groups = int(groups)
    if not isinstance(groups, int) or isinstance(groups, bool):
        raise TypeError(f"{op}: groups must be an integer, got {groups!r}")
    if groups < 1:
        raise ValueError(f"{op}: groups must be at least 1, got {groups}")
    strides = ints(op, "stride", stride, (rank,), 1, rank)
    return strides, pads, ints(op, "dilation", dilation, (rank,), 1, rank), groups


def options(op: str, benchmark: Any, deterministic: Any, allow_tf32: Any) -> Options:
    """CUDA's options of a call; on a CPU too, where nothing reads them."""
    return (
        checked_if_given(op, "benchmark", benchmark),
        checked_if_given(op, "deterministic", deterministic),
        checked_if_given(op, "allow_tf32", allow_tf32),
    )


class Facts(NamedTuple):
    """What checks read of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout

    def dim(self) -> int:
        return len(self.shape)


def facts(tensor: torch.Tensor | None, batched: int | None = None) -> Facts | None:
    """Of a tensor without the axis that is batched."""
    if tensor is None:
        return None
    shape = tuple(n for i, n in enumerate(tensor.shape) if i != batched)
    return Facts(shape, tensor.dtype, tensor.device, tensor.layout)


def tensors(op: str, rank: int, **given: torch.Tensor | Facts) -> None:
    """`rank` and two axes each (a bias has one), one device, one dtype that there are kernels
    for."""
    first_name, first = next(iter(given.items()))
    for name, tensor in given.items():
        if not isinstance(tensor, (torch.Tensor, Facts)):
            raise TypeError(f"{op}: {name} must be a tensor, got {type(tensor).__name__}")
        if isinstance(tensor, torch.Tensor) and tensor.is_nested:  # it has no shape to speak of
            raise TypeError(f"{op}: {name} must be a dense tensor, got a nested one")
        axes = 1 if name == "bias" else 2 + rank
        if tensor.dim() != axes:
            raise ValueError(f"{op}: {name} must have {axes} axes, got shape {tuple(tensor.shape)}")
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"{op}: {first_name} and {name} must have one dtype, got {first.dtype} and"
                f" {tensor.dtype}"
            )
        if tensor.device != first.device:
            raise ValueError(
                f"{op}: {first_name} and {name} must be on one device, got {first.device} and"
                f" {tensor.device}"
            )
        if tensor.layout != torch.strided:
            raise TypeError(f"{op}: {name} must be a dense tensor, got layout {tensor.layout}")
    if first.dtype not in DTYPES:
        names = ", ".join(DTYPES.values())
        raise TypeError(f"{op}: dtype must be one of {names}, got {first.dtype}")
    if first.device.type not in ("cpu", "cuda", "meta"):
        raise ValueError(f"{op}: {first_name} must be on cpu, cuda or meta, got {first.device}")


def bias(op: str, rank: int, first: torch.Tensor, value: torch.Tensor | None, count: int) -> None:
    """One element for each channel, as the input `first` has them."""
    if value is None:
        return
    if isinstance(value, torch.Tensor) and value.dim() == 1 and value.shape[0] != count:
        raise ValueError(f"{op}: bias must have {count} elements, got {value.shape[0]}")
    tensors(op, rank, input=first, bias=value)


def shape(op: str, rank: int, name: str, value: Any) -> tuple[int, ...]:
    """A tensor's sizes."""
    return ints(op, name, value, (2 + rank,), 0)


def convolution(
    op: str, names: tuple[str, str, str], data: Any, weight: Any, grad: Any, g: Geometry
) -> tuple[int, ...]:
    """That three shapes fit as a convolution's; returns the output's shape.

    `names`: what the caller calls data, weight and grad.  `grad`: None for one that is to be made.
    """
    channels(op, names, data, weight, g[3])
    pixels = output_pixels(op, names, data, weight, g)
    want = (data[0], weight[0], *pixels)
    if grad is not None and tuple(grad) != want:
        raise ValueError(
            f"{op}: {names[2]} must have shape {want} for {names[0]} {tuple(data)} and {names[1]}"
            f" {tuple(weight)}, got {tuple(grad)}"
        )
    return want


def channels(op: str, names: tuple[str, str, str], data: Any, weight: Any, groups: int) -> None:
    if data[1] != weight[1] * groups:
        raise ValueError(
            f"{op}: channels of {names[0]} must be groups times those of {names[1]}'s axis 1, got"
            f" {data[1]} and {groups} * {weight[1]}"
        )
    if weight[0] % groups:
        raise ValueError(f"{op}: groups must divide K, got K={weight[0]}, groups={groups}")
    for i, axis in enumerate(AXES[len(weight) - 2], 2):
        if weight[i] < 1:
            raise ValueError(f"{op}: {names[1]}'s {axis} must be at least 1, got {weight[i]}")
    rest = range(1, len(data))
    for name, sizes, axes in ((names[0], data, rest), (names[1], weight, (0, 1))):
        for i in axes:
            if sizes[i] < 1:
                raise ValueError(
                    f"{op}: only the batch may be empty, got {name} of shape {tuple(sizes)}"
                )


def output_pixels(
    op: str, names: tuple[str, str, str], data: Any, weight: Any, g: Geometry
) -> list[int]:
    """A convolution's output without its channels.  Raises ValueError where there is none."""
    strides, pads, dilation, _ = g
    pixels, rank = [], len(strides)
    for i, axis in enumerate(AXES[rank]):
        size, taps = data[2 + i] + pads[i] + pads[rank + i], dilation[i] * (weight[2 + i] - 1) + 1
        if size < taps:
            raise ValueError(
                f"{op}: {names[0]}'s padded {axis} must be at least the dilated kernel's, got"
                f" {size} and {taps}"
            )
        _bounded(op, f"{names[0]}'s padded {axis}", size)
        pixels.append(out_size(data[2 + i], pads[i] + pads[rank + i], weight[2 + i],
                               strides[i], dilation[i]))  # fmt: skip
    return pixels


def _bounded(op: str, name: str, size: int) -> None:
    if size >= 2 * BOUND:
        raise ValueError(f"{op}: {name} must be less than {2 * BOUND}, got {size}")


def output_padding(op: str, value: Ints, g: Geometry) -> tuple[int, ...]:
    """Rows and columns more; as in PyTorch less than stride or dilation."""
    rank = len(g[0])
    extra = ints(op, "output_padding", value, (rank,), 0, rank)
    for e, s, d in zip(extra, g[0], g[2], strict=True):
        if e >= max(s, d):
            raise ValueError(
                f"{op}: output_padding must be less than stride or dilation, got {e} with stride"
                f" {s} and dilation {d}"
            )
    return extra


def transposed_shape(
    op: str, shape: Sequence[int], weight: Sequence[int], extra: Sequence[int], g: Geometry
) -> list[int]:
    """The result's shape of a transposed convolution; ValueError for shapes that do not fit."""
    if shape[1] != weight[0]:
        raise ValueError(
            f"{op}: channels of input must be weight's axis 0, got {shape[1]} and {weight[0]}"
        )
    outer = [shape[0], weight[1] * g[3], *transposed_pixels(op, shape[2:], weight, extra, g)]
    channels(op, ("output", "weight", "input"), outer, weight, g[3])
    if min(shape[2:]) < 1:
        raise ValueError(f"{op}: only the batch may be empty, got input of shape {tuple(shape)}")
    return outer


def transposed_sizes(
    pixels: Sequence[int], weight: Any, extra: Sequence[int], g: Geometry
) -> list[int]:
    """The pixels that a transposed convolution makes of `pixels`; below 1 for none."""
    strides, pads, dilation, _ = g
    rank = len(strides)
    return [
        transposed_size(
            pixels[i], pads[i] + pads[rank + i], weight[2 + i], strides[i], dilation[i], extra[i]
        )
        for i in range(rank)
    ]


def transposed_pixels(
    op: str, pixels: Sequence[int], weight: Any, extra: Sequence[int], g: Geometry
) -> list[int]:
    """`transposed_sizes`.  Raises ValueError for none."""
    sizes = transposed_sizes(pixels, weight, extra, g)
    for i, axis in enumerate(AXES[len(sizes)]):
        if sizes[i] < 1:
            raise ValueError(f"{op}: the output would be empty, its {axis} {sizes[i]}")
        _bounded(op, f"the output's padded {axis}", sizes[i] + g[1][i] + g[1][len(sizes) + i])
    return sizes


def fitted(size: Sequence[int], pixels: Sequence[int], weight: Any, g: Geometry) -> Any:
    """(geometry, size) of the convolution from `size` to `pixels`, where more pixels would fit.

    An output padding of a stride or more leaves room for further pixels that are not there.  The
    room is taken from the padding below and right, and then from the size itself: those rows and
    columns meet no tap.
    """
    strides, pads, dilation, groups = g
    after, kept, rank = [], [], len(strides)
    for i in range(rank):
        # The largest padded size that still gives this many pixels.
        most = (pixels[i] - 1) * strides[i] + dilation[i] * (weight[2 + i] - 1) + strides[i]
        over = max(size[i] + pads[i] + pads[rank + i] - most, 0)
        from_pad = min(over, pads[rank + i])
        after.append(pads[rank + i] - from_pad)
        kept.append(size[i] - (over - from_pad))
    return (strides, (*pads[:rank], *after), dilation, groups), kept


# By kind and rank: what the operators call themselves, and their operands.
OPERATORS = {
    (kind, rank): (f"conv{rank}d{name}", *operands)
    for rank in OWN
    for kind, name, operands in (
        (ConvKind.FPROP, "", ("data", "weight")),
        (ConvKind.DGRAD, "_backward_data", ("grad", "weight")),
        (ConvKind.WGRAD, "_backward_weight", ("grad", "data")),
    )
}
_right: dict[Any, bool] = {}  # operators' calls, as `_checked`


def operator(
    kind: ConvKind, rank: int, operands: Sequence[Facts | None], size: Any, g: Geometry
) -> None:
    """An operator's arguments, which code may call by itself.  Symbolic sizes are trusted."""
    first, second, bias = operands
    assert first is not None
    assert second is not None
    numbers = [*first.shape, *second.shape, *size, *g[0], *g[1], *g[2], g[3]]
    if bias is not None:
        numbers += bias.shape
    symbolic = any(type(n) is not int for n in numbers)
    key = (kind, rank, first, second, bias, size, g)
    if not symbolic and key in _right:
        return
    op, *names = OPERATORS[kind, rank]
    tensors(op, rank, **{names[0]: first, names[1]: second})
    for name, values, count, low in (
        ("stride", g[0], rank, 1), ("padding", g[1], 2 * rank, 0), ("dilation", g[2], rank, 1),
        ("size", size, 0 if kind is ConvKind.FPROP else rank, 1),
    ):  # fmt: skip
        if len(values) != count:
            raise ValueError(f"{op}: {name} must have {count} values, got {values}")
        ints(op, name, values, (count,), low)
    if g[3] < 1:
        raise ValueError(f"{op}: groups must be at least 1, got {g[3]}")
    if symbolic:
        return
    data, weight, grad = first.shape, second.shape, None
    if kind is ConvKind.DGRAD:
        data, grad = (first.shape[0], weight[1] * g[3], *size), first.shape
    elif kind is ConvKind.WGRAD:
        data, grad = second.shape, first.shape
        if data[1] % g[3]:
            raise ValueError(f"{op}: groups must divide C, got C={data[1]}, groups={g[3]}")
        weight = (grad[1], data[1] // g[3], *size)
    convolution(op, ("data", "weight", "grad"), data, weight, grad, g)
    if bias is not None:
        count = data[1] if kind is ConvKind.DGRAD else weight[0]
        tensors(op, rank, **{names[0]: first, "bias": bias})
        if bias.shape[0] != count:
            raise ValueError(f"{op}: bias must have {count} elements, got {bias.shape[0]}")
    if len(_right) >= CHECKED:
        _right.clear()
    _right[key] = True
