"""Layouts with blocks: types, text, and the numbers of the same program in the plain layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relay_wgrad import relay
from relay_wgrad.relay import transform as T

RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 8, 6, 5))


def computed(expr: Any, **values: np.ndarray[Any, Any]) -> Any:
    params = relay.analysis.free_vars(expr)
    function = relay.Function(params, expr)
    mod = relay.fromtext(relay.astext(relay.IRModule.from_expr(function)))
    executor = relay.create_executor("graph", mod)
    return executor.evaluate()(*(values[p.name] for p in params)).numpy()


def image() -> Any:
    return relay.var("x", shape=X.shape, dtype="float64")


def moved(x: Any, src: str, dst: str) -> Any:
    return relay.layout_transform(x, src, dst)


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("data", "kernel", "out", "groups"),
    [
        ("NCHW4c", "OIHW4i2o", "", 1), ("NCHW2c", "OIHW", "NHWC", 1),
        ("NHWC8c", "OHWI4i2o2i", "NCHW4c", 1), ("NCHW", "HWIO3o", "NCHW2c", 2),
        ("N2nCHW", "OIHW2o3o", "", 8), ("NCHW2c2c", "OIHW", "", 1),
    ],
)  # fmt: skip
def test_convolutions(data: str, kernel: str, out: str, groups: int) -> None:
    filters = 24 if groups == 8 else 12
    w_data = RNG.standard_normal((filters, 8 // groups, 3, 3))
    x, w = image(), relay.var("w", shape=w_data.shape, dtype="float64")
    settings = {"padding": (1, 0), "strides": (2, 1), "groups": groups, "channels": filters}
    want = computed(relay.nn.conv2d(x, w, **settings), x=X, w=w_data)
    y = relay.nn.conv2d(
        moved(x, "NCHW", data), moved(w, "OIHW", kernel), data_layout=data, kernel_layout=kernel,
        out_layout=out, **settings,
    )  # fmt: skip
    got = computed(moved(y, out or data, "NCHW"), x=X, w=w_data)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


POOLS = {
    "max": lambda x, **k: relay.nn.max_pool2d(x, (3, 2), strides=(2, 2), padding=(1, 0), **k),
    "avg": lambda x, **k: relay.nn.avg_pool2d(x, (3, 2), ceil_mode=True, padding=(1, 1), **k),
    "global max": relay.nn.global_max_pool2d,
    "global avg": relay.nn.global_avg_pool2d,
    "adaptive max": lambda x, **k: relay.nn.adaptive_max_pool2d(x, (3, 5), **k),
    "adaptive avg": lambda x, **k: relay.nn.adaptive_avg_pool2d(x, (4, 2), **k),
    "upsampling": lambda x, **k: relay.nn.upsampling(x, 2, 3, **k),
    "bilinear": lambda x, **k: relay.nn.upsampling(x, 2, 1.5, method="bilinear", **k),
}


@pytest.mark.share(5)  # both layouts
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("layout", ["NCHW4c", "NHWC2c"])
def test_pools(name: str, layout: str) -> None:
    want = computed(POOLS[name](image()), x=X)
    blocked = POOLS[name](moved(image(), "NCHW", layout), layout=layout)
    got = computed(moved(blocked, layout, "NCHW"), x=X)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_an_axis_split_twice() -> None:
    x = relay.var("x", shape=(4, 12), dtype="float64")
    data = np.arange(48.0).reshape(4, 12)
    got = computed(moved(x, "OI", "IO3i2o2i"), x=data)
    assert got.shape == (2, 2, 3, 2, 2)
    want = data.reshape(2, 2, 2, 3, 2).transpose(2, 0, 3, 1, 4)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(
        computed(moved(moved(x, "OI", "IO3i2o2i"), "IO3i2o2i", "OI"), x=data), data
    )


@pytest.mark.longer
def test_gradients() -> None:
    x = relay.var("x", shape=(1, 1, 5, 4, 2), dtype="float64")
    w = relay.var("w", shape=(2, 1, 3, 3, 2, 2), dtype="float64")
    y = relay.nn.conv2d(
        x, w, padding=1, data_layout="NCHW2c", kernel_layout="OIHW2o2i", out_layout="NHWC4c"
    )
    relay.testing.check_grad(relay.Function([x, w], y), atol=1e-4)
    pooled = relay.nn.avg_pool2d(x, (2, 2), layout="NCHW2c")
    relay.testing.check_grad(relay.Function([x], pooled), atol=1e-4)


def refused(expr: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        T.InferType()(relay.IRModule.from_expr(expr))


def test_refusals() -> None:
    w = relay.var("w", shape=(4, 8, 3, 3))
    x = relay.var("x", shape=(1, 2, 6, 6, 4))
    refused(relay.nn.conv2d(x, w, data_layout="NCHW3c"), "has a block of 3")
    refused(relay.nn.conv2d(x, w, data_layout="NCHW4h"), "convertible from NCHW")
    refused(relay.nn.conv2d(x, w, data_layout="NCHW4c", out_layout="NCHW3c"), "blocks of 3")
    refused(relay.nn.conv2d(x, w, data_layout="NCHW2c2c"), "has 6 axes")
    refused(relay.nn.max_pool2d(x, layout="NCHW4h"), "cannot be split")
    refused(relay.nn.conv2d_transpose(x, w, data_layout="NCHW4c"), "convertible from NCHW")
