"""Random calls of each framework, as Hypothesis strategies, and what they compute in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import reject
from hypothesis import strategies as st

from relay_wgrad.conventions import Conversion, common, cudnn, jax, keras, onnx, pytorch
from relay_wgrad.conventions.common import Quad
from relay_wgrad.layouts import ACTIVATION, to_layout
from relay_wgrad.problem import ConvKind
from tests.support.problems import torch_reference

Array = np.ndarray[Any, Any]

SMALL = st.integers(1, 4)
PAIR = st.tuples(SMALL, SMALL)
FORMATS = st.sampled_from(["channels_last", "channels_first"])


def _shape(draw: Any, channels: int, data_format: str) -> tuple[int, ...]:
    n, size = draw(st.integers(1, 2)), draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    return (n, *size, channels) if data_format == "channels_last" else (n, channels, *size)


@st.composite
def keras_conv(draw: Any) -> Conversion:
    data_format, groups = draw(FORMATS), draw(st.integers(1, 3))
    plain = draw(st.booleans())
    return keras.conv2d(
        _shape(draw, groups * draw(SMALL), data_format), groups * draw(SMALL), draw(PAIR),
        draw(PAIR) if plain else 1, draw(st.sampled_from(["same", "valid"])), data_format,
        1 if plain else draw(PAIR), groups, dtype="float64",
    )  # fmt: skip


@st.composite
def keras_transposed(draw: Any) -> Conversion:
    data_format, plain = draw(FORMATS), draw(st.booleans())
    strides = draw(PAIR) if plain else (1, 1)
    extra = st.tuples(*(st.integers(0, s - 1) for s in strides))
    return keras.conv2d_transpose(
        _shape(draw, draw(SMALL), data_format), draw(SMALL), draw(PAIR), strides,
        draw(st.sampled_from(["same", "valid"])), draw(st.none() | extra), data_format,
        (1, 1) if plain else draw(PAIR), dtype="float64",
    )  # fmt: skip


@st.composite
def onnx_conv(draw: Any) -> Conversion:
    group = draw(st.integers(1, 3))
    per, size = draw(SMALL), draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    auto = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    pads = draw(st.tuples(*[st.integers(0, 4)] * 4)) if auto == "NOTSET" else None
    return onnx.conv(
        (draw(st.integers(1, 2)), group * per, *size), (group * draw(SMALL), per, *draw(PAIR)),
        auto_pad=auto, group=group, pads=pads, strides=draw(PAIR), dilations=draw(PAIR),
        dtype="float64",
    )  # fmt: skip


@st.composite
def onnx_transposed(draw: Any) -> Conversion:
    group, per = draw(st.integers(1, 3)), draw(SMALL)
    size = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    strides, dilations = draw(PAIR), draw(PAIR)
    auto = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    limits = [max(s, d) - 1 for s, d in zip(strides, dilations, strict=True)]
    given: dict[str, Any] = {}
    if auto == "NOTSET" and draw(st.booleans()):
        given["pads"] = draw(st.tuples(*[st.integers(0, 4)] * 4))
    if draw(st.booleans()):
        given["output_shape"] = draw(st.tuples(st.integers(1, 24), st.integers(1, 24)))
    return onnx.conv_transpose(
        (draw(st.integers(1, 2)), group * per, *size), (group * per, draw(SMALL), *draw(PAIR)),
        auto_pad=auto, group=group, strides=strides, dilations=dilations,
        output_padding=draw(st.tuples(*(st.integers(0, limit) for limit in limits))),
        dtype="float64", **given,
    )  # fmt: skip


@st.composite
def pytorch_conv(draw: Any) -> Conversion:
    groups, per = draw(st.integers(1, 3)), draw(SMALL)
    size = draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    padding = draw(st.sampled_from(["same", "valid"]) | st.tuples(*[st.integers(0, 4)] * 2))
    return pytorch.conv2d(
        (draw(st.integers(1, 2)), groups * per, *size), (groups * draw(SMALL), per, *draw(PAIR)),
        1 if padding == "same" else draw(PAIR), padding, draw(PAIR), groups, dtype="float64",
    )  # fmt: skip


@st.composite
def pytorch_transposed(draw: Any) -> Conversion:
    groups, per = draw(st.integers(1, 3)), draw(SMALL)
    size = draw(st.tuples(st.integers(1, 6), st.integers(1, 6)))
    stride, dilation = draw(PAIR), draw(PAIR)
    limits = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
    return pytorch.conv_transpose2d(
        (draw(st.integers(1, 2)), groups * per, *size), (groups * per, draw(SMALL), *draw(PAIR)),
        stride, draw(st.tuples(*[st.integers(0, 3)] * 2)),
        draw(st.tuples(*(st.integers(0, limit) for limit in limits))), groups, dilation,
        dtype="float64",
    )  # fmt: skip


@st.composite
def jax_transposed(draw: Any) -> Conversion:
    size, transposed = draw(st.tuples(st.integers(1, 6), st.integers(1, 6))), draw(st.booleans())
    c, k = draw(SMALL), draw(SMALL)
    sides = st.tuples(*[st.tuples(*[st.integers(-2, 6)] * 2)] * 2)
    return jax.conv_transpose(
        (1, *size, c), (*draw(PAIR), *((k, c) if transposed else (c, k))), draw(PAIR),
        draw(st.sampled_from(["SAME", "VALID"]) | sides), draw(PAIR),
        transpose_kernel=transposed, use_consistent_padding=draw(st.booleans()), dtype="float64",
    )  # fmt: skip


CONVOLUTIONS = {"keras": keras_conv(), "onnx": onnx_conv(), "pytorch": pytorch_conv()}
TRANSPOSED = {
    "keras": keras_transposed(), "onnx": onnx_transposed(), "pytorch": pytorch_transposed(),
    "jax": jax_transposed(),
}  # fmt: skip

# Framework -> (writer, reader) of each kind.
WRITERS: dict[ConvKind, dict[str, tuple[Callable[..., Any], Callable[..., Conversion]]]] = {
    ConvKind.FPROP: {
        "keras": (keras.to_conv2d, keras.conv2d),
        "onnx": (onnx.to_conv, onnx.conv),
        "pytorch": (pytorch.to_conv2d, pytorch.conv2d),
    },
    ConvKind.DGRAD: {
        "keras": (keras.to_conv2d_transpose, keras.conv2d_transpose),
        "onnx": (onnx.to_conv_transpose, onnx.conv_transpose),
        "pytorch": (pytorch.to_conv_transpose2d, pytorch.conv_transpose2d),
        "jax": (jax.to_conv_transpose, jax.conv_transpose),
    },
}


REASONS = ("empty", "no tap", "P must be positive", "Q must be positive")


def valid(strategy: st.SearchStrategy[Conversion]) -> st.SearchStrategy[Conversion]:
    """Only the calls that have a result: the others are refused with a reason, tested elsewhere."""

    @st.composite
    def drawn(draw: Any) -> Conversion:
        try:
            return draw(strategy)
        except ValueError as error:
            if any(reason in str(error) for reason in REASONS):
                reject()
            raise

    return drawn()


def canonical(found: Conversion) -> Conversion:
    """The same computation in NCHW, OIHW, with taps in order, in the one form of its padding."""
    return common.normal(replace(common.in_layouts(found, cudnn.FORMATS["NCHW"]), turned=False))


def with_around(found: Conversion, around: Quad) -> Conversion:
    """A call together with what `Written.around` says, as one call again."""
    p = found.problem
    top, left, bottom, right = around
    if p.kind is ConvKind.FPROP:
        padding = tuple(a + b for a, b in zip(p.padding, around, strict=True))
        return replace(
            found, problem=replace(p, h=p.h - top - bottom, w=p.w - left - right, padding=padding)
        )
    total = tuple(a + b for a, b in zip(found.around, around, strict=True))
    return replace(found, around=total)


def compute(found: Conversion, x: Array, weight: Array) -> Array:
    """What a call gives for its input and its weight, both in its own layouts: by PyTorch."""
    p = replace(found.problem, kernel_layout="OIHW")
    made = torch_reference(p, x, found.to_oihw(weight).copy())
    letters = p.layout(p.roles[2])
    top, left, bottom, right = found.around
    width = to_layout(((0, 0), (0, 0), (top, bottom), (left, right)), ACTIVATION, letters)
    return np.pad(made, width)


def normals(*shapes: tuple[int, ...], seed: int = 0) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape) for shape in shapes]
