"""What resembles a convolution's gradient and is none: it stays, with its reason.

Sizes coincide wherever they can (N = C = K = 4, P = H), so that shapes give nothing away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import relay_wgrad
from tests.support.raise_cases import (
    Body,
    evaluate,
    flipped_form,
    integers,
    names,
    nn,
    op,
    program,
    raised,
    same,
    stock_form,
    tile_form,
)

FOUR = {"data": (4, 4, 5, 5), "grad": (4, 4, 5, 5)}
WIDE = {"data": (2, 4, 5, 5), "grad": (2, 6, 5, 5)}
SQUARE = {"grad": (4, 4, 5, 5), "weight": (4, 4, 3, 3)}
STRIDED = {"grad": (2, 4, 3, 3), "weight": (4, 4, 3, 3)}


@pytest.fixture(autouse=True)
def _registered(registered: None) -> None:
    pass


@dataclass(frozen=True)
class Case:
    """A program, a part of its reason, and the options of the gradient that it resembles.

    `unproven` : why it is refused although its numbers may be the gradient's.
    """

    body: Body
    reason: str
    shapes: dict[str, Any] = field(default_factory=lambda: FOUR)
    of: dict[str, Any] = field(default_factory=dict)
    unproven: str = ""


def tiled(**options: Any) -> Body:
    return lambda emit, x, g: tile_form(emit, x, g, **options)


def stock(**options: Any) -> Body:
    return lambda emit, x, g: stock_form(emit, x, g, **options)


def dgrad(**options: Any) -> Body:
    return lambda emit, g, w: flipped_form(emit, g, w, **options)


def tiled_with(change: Any, which: str) -> Body:
    """The tile form of a changed operand."""

    def body(emit: Any, x: Any, g: Any) -> Any:
        if which == "data":
            x = emit(change(x))
        else:
            g = emit(change(g))
        return tile_form(emit, x, g)

    return body


def used_twice(emit: Any, x: Any, g: Any) -> Any:
    kept = []

    def keep(emit: Any, y: Any) -> Any:
        kept.append(y)
        return y

    made = tile_form(emit, x, g, between=keep)
    return relax.Tuple([made, emit(op.max(kept[0]))])


def half_returned(emit: Any, x: Any, g: Any) -> Any:
    y = emit(nn.conv2d(emit(op.reshape(x, (1, 16, 5, 5))),
                       emit(op.reshape(emit(op.tile(g, [1, 4, 1, 1])), (64, 1, 5, 5))),
                       padding=1, groups=16))  # fmt: skip
    return emit(op.reshape(y, (4, 4, 4, 3, 3)))


def dilated_images(emit: Any, g: Any, w: Any) -> Any:
    x = emit(nn.pad(emit(op.expand_dims(g, [1])), [0, 0, 0, 1] + [0] * 6))
    x = emit(op.reshape(x, (4, 4, 3, 3)))
    return flipped_form(emit, x, w)


scaled = relax.const(np.float32(0.25))
CASES = {
    # -- sums
    "sum over the input channels": Case(
        tiled(total=lambda y: op.sum(y, [1])), "sum runs over axis 1 of %data"
    ),
    "sum over the filters": Case(
        tiled(total=lambda y: op.sum(y, [2])), "sum runs over axis 1 of %grad"
    ),
    "sum over images and channels": Case(
        tiled(total=lambda y: op.sum(y, [0, 1]), last=nn.relu), "%data and axis 1 of %data"
    ),
    "sum over images and rows": Case(
        tiled(total=lambda y: op.sum(y, [0, 3]), last=nn.relu), "the result's own pixels"
    ),
    "no sum": Case(
        tiled(total=lambda y: op.strided_slice(y, [0], [0], [1]), last=lambda y: op.max(y, [0])),
        "sum runs over nothing",
    ),
    "mean over the images": Case(tiled(total=lambda y: op.mean(y, [0])), "mean follows"),
    "maximum over the images": Case(tiled(total=lambda y: op.max(y, [0])), "max follows"),
    "all images but the last": Case(
        tiled(total=lambda y: op.sum(op.strided_slice(y, [0], [0], [3]), [0])),
        "strided_slice of axis 0, which is not of pixels, follows",
    ),
    "running sum": Case(
        tiled(total=lambda y: op.squeeze(op.strided_slice(op.cumsum(y, 0), [0], [2], [3]), [0])),
        "cumsum follows",
    ),
    # -- order of axes
    "parts (N, K, C) for (N, C, K)": Case(tiled(parts=(2, 6, 4)), "cut where no factor", WIDE),
    "images and channels of the gradient swapped": Case(
        lambda emit, x, g: stock_form(emit, x, emit(op.permute_dims(g, [1, 0, 2, 3]))),
        "the convolution sums over axis 1 of the gradient %grad",
    ),
    "channels and taps mixed": Case(
        tiled(between=lambda emit, y: emit(
            op.reshape(emit(op.permute_dims(y, [0, 2, 1, 3])), (1, 64, 3, 3)))),
        "cut where no factor",
    ),
    "parts in another order": Case(tiled(parts=(4, 2, 6)), "sum runs over", WIDE),
    # -- how the operands are laid out
    "repeat for tile": Case(
        tiled(tile=lambda g: op.repeat(g, 4, 1)), "axis 0 of the result is none of OIHW"
    ),
    "tiled along the images": Case(
        tiled(tile=lambda g: op.tile(g, [4, 1, 1, 1])), "sum runs over axis 0 of %data"
    ),
    "tiled twice for four channels": Case(
        tiled(tile=lambda g: op.tile(g, [1, 2, 1, 1]), parts=(4, 4, 2),
              planes=lambda g: op.reshape(g, (32, 1, 5, 5))),
        "groups",
    ),
    "tiled rows": Case(
        tiled(tile=lambda g: op.tile(op.strided_slice(g, [2], [0], [1]), [1, 4, 5, 1])),
        "the rows",
    ),
    "as many groups as images": Case(
        tiled(groups=4, planes=lambda g: op.reshape(g, (16, 4, 5, 5)), parts=(1, 4, 4)),
        "the convolution sums over axis 1 of data %data",
    ),
    "the gradient flipped": Case(tiled_with(lambda g: op.flip(g, 2), "grad"), "flipped"),
    # -- other ops in between
    "cast before the sum": Case(
        tiled(between=lambda emit, y: emit(op.astype(emit(op.astype(y, "float16")), "float32"))),
        "astype follows",
        unproven="rounding to float16 before the sum changes its bits, for large values its value",
    ),
    "bias before the sum": Case(
        tiled(between=lambda emit, y: emit(op.add(y, relax.const(np.float32(1))))), "add follows"
    ),
    "relu before the sum": Case(tiled(between=lambda emit, y: emit(nn.relu(y))), "relu follows"),
    "scaled before the sum": Case(
        tiled(between=lambda emit, y: emit(op.multiply(y, scaled))), "multiply follows"
    ),
    "negated before the sum": Case(
        tiled(between=lambda emit, y: emit(op.negative(y))), "negative follows"
    ),
    "convolution used twice": Case(
        used_twice, "is used by",
        unproven="it is a gradient, but the convolution would have to stay for its other user",
    ),
    "returned before the sum": Case(half_returned, "the function's result or another block"),
    # -- groups
    "Relay's composite of two groups": Case(
        lambda emit, x, g: tile_form(
            emit, x, g, tile=lambda g: op.tile(g, [1, 2, 1, 1]),
            planes=lambda g: op.reshape(g, (32, 1, 5, 5)), parts=(4, 2, 4),
        ),
        "pairs group g with the input channels that are g modulo the groups",
        of={"groups": 2},
    ),
    "groups not brought forward": Case(
        stock(groups=2, order=None), "of %data and", {"data": (2, 4, 5, 5), "grad": (2, 4, 5, 5)},
        of={"groups": 2},
    ),
    "groups as the minor factor": Case(
        stock(groups=2, order=(2, 0, 1, 3, 4)), "channels that are g modulo", of={"groups": 2}
    ),
    "filters read as OIHW": Case(
        stock(layouts=("CNHW", "OIHW", "CNHW")),
        "the convolution sums over axis 1 of the gradient %grad",
    ),
    # -- data gradients
    "one axis flipped": Case(dgrad(flips=(2,)), "not exactly the two axes of taps", SQUARE),
    "flipped, not transposed": Case(
        dgrad(swapped=False), "a forward convolution with a flipped weight", SQUARE
    ),
    "transposed, not flipped, dilated": Case(
        dgrad(flips=(), stride=(2, 2)), "not exactly the two axes of taps", STRIDED
    ),
    "more zeros than taps reach": Case(
        dgrad(padding=3), "3 rows of zeros before the gradient, and 2", SQUARE
    ),
    "more zeros behind than a stride leaves": Case(
        dgrad(stride=(2, 2), extra=(2, 0)), "4 rows of zeros behind", STRIDED
    ),
    "strided convolution": Case(dgrad(conv_strides=2), "has strides (2, 2)", SQUARE),
    "groups of the weight mixed": Case(
        dgrad(groups=2, regroup=(2, 0, 1, 3, 4)), "a part of axis 0 of %weight",
        {"grad": (4, 8, 5, 5), "weight": (8, 4, 3, 3)}, of={"groups": 2},
    ),
    "zeros between images": Case(dilated_images, "channels or filters are padded", STRIDED),
}  # fmt: skip


def resembled(case: Case) -> tvm.IRModule:
    """The gradient that a look-alike is not."""
    if "data" in case.shapes:
        shapes = case.shapes

        def body(emit: Any, x: Any, g: Any) -> Any:
            return emit(relay_wgrad.conv2d_backward_weight(g, x, 3, padding=1, **case.of))

    else:
        shapes = case.shapes

        def body(emit: Any, g: Any, w: Any) -> Any:
            n, _, p, q = (int(v) for v in g.ty.shape.values)
            c = int(w.ty.shape.values[1]) * case.of.get("groups", 1)
            stride = 2 if p == 3 else 1
            shape = (n, c, (p - 1) * stride + 3, (q - 1) * stride + 3)
            return emit(relay_wgrad.conv2d_backward_data(g, w, shape, strides=stride, **case.of))

    return program(shapes, body)


def test_there_are_thirty() -> None:
    assert len(CASES) >= 30


@pytest.mark.filterwarnings("ignore:.*Relay's composite")
@pytest.mark.parametrize("name", CASES)
def test_stays(name: str) -> None:
    case = CASES[name]
    mod = program(case.shapes, case.body)
    out, report = raised(mod)
    assert report.raised == (), report.raised
    assert report.left
    assert out.same_as(mod)
    assert any(case.reason in entry.reason for entry in report.left), report.reasons()
    if not case.unproven:
        inputs = integers(mod)
        assert not same(evaluate(mod, *inputs), evaluate(resembled(case), *inputs))


def test_relays_wrong_composite_is_warned_of() -> None:
    mod = program(FOUR, CASES["Relay's composite of two groups"].body)
    with pytest.warns(UserWarning, match=r"main: %lv.*1 < groups < channels.*no weight gradient"):
        raised(mod)


FORWARD = {
    "one image": ({"x": (1, 4, 5, 5), "w": (4, 4, 3, 3)}, lambda e, x, w: e(nn.conv2d(x, w))),
    "one channel": ({"x": (4, 1, 5, 5), "w": (4, 1, 3, 3)}, lambda e, x, w: e(nn.conv2d(x, w))),
    "all one": ({"x": (1, 1, 5, 5), "w": (1, 1, 3, 3)}, lambda e, x, w: e(nn.conv2d(x, w))),
    "depthwise, one image": (
        {"x": (1, 4, 7, 7), "w": (4, 1, 7, 7)}, lambda e, x, w: e(nn.conv2d(x, w, groups=4))
    ),
    "NHWC, HWIO": (
        {"x": (1, 5, 5, 1), "w": (3, 3, 1, 4)},
        lambda e, x, w: e(nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO")),
    ),
    "transposed weight": (
        {"x": (4, 4, 5, 5), "w": (4, 4, 3, 3)},
        lambda e, x, w: e(nn.conv2d(x, w, kernel_layout="IOHW")),
    ),
    "shuffled channels": (
        {"x": (2, 6, 5, 5), "w": (6, 2, 3, 3)},
        lambda e, x, w: e(nn.conv2d(e(op.reshape(e(op.permute_dims(
            e(op.reshape(x, (2, 2, 3, 5, 5))), [0, 2, 1, 3, 4])), (2, 6, 5, 5))), w, groups=3)),
    ),
    "sum of a forward convolution": (
        {"x": (4, 4, 5, 5), "w": (4, 4, 3, 3)},
        lambda e, x, w: e(op.sum(e(nn.conv2d(x, w)), [0])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORWARD)
def test_forward_convolutions_are_not_in_the_report(name: str) -> None:
    shapes, body = FORWARD[name]
    mod = program(shapes, body)
    out, report = raised(mod)
    assert report.entries == ()
    assert out.same_as(mod)
    assert "nn.conv2d" in names(out)
