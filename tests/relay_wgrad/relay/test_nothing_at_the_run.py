"""Reductions over nothing and windows larger than their images, of sizes that the run knows."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import te
from relay_wgrad.relay.memory import is_out_of_memory

pytestmark = pytest.mark.usefixtures("registered")
NAN = float("nan")


def ran(body: Callable[..., Any], *shapes: Any, dtype: str = "float32") -> Callable[..., Any]:
    """A program of tensors whose sizes are numbers, letters or `?`, as a function of arrays."""
    letters: dict[str, Any] = {}

    def size(x: Any) -> Any:
        if x == "?":
            return relay.Any()
        return letters.setdefault(x, te.size_var(x)) if isinstance(x, str) else x

    params = [
        relay.var(f"p{i}", shape=tuple(map(size, shape)), dtype=dtype)
        for i, shape in enumerate(shapes)
    ]
    mod = relay.IRModule.from_expr(relay.Function(params, body(*params)))
    made = relay.create_executor("graph", mod, tvm.cpu(), "llvm").evaluate()
    return lambda *arrays: made(*arrays).numpy()


def ones(*shape: int, dtype: str = "float32") -> Any:
    return np.ones(shape, dtype)


# (body, its value over nothing along the first of two axes)
REDUCTIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "sum": (lambda x: relay.sum(x), 0),
    "sum of columns": (lambda x: relay.sum(x, 0), np.zeros(3)),
    "prod": (lambda x: relay.prod(x, 0), np.ones(3)),
    "mean": (lambda x: relay.mean(x), NAN),
    "variance": (lambda x: relay.variance(x, 0), np.full(3, NAN)),
    "variance, unbiased": (
        lambda x: relay.variance(x, 0, unbiased=True), np.full(3, NAN)
    ),
    "any": (lambda x: relay.any(relay.less(x, relay.const(5.0)), 0), np.zeros(3, bool)),
    "all": (lambda x: relay.all(relay.less(x, relay.const(0.0)), 0), np.ones(3, bool)),
    "dense": (lambda x: relay.nn.dense(relay.transpose(x), relay.transpose(x)), np.zeros((3, 3))),
    "einsum": (lambda x: relay.einsum([x, x], "ij,ik->jk"), np.zeros((3, 3))),
    "softmax": (lambda x: relay.sum(relay.nn.softmax(x, 0), 0), np.zeros(3)),
}  # fmt: skip


@pytest.mark.share(5)
@pytest.mark.parametrize("size", ["n", "?"])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_what_has_a_value(name: str, size: str) -> None:
    body, want = REDUCTIONS[name]
    run = ran(body, (size, 3))
    run(np.full((9, 3), 7.5, "float32"))
    np.testing.assert_array_equal(run(ones(0, 3)), want)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_known_sizes_give_the_same(name: str) -> None:
    body, want = REDUCTIONS[name]
    np.testing.assert_array_equal(ran(body, (0, 3))(ones(0, 3)), want)


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_there_is_none_to_choose(name: str) -> None:
    words = re.escape(f"{name}: no element to choose of (0, 3) along axis 0")
    run = ran(lambda x: getattr(relay, name)(x, 0), ("n", 3))
    run(ones(2, 3))
    with pytest.raises(ValueError, match=words):
        run(ones(0, 3))
    with pytest.raises(ValueError, match=words):
        ran(lambda x: getattr(relay, name)(x, 0), (0, 3))
    last = ran(lambda x: relay.argmax(x, 0, select_last_index=True), ("n", 3))
    with pytest.raises(ValueError, match="no element to choose"):
        last(ones(0, 3))
    assert ran(lambda x: getattr(relay, name)(x, 1), ("n", 3))(ones(0, 3)).shape == (0,)


def test_no_integer_is_the_mean_of_nothing() -> None:
    """Its quotient would end the process."""
    run = ran(lambda x: relay.mean(x, 0), ("n", 3), dtype="int32")
    assert run(np.array([[1, 2, 3], [4, 5, 7]], "int32")).tolist() == [2, 3, 5]
    words = r"mean: no int32 is the mean of \(0, 3\) along axis 0"
    with pytest.raises(ValueError, match=words):
        run(ones(0, 3, dtype="int32"))
    with pytest.raises(ValueError, match=words):
        ran(lambda x: relay.mean(x, 0), (0, 3), dtype="int32")


WEIGHT = relay.const(np.ones((4, 3, 3, 3), "float32"))
LINE = relay.const(np.ones((4, 3, 3), "float32"))
PLANE = relay.const(np.ones((3, 3, 3), "float32"))
# (body, data's shape, one with which it has no value, the error)
WINDOWS: dict[str, tuple[Callable[[Any], Any], Any, Any, str]] = {
    "conv2d": (lambda x: relay.nn.conv2d(x, WEIGHT), ("n", 3, "h", "w"), (1, 3, 2, 9),
               "conv2d: P must be positive, got P=0 from H=2, R=3, padding 0 in all"),
    "conv2d of any": (lambda x: relay.nn.conv2d(x, WEIGHT), ("?", 3, "?", 9), (1, 3, 1, 9),
                      "conv2d: P must be positive, got P=-1 from H=1, R=3, padding 0 in all"),
    "conv2d_transpose": (
        lambda x: relay.nn.conv2d_transpose(x, WEIGHT, padding=2), (1, 4, "h", 9), (1, 4, 1, 9),
        "conv2d_transpose: output height must be positive, got output height=-1 from input size 1"),
    "conv1d": (lambda x: relay.nn.conv1d(x, LINE), (1, 3, "w"), (1, 3, 2),
               "nn.conv1d: Q must be positive, got Q=0 from W=2, S=3"),
    "max_pool1d": (lambda x: relay.nn.max_pool1d(x, 3), (1, 3, "w"), (1, 3, 2),
                   "nn.max_pool1d: Q must be positive, got Q=0 from W=2, window 3"),
    "avg_pool2d": (lambda x: relay.nn.avg_pool2d(x, (3, 3)), (1, 3, "h", "w"), (1, 3, 9, 1),
                   "avg_pool2d: Q must be positive, got Q=-1 from W=1, window 3"),
    "max_pool3d": (lambda x: relay.nn.max_pool3d(x, (3, 3, 3)), (1, 3, "d", 9, 9), (1, 3, 2, 9, 9),
                   "nn.max_pool3d: Z must be positive, got Z=0 from D=2, window 3"),
    "global_max_pool2d": (lambda x: relay.nn.global_max_pool2d(x), (1, 3, "h", 9), (1, 3, 0, 9),
                          "max: no element to choose of (1, 3, 0, 9) along axes 2, 3"),
    "dilation2d": (lambda x: relay.image.dilation2d(x, PLANE), (1, 3, "h", 9), (1, 3, 2, 9),
                   "image.dilation2d: P must be positive, got P=0 from H=2, window 3"),
    "sliding_window": (lambda x: relay.sliding_window(x, 1, (3,), (1,)), (2, "w"), (2, 2),
                       "sliding_window: a window of [3] must fit, got 2 of axis 1"),
    "topk": (lambda x: relay.topk(x, 2, ret_type="values"), (3, "w"), (3, 1),
             "topk: k=2 must be no more than there are, got 1 of axis 1"),
    "take": (lambda x: relay.take(x, relay.const(np.array([0, 1])), axis=0), ("n", 3), (0, 3),
             "take: no elements to take of (0, 3) along axis 0"),
    "reflected": (lambda x: relay.nn.pad(x, ((0, 0), (1, 2)), pad_mode="reflect"), (3, "w"), (3, 2),
                  "pad: pad_width=[1, 2] needs 3 or more, got 2 of axis 1"),
    "edges": (lambda x: relay.nn.pad(x, ((0, 0), (0, 2)), pad_mode="edge"), (3, "w"), (3, 0),
              "pad: pad_width=[0, 2] needs 1 or more, got 0 of axis 1"),
    "cut": (lambda x: relay.nn.pad(x, ((0, 0), (-2, -1))), (3, "w"), (3, 2),
            "nn.pad: pad_width=[-2, -1] cuts 3, got 2 of axis 1"),
    "an image of nothing": (lambda x: relay.image.resize2d(x, (4, 4)), (1, 3, "h", 9), (1, 3, 0, 9),
                            "image.resize2d: data has no elements, got (1, 3, 0, 9)"),
}  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows_larger_than_the_image(name: str) -> None:
    body, shape, given, words = WINDOWS[name]
    run = ran(body, shape)
    run(ones(*(x if isinstance(x, int) else 9 for x in shape)))
    with pytest.raises(ValueError, match=re.escape(words)):
        run(ones(*given))


def test_a_global_mean_behind_nothing_is_nan() -> None:
    run = ran(lambda x: relay.nn.global_avg_pool2d(x), ("n", 3, "h", "w"))
    assert np.isnan(run(ones(2, 3, 0, 4))).all()
    assert run(ones(0, 3, 4, 4)).shape == (0, 3, 1, 1)


@pytest.mark.parametrize("size", ["n", 0])
def test_losses_of_no_examples(size: Any) -> None:
    for loss in (relay.nn.cross_entropy, relay.nn.cross_entropy_with_logits):
        assert np.isnan(ran(loss, (size, 3), (size, 3))(ones(0, 3), ones(0, 3)))


def test_a_result_of_nothing_reads_nothing() -> None:
    """Whatever its sizes are made of: half of none is none."""
    for body in (relay.nn.space_to_depth, relay.nn.depth_to_space):
        run = ran(lambda x, body=body: body(x, 2), (1, 4, "h", 4))
        assert 0 in run(ones(1, 4, 0, 4)).shape


def test_gradients_ask_for_no_memory_before() -> None:
    """A gradient's first tensor is as large as the result: sizes are compared before it is made."""
    h = te.size_var("h")
    x = relay.var("x", shape=(1, 3, h, 7))
    body = relay.sum(relay.nn.max_pool2d(x, (3, 3)))
    mod = relay.transform.InferType()(relay.IRModule.from_expr(relay.Function([x], body)))
    gradient = relay.transform.gradient(mod["main"], mode="first_order")
    run = relay.create_executor("graph", relay.IRModule.from_expr(gradient)).evaluate()
    run(ones(1, 3, 4, 7))
    for height in (0, 2):
        with pytest.raises(ValueError, match="max_pool2d: "):
            run(ones(1, 3, height, 7))


def test_a_negative_size_is_no_shortage_of_memory() -> None:
    run = ran(lambda x: relay.split(x, [2], 0)[1], ("n", 3))
    assert run(ones(2, 3)).shape == (0, 3)
    words = "main: a tensor's size must be at least 0, got -1, which is n - 2"
    with pytest.raises(ValueError, match=words) as caught:
        run(ones(1, 3))
    assert not is_out_of_memory(caught.value)
