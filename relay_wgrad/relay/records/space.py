"""Operators that move between an image's axes and channels or batch, and mirrored edges."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, tirx, topi

from ..types import Dim, TensorType, Type
from .facts import FOLLOW, INJECTIVE
from .loops import kernel, loops
from .relations import mapped
from .table import REQUIRED, Attr, Call, Site, define, show
from .te import choice, known_size, rank, refuse_empty, tensor_program

R = relax.op


def _over(call: Call, size: Dim, factor: int, what: str) -> Dim:
    if isinstance(size, int) and size % factor:
        call.fail(f"{what} of {size} cannot be divided by {factor}: {show(call.tensor())}")
    return mapped(size, lambda n: n // factor)


def _sub_pixel_type(call: Call) -> Type:
    data, block = rank(call, 0, 4), call.attrs["block_size"]
    layout = choice(call, "layout", ("NCHW", "NHWC"))
    if block < 1:
        call.fail(f"block_size must be positive, got {block}")
    shape = list(data.shape)
    deep = call.op == "nn.space_to_depth"
    if not deep:
        choice(call, "mode", ("DCR", "CDR"))
    for i, letter in enumerate(layout):
        if letter in "HW":
            size = shape[i]
            shape[i] = _over(call, size, block, letter) if deep else mapped(size, _times(block))
        elif letter == "C":
            square = block * block
            shape[i] = (
                mapped(shape[i], _times(square)) if deep else _over(call, shape[i], square, "C")
            )
    return TensorType(tuple(shape), data.dtype)


def _times(factor: int) -> Any:
    return lambda n: n * factor


def _space_to_depth(s: Site, data: Any) -> Any:
    return topi.nn.space_to_depth(data, s.attrs["block_size"], s.attrs["layout"])


def _depth_to_space(s: Site, data: Any) -> Any:
    a = s.attrs
    return topi.nn.depth_to_space(data, a["block_size"], a["layout"], a["mode"])


def _block(call: Call, field: str) -> tuple[list[int], list[tuple[int, int]]]:
    """The block and what is put or cut before and after each of its axes."""
    block, pairs = list(call.attrs["block_shape"]), call.attrs[field]
    if not block or min(block) < 1 or len(block) >= len(call.tensor().shape):
        call.fail(f"block_shape must be positive, for axes after the first, got {block}")
    if len(pairs) != len(block) or any(len(p) != 2 or min(p) < 0 for p in pairs):
        call.fail(f"{field} must be {len(block)} pairs of at least 0, got {list(pairs)}")
    return block, [(p[0], p[1]) for p in pairs]


def _to_batch_type(call: Call) -> Type:
    data = call.tensor()
    block, pads = _block(call, "paddings")
    shape = [mapped(data.shape[0], _times(prod(block)))]
    for size, b, pad in zip(data.shape[1:], block, pads, strict=False):
        shape.append(_over(call, mapped(size, lambda n, p=pad: n + sum(p)), b, "a padded axis"))  # type: ignore[misc]
    return TensorType((*shape, *data.shape[len(block) + 1 :]), data.dtype)


def _to_batch(s: Site) -> Any:
    """Each axis as (blocks, block); the latter go before the batch."""
    block, pads = _block(s, "paddings")
    x, m = s.args[0], len(block)
    n, *sizes = s.sizes(s.tensor())
    value = s.attrs["pad_value"]
    widths = [w for pair in [(0, 0), *pads] for w in pair] + [0] * (2 * (len(sizes) - m))
    if any(widths):
        x = s.emit(R.nn.pad(x, widths, "constant", value))
    wide = [size + sum(pad) for size, pad in zip(sizes, pads, strict=False)]
    split = [part for size, b in zip(wide, block, strict=True) for part in (size // b, b)]
    x = s.emit(R.reshape(x, [n, *split, *sizes[m:]]))
    order = [*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m, 2), *range(2 * m + 1, m + len(sizes) + 1)]
    return R.reshape(s.emit(R.permute_dims(x, order)), s.sizes(s.out))


def _from_batch_type(call: Call) -> Type:
    data = call.tensor()
    block, crops = _block(call, "crops")
    shape = [_over(call, data.shape[0], prod(block), "a batch")]
    for size, b, crop in zip(data.shape[1:], block, crops, strict=False):
        if isinstance(size, int) and size * b < sum(crop):
            call.fail(f"crops={list(crop)} cuts more than {size * b}: {show(data)}")
        shape.append(mapped(size, lambda n, b=b, c=crop: n * b - sum(c)))  # type: ignore[misc]
    return TensorType((*shape, *data.shape[len(block) + 1 :]), data.dtype)


def _from_batch(s: Site) -> Any:
    """The other way: the batch as (block, batch), and each block to its axis."""
    block, crops = _block(s, "crops")
    m = len(block)
    n, *sizes = s.sizes(s.tensor())
    n //= prod(block)
    x = s.emit(R.reshape(s.args[0], [*block, n, *sizes]))
    pairs = [axis for i in range(m) for axis in (m + 1 + i, i)]
    x = s.emit(R.permute_dims(x, [m, *pairs, *range(2 * m + 1, m + 1 + len(sizes))]))
    wide = [size * b for size, b in zip(sizes, block, strict=False)]
    x = s.emit(R.reshape(x, [n, *wide, *sizes[m:]]))
    begin = [before for before, _ in crops]
    end = [size - after for size, (_, after) in zip(wide, crops, strict=True)]
    return R.strided_slice(x, list(range(1, m + 1)), begin, end)


def _mirror_type(call: Call) -> Type:
    data, widths = call.tensor(), call.attrs["pad_width"]
    inner = choice(call, "mode", ("SYMMETRIC", "REFLECT")) == "REFLECT"
    if len(widths) != len(data.shape) or any(len(p) != 2 or min(p) < 0 for p in widths):
        call.fail(f"pad_width must be {len(data.shape)} pairs of at least 0, got {list(widths)}")
    for size, pair in zip(data.shape, widths, strict=True):
        if isinstance(size, int) and max(pair) > size - inner:
            call.fail(f"an axis of {size} has no mirror of {list(pair)}: {show(data)}")
    shape = (
        mapped(size, lambda n, p=pair: n + sum(p))  # type: ignore[misc]
        for size, pair in zip(data.shape, widths, strict=True)
    )
    return TensorType(tuple(shape), data.dtype)


def _mirror(s: Site) -> Any:
    """Slices turned round, put at both sides of each axis; an axis after the other."""
    refuse_empty(s)
    x, inner = s.args[0], int(s.attrs["mode"] == "REFLECT")
    for axis, (before, after) in enumerate(s.attrs["pad_width"]):
        size = known_size(s, s.tensor().shape[axis]) if before or after else 0
        parts = [x]
        if before:
            part = s.emit(R.strided_slice(x, [axis], [inner], [before + inner]))
            parts.insert(0, s.emit(R.flip(part, axis)))
        if after:
            part = s.emit(R.strided_slice(x, [axis], [size - after - inner], [size - inner]))
            parts.append(s.emit(R.flip(part, axis)))
        x = s.emit(R.concat(parts, axis)) if len(parts) > 1 else x
    return x


def _dilated_type(call: Call) -> Type:
    data, strides = call.tensor(), call.attrs["strides"]
    if len(strides) != len(data.shape) or min(strides, default=1) < 1:
        call.fail(f"strides must be a positive number for each axis, got {list(strides)}")
    if 0 in data.shape:
        call.fail(f"data has no elements, got {show(data)}")
    sizes = zip(data.shape, strides, strict=True)
    shape = (mapped(size, lambda n, step=step: (n - 1) * step + 1) for size, step in sizes)  # type: ignore[misc]
    return TensorType(tuple(shape), data.dtype)


def _dilated(s: Site, x: Any) -> Any:
    """As loops: of sizes of the run TVM's schedules do not fuse the axes."""
    strides, value = s.attrs["strides"], tirx.const(s.attrs["dilation_value"], x.dtype)
    shape = [(size - 1) * step + 1 for size, step in zip(x.shape, strides, strict=True)]

    def body(ins: list[Any], outs: list[Any]) -> None:
        (given,), (out,) = ins, outs
        with loops(*shape) as place:
            out[place] = value
        with loops(*x.shape) as place:
            each = place if isinstance(place, tuple) else (place,)
            out[tuple(i * step for i, step in zip(each, strides, strict=True))] = given[place]

    return kernel("dilate", [x], [(shape, str(x.dtype))], body)[0]


