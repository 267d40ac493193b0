"""Random programs around convolutions, for conversions of layout: the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from relay_wgrad import relay
from relay_wgrad.relay import transform as T

N, C, H, W = 2, 4, 3, 5  # what every operator here keeps
SHAPE = (N, C, H, W)


class Program:
    """Expressions so far, all float64 and of one shape, and the variables that they need."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.params: list[Any] = []
        self.pool = [self.param(SHAPE), self.param(SHAPE)]
        self.pool.append(_conv2d(self))

    def param(self, shape: tuple[int, ...]) -> Any:
        var = relay.var(f"p{len(self.params)}", shape=shape, dtype="float64")
        self.params.append(var)
        return var

    def some(self) -> Any:
        """One of the values, rather a late one."""
        return self.one(self.pool[-3:] if self.one([0, 1]) else self.pool)

    def axis(self) -> int:
        return self.random.randint(-4, 3)

    def one(self, values: Any) -> Any:
        return self.random.choice(values)


def _conv2d(p: Program) -> Any:
    groups = p.one([1, 2, C])
    weight = p.param((C, C // groups, 3, 3))
    return relay.nn.conv2d(p.some(), weight, padding=1, groups=groups)


def _depth_multiplier(p: Program) -> Any:
    weight = p.param((2 * C, 1, 3, 1))
    wide = relay.nn.conv2d(p.some(), weight, padding=(1, 0), groups=C)
    return relay.split(wide, 2, axis=1)[p.one([0, 1])]


def _transposed(p: Program) -> Any:
    groups = p.one([1, 2])
    weight = p.param((C, C // groups, 3, 3))
    return relay.nn.conv2d_transpose(p.some(), weight, padding=(1, 1), groups=groups)


def _weight_gradient(p: Program) -> Any:
    """Its result is another convolution's weight, or summed to one number."""
    groups = p.one([1, 2, C])
    w = relay.nn.conv2d_backward_weight(
        p.some(), p.some(), padding=1, groups=groups, channels=C, kernel_size=(3, 3),
        grad_layout="NCHW", data_layout="NCHW", kernel_layout="OIHW",
    )  # fmt: skip
    if groups == 1 and p.one([0, 1]):
        return relay.nn.conv2d(p.some(), w, padding=1)
    summed = relay.sum(w, axis=[1, 2, 3]) if p.one([0, 1]) else relay.max(w, axis=[-1, 1])
    tail = relay.expand_dims(relay.nn.relu(summed), 1, 2) if p.one([0, 1]) else relay.sum(summed)
    return relay.add(p.some(), relay.sum(tail))


def _broadcast(p: Program) -> Any:
    shape = p.one([SHAPE, (C, 1, 1), (1, C, 1, 1), (H, W), (W,), (C, H, W), (N, 1, 1, 1), (),
                   (1, 1), (1, 1, H, 1), (C, 1, W)])  # fmt: skip
    op = p.one([relay.add, relay.multiply, relay.maximum])
    args = [p.some(), p.param(shape)]
    return op(*args) if p.one([0, 1]) else op(*args[::-1])


def _both(p: Program) -> Any:
    return p.one([relay.add, relay.subtract, relay.minimum])(p.some(), p.some())


def _where(p: Program) -> Any:
    zeros = p.one(
        [lambda: relay.zeros_like(p.some()), lambda: relay.zeros(SHAPE, "float64"),
         lambda: relay.full(relay.const(0.5, "float64"), SHAPE, "float64"),
         lambda: relay.full_like(p.some(), relay.const(2.0, "float64"))]
    )()  # fmt: skip
    return relay.where(relay.less(p.some(), zeros), zeros, p.some())


def _elementwise(p: Program) -> Any:
    x = p.some()
    return p.one(
        [relay.nn.relu, relay.negative, relay.copy, relay.tanh, relay.nn.leaky_relu,
         lambda x: relay.clip(x, -1.0, 1.0),
         lambda x: relay.cast_like(relay.cast(x, "float32"), p.some()),
         lambda x: relay.cast(relay.greater(x, p.some()), "float64"), relay.ones_like]
    )(x)  # fmt: skip


def _squared(x: Any) -> Any:
    return relay.multiply(x, x)


def _axis(p: Program) -> Any:
    x, axis = p.some(), p.axis()
    vectors = [p.param((SHAPE[axis],)) for _ in range(4)]
    return p.one([
        lambda: relay.nn.bias_add(x, vectors[0], axis=axis),
        lambda: relay.nn.prelu(x, p.param((C,)), axis=1),
        lambda: relay.nn.softmax(x, axis=axis),
        lambda: relay.nn.log_softmax(x, axis=axis),
        lambda: relay.nn.lrn(x, size=3, axis=1),
        lambda: relay.nn.layer_norm(x, *vectors[:2], axis=axis),
        lambda: relay.nn.instance_norm(x, p.param((C,)), p.param((C,)), axis=1),
        lambda: relay.nn.batch_norm(x, *vectors[:3], _squared(vectors[3]), axis=axis)[0],
        lambda: relay.add(x, relay.nn.batch_norm(x, *[p.param((W,)) for _ in range(4)], axis=3)[1]),
        lambda: relay.nn.l2_normalize(x, 0.1, axis=[axis]),
        lambda: relay.nn.l2_normalize(x, 0.1, axis=[axis % 4, (axis + 1) % 4]),
        lambda: relay.nn.dropout(x, 0.5),
    ])()  # fmt: skip


def _reduced(p: Program) -> Any:
    x = p.some()
    axes = p.random.sample(range(4), p.random.randint(0, 4))
    axes = [axis - p.one([0, 4]) for axis in axes]
    op = p.one([relay.sum, relay.mean, relay.max, relay.min])
    kind = p.one(["keep", "drop", "arg", "variance", "truth"])
    if kind == "keep":
        return relay.add(
            p.some(), op(x, axis=axes or None, keepdims=True, exclude=p.one([False, True]))
        )
    if kind == "arg":
        over = p.one([[p.axis()], [p.axis()], [1, 2], [2, 3], [0, 1]])
        index = p.one([relay.argmax, relay.argmin])(x, axis=over, keepdims=True)
        return relay.add(p.some(), relay.cast(index, "float64"))
    if kind == "variance":
        return relay.add(p.some(), relay.variance(x, axes or None, keepdims=True))
    if kind == "truth":
        found = p.one([relay.all, relay.any])(
            relay.less(x, p.some()), axis=[p.axis()], keepdims=True
        )
        return relay.where(found, x, p.some())
    # What is left, broadcast back by where its axes were.
    left = [i for i in range(4) if i not in {axis % 4 for axis in axes}] if axes else []
    out = op(x, axis=axes or None)
    for i in range(4):
        if i not in left:
            out = relay.expand_dims(out, i)
    return relay.add(p.some(), out)


def _shape(p: Program) -> Any:
    x, axis = p.some(), p.axis()
    size = SHAPE[axis]
    begin = [0, 0, 0, 0]
    begin[axis] = p.one([0, 1])
    end = [b + s for b, s in zip(begin, SHAPE, strict=True)]
    count = axis % 4 + 1  # axes that the slice names
    return p.one([
        lambda: relay.split(relay.concatenate([x, p.some()], axis), 2, axis)[p.one([0, 1])],
        lambda: relay.split(relay.concatenate([p.some(), x], axis), [size], axis)[p.one([0, 1])],
        lambda: relay.strided_slice(relay.tile(x, [1, 2, 1, 1]), [0, 0, 0, 0], [N, 2 * C, H, W],
                                    [1, 2, 1, 1]),
        lambda: relay.strided_slice(relay.concatenate([x, x], axis), begin[:count], end[:count]),
        lambda: relay.strided_slice(relay.repeat(x, 2, axis), [0], [2 * size], [2], axes=[axis]),
        lambda: relay.strided_slice(x, [-1], [-size - 1], [-1], axes=[axis]),
        lambda: relay.strided_slice(relay.concatenate([x, x], 1), [0, C], [N], [1, 1, 1]),
        lambda: relay.strided_slice(relay.concatenate([x, x], 2), [0, 0], [N, C, 2 * H], [1, 1, 2]),
        lambda: relay.topk(x, size, axis, "both")[0],
        lambda: relay.topk(x, size, axis, "values"),
        lambda: relay.add(x, relay.cast(relay.topk(x, size, axis, "indices"), "float64")),
        lambda: relay.argsort(x, axis, dtype="float64"),
        lambda: relay.reverse(x, axis),
        lambda: relay.slice_like(relay.nn.pad(x, ((0, 0), (0, 1), (1, 2), (0, 3))), p.some()),
        lambda: relay.slice_like(relay.concatenate([x, x], axis), p.some(), axes=[axis]),
        lambda: relay.squeeze(relay.expand_dims(x, axis % 5, 1), axis=[axis % 5]),
        lambda: relay.transpose(relay.transpose(x, [0, 2, 3, 1]), [0, 3, 1, 2]),
        lambda: relay.transpose(relay.nn.relu(relay.transpose(x)), [3, 2, 1, 0]),
        lambda: relay.layout_transform(
            relay.negative(relay.layout_transform(x, "NCHW", "NHWC")), "NHWC", "NCHW"),
        lambda: relay.layout_transform(relay.layout_transform(x, "NCHW", "HWNC"), "HWNC", "NCHW"),
        lambda: relay.broadcast_to(p.param((C, 1, 1)), SHAPE),
        lambda: relay.broadcast_to(relay.mean(x, axis=[axis], keepdims=True), SHAPE),
        lambda: relay.reshape(relay.nn.batch_flatten(x), SHAPE),
    ])()  # fmt: skip


def _collapsed(p: Program) -> Any:
    shape = p.one([SHAPE, (C, 1, 1), (1, C, 1, 1), (W,), (C, 1, W), (N, 1, 1, 1), ()])
    like = p.param(shape) if p.one([0, 1]) else p.some()
    if p.one([0, 1]):
        small = relay.collapse_sum_like(p.some(), like)
    else:
        small = relay.collapse_sum_to(p.some(), list(shape) if shape else [1])
    return relay.add(relay.negative(small), p.some())


def _resized(x: Any) -> Any:
    return relay.image.resize2d(
        x, (2 * H, 3 * W), method="nearest_neighbor", rounding_method="floor",
        coordinate_transformation_mode="asymmetric",
    )  # fmt: skip


def _pooled(p: Program) -> Any:
    x = p.some()
    window = {"pool_size": (3, 3), "strides": (1, 1), "padding": (1, 1)}
    return p.one([
        lambda: relay.nn.max_pool2d(x, **window),
        lambda: relay.nn.avg_pool2d(x, **window),
        lambda: relay.nn.avg_pool2d(x, **window, count_include_pad=True),
        lambda: relay.nn.max_pool2d_grad(p.some(), x, **window),
        lambda: relay.nn.avg_pool2d_grad(p.some(), x, **window),
        lambda: relay.add(p.some(), relay.nn.global_avg_pool2d(x)),
        lambda: relay.add(relay.nn.global_max_pool2d(x), p.some()),
        lambda: relay.add(p.some(), relay.nn.adaptive_avg_pool2d(x, (1, W))),
        lambda: relay.add(p.some(), relay.nn.adaptive_max_pool2d(x, (H, 1))),
        lambda: relay.nn.avg_pool2d(relay.nn.upsampling(x, 2, 2), (2, 2), (2, 2)),
        lambda: relay.nn.max_pool2d(_resized(x), (2, 3), (2, 3)),
    ])()  # fmt: skip


STEPS: list[Callable[[Program], Any]] = [
    _conv2d, _conv2d, _depth_multiplier, _transposed, _weight_gradient, _broadcast, _both, _where,
    _elementwise, _axis, _reduced, _shape, _collapsed, _pooled,
]  # fmt: skip
DESIRED = [
    {"nn.conv2d": ["NHWC", "OHWI"], "nn.conv2d_transpose": ["NHWC", "IHWO"],
     "nn.conv2d_backward_weight": ["NHWC", "OHWI"]},
    {"nn.conv2d": ["NHWC", "default"], "nn.conv2d_transpose": ["NHWC", "default"],
     "nn.conv2d_backward_weight": ["NHWC", "default"]},
    {"nn.conv2d": ["HWNC", "default"], "nn.conv2d_transpose": ["CNWH", "WOHI"],
     "nn.conv2d_backward_weight": ["WHCN", "HIWO"]},
    {"nn.conv2d": ["NHWC", "HWIO"]},
    {"nn.conv2d_transpose": ["NHWC", "IHWO"], "nn.max_pool2d": ["NHWC"], "nn.avg_pool2d": ["HWNC"]},
    {"nn.conv2d": ["NCHW", "OIHW"]},
]  # fmt: skip


def program(seed: int, steps: int) -> relay.IRModule:
    """A function of a convolution and so many steps; its results are some of their values."""
    p = Program(seed)
    for _ in range(steps):
        p.pool.append(p.one(STEPS)(p))
    body = p.pool[-1]
    if p.one([0, 1]):
        body = relay.Tuple((body, p.some()))
    mod = T.InferType()(relay.IRModule.from_expr(relay.Function(p.params, body)))
    return T.ToANormalForm()(mod) if p.one([0, 1]) else mod


def arrays(mod: relay.IRModule, seed: int = 0) -> dict[str, np.ndarray]:
    """Small whole numbers: sums of them are exact."""
    rng = np.random.default_rng(seed)
    return {
        p.name: rng.integers(-3, 4, p.type_annotation.shape).astype(p.type_annotation.dtype)
        if p.type_annotation.shape else np.float64(2)
        for p in mod["main"].params
    }  # fmt: skip
