"""FlattenAtrousConv: the dilated convolution has the chain's numbers, or the chain stays."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.testing import count_ops

SHAPE = (1, 6, 5, 4)


def chain(blocks: Any, pads: Any, crops: Any, fill: float = 0, **settings: Any) -> Any:
    x, w = relay.var("x", shape=SHAPE), relay.var("w", shape=(3, 3, 4, 2))
    y = relay.nn.space_to_batch_nd(x, blocks, pads, fill)
    settings = {"data_layout": "NHWC", "kernel_layout": "HWIO", **settings}
    y = relay.nn.batch_to_space_nd(relay.nn.conv2d(y, w, **settings), blocks, crops)
    return T.InferType()(relay.IRModule.from_expr(relay.Function([x, w], y)))


def settings(seed: int) -> tuple[Any, Any, Any]:
    """Blocks, paddings that they divide with the sizes, and crops of no more."""
    rng = random.Random(seed)
    blocks = [rng.choice([1, 2, 3]), rng.choice([1, 2, 3])]
    pads = []
    for size, block in zip(SHAPE[1:3], blocks, strict=True):
        begin = rng.randint(0, 3)
        end = -(size + begin) % block
        while size + begin + end < 3 * block:  # a window
            end += block
        pads.append([begin, end])
    crops = [[rng.randint(0, min(p, 1)) for p in pair] for pair in pads]
    return blocks, pads, crops


@pytest.mark.share(2)
@pytest.mark.parametrize("seeds", [range(4), range(4, 8)])
def test_numbers(seeds: range) -> None:
    mods = [chain(*settings(seed)) for seed in seeds]
    flat = [T.FlattenAtrousConv()(mod) for mod in mods]
    for mod in flat:
        assert count_ops(mod["main"]) == {"nn.conv2d": 1}
    x, w = relay.var("x", shape=SHAPE), relay.var("w", shape=(3, 3, 4, 2))
    outs = [relay.Call(mod["main"], [x, w]) for mod in (*mods, *flat)]
    both = relay.create_executor().evaluate(relay.Function([x, w], relay.Tuple(outs)))
    rng = np.random.default_rng(0)
    given = [rng.integers(-4, 5, shape).astype("float32") for shape in (SHAPE, (3, 3, 4, 2))]
    values = [out.numpy() for out in both(*given)]
    for want, got in zip(values[: len(mods)], values[len(mods) :], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "mod",
    [
        lambda: chain([2, 2], [[2, 2], [2, 3]], [[0, 0], [0, 0]], fill=1.0),
        lambda: chain([2, 2], [[2, 2], [2, 3]], [[0, 0], [0, 0]], padding=1),
        lambda: chain([2, 2], [[2, 2], [2, 3]], [[0, 0], [0, 0]], strides=2),
        lambda: chain([2, 2], [[0, 2], [2, 3]], [[1, 0], [0, 0]]),
    ],
)
def test_what_is_no_dilated_convolution_stays(mod: Any) -> None:
    before = mod()
    assert relay.structural_equal(T.FlattenAtrousConv()(before), before)