_BLOCK = Attr("block_shape", (1, 1), "sizes", asked=REQUIRED)
_PIXEL = (
    Attr("block_size", 1, "int", asked=REQUIRED), Attr("layout", "NCHW", "str"),
    Attr("mode", "DCR", "str"),
)  # fmt: skip
define("nn.space_to_depth", "data", _sub_pixel_type, tensor_program(_space_to_depth), "numpy",
       *_PIXEL,
       kind=INJECTIVE, level=5,
       signature="data, block_size, layout",
       doc="Blocks of the image as channels.")  # fmt: skip
define("nn.depth_to_space", "data", _sub_pixel_type, tensor_program(_depth_to_space), "numpy",
       *_PIXEL,
       kind=INJECTIVE, level=5, precision=FOLLOW,
       doc="Channels as blocks of the image; `mode` says whether the block is the slower "
           "part of C.")  # fmt: skip
define("nn.space_to_batch_nd", "data", _to_batch_type, _to_batch, "numpy", _BLOCK,
       Attr("paddings", REQUIRED, "pairs"), Attr("pad_value", 0.0, "float"),
       kind=INJECTIVE, level=5,
       doc="The places within a block, after padding, as images of a larger batch.")  # fmt: skip
define("nn.batch_to_space_nd", "data", _from_batch_type, _from_batch, "numpy",
       _BLOCK, Attr("crops", REQUIRED, "pairs"),
       kind=INJECTIVE, level=5,
       doc="What `space_to_batch_nd` made, back, with the edges cut.")  # fmt: skip
define("nn.dilate", "data", _dilated_type, tensor_program(_dilated), "numpy",
       Attr("strides", REQUIRED, "sizes"), Attr("dilation_value", 0.0, "float"),
       kind=INJECTIVE, level=10,
       doc="`data` with `strides - 1` elements of a value after each but the last, along "
           "each axis.")  # fmt: skip
define("nn.mirror_pad", "data", _mirror_type, _mirror, "numpy", Attr("mode", "SYMMETRIC", "str"),
       Attr("pad_width", REQUIRED, "pairs"),
       kind=INJECTIVE, level=2,
       signature="data, pad_width, mode",
       doc="`data` with its mirror image at its edges; REFLECT does not repeat the "
           "outermost element.")  # fmt: skip
