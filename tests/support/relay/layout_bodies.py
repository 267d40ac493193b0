"""Programs of one convolution for conversions of layout, and what they compute."""

from __future__ import annotations

import numpy as np

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.text import fromtext
from tests.support.relay.evaluate import evaluate
from tests.support.relay.texts import HEADER
from tests.support.relay.unchanged import flat

PARAMS = """%x: Tensor[(2, 4, 6, 8), float32], %w: Tensor[(4, 4, 3, 3), float32],
  %c: Tensor[(4, 1, 1), float32], %b: Tensor[(4), float32]"""


X = "Tensor[(2, 4, 6, 8), float32]"


# A convolution, and what it is in NHWC.
OLD = "nn.conv2d(%x, %w, padding=[1, 1, 1, 1])"


IN = 'layout_transform(%x, src_layout="NCHW", dst_layout="NHWC")'


FILTERS = 'layout_transform(%w, src_layout="OIHW", dst_layout="OHWI")'


NEW = f'nn.conv2d({IN}, {FILTERS}, padding=[1, 1, 1, 1], data_layout="NHWC", kernel_layout="OHWI")'


def back(node: str) -> str:
    return f'layout_transform({node}, src_layout="NHWC", dst_layout="NCHW")'


def module(body: str) -> relay.IRModule:
    return T.InferType()(fromtext(f"{HEADER}def @main({PARAMS}) {{ {body} }}"))


def equal(got: relay.IRModule, body: str) -> bool:
    return bool(relay.structural_equal(got, module(body)))


def unchanged_numbers(before: relay.IRModule, after: relay.IRModule) -> None:
    rng = np.random.default_rng(1)
    inputs = {
        p.name: rng.integers(1, 5, p.type_annotation.shape).astype("float32")
        for p in before["main"].params
    }
    got, want = (evaluate(mod["main"], inputs) for mod in (after, before))
    for ours, theirs in zip(flat(got), flat(want), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
