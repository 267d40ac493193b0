"""Conventions there and back, and against the frameworks that are there: PyTorch and ONNX."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx as onnx_package
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from torch.nn import functional

from relay_wgrad.conventions import Conversion, cudnn, jax, keras, onnx, pytorch
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.convention_cases import (
    CONVOLUTIONS,
    TRANSPOSED,
    WRITERS,
    canonical,
    compute,
    normals,
    valid,
    with_around,
)

# Calls without a result are drawn again, and there may be many.
SETTINGS = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
EVERY = st.one_of(*(valid(s) for s in (*CONVOLUTIONS.values(), *TRANSPOSED.values())))
EVERY_TRANSPOSED = st.one_of(*(valid(s) for s in TRANSPOSED.values()))


@pytest.mark.parametrize("name", WRITERS[ConvKind.DGRAD])
@SETTINGS
@given(found=EVERY)
def test_there_and_back(name: str, found: Conversion) -> None:
    """Written for any framework and read again it is the same problem."""
    writers = WRITERS[found.problem.kind]
    if name not in writers:
        return
    writer, reader = writers[name]
    p = found.problem
    if name in ("keras", "jax") and p.kind is ConvKind.DGRAD and p.groups > 1:
        with pytest.raises(ValueError, match="one group, got groups="):
            writer(found)
        return
    if name == "keras" and max(p.strides) > 1 and max(p.dilation) > 1:
        with pytest.raises(ValueError, match="strides above 1 with dilation_rate above 1"):
            writer(found)
        return
    written = writer(found)
    again = reader(**written.arguments)
    assert canonical(with_around(again, written.around)) == canonical(found)


@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_frameworks_own_calls_need_nothing_around(name: str) -> None:
    @SETTINGS
    @given(found=valid(TRANSPOSED[name]))
    def check(found: Conversion) -> None:
        writer, reader = WRITERS[ConvKind.DGRAD][name]
        extra = {"transpose_kernel": not found.turned} if name == "jax" else {}
        if name == "keras":
            extra["data_format"] = (
                "channels_last" if found.problem.data_layout == "NHWC" else "channels_first"
            )
        written = writer(found, **extra)
        # ONNX may ask for zeros, by an output_shape, that no pads can say.
        if name != "onnx" or not any(found.around):
            assert written.around == (0, 0, 0, 0)
        again = reader(**written.arguments)
        assert with_around(again, written.around).output_shape == found.output_shape
        assert replace(again, around=found.around) == found

    check()


@SETTINGS
@given(found=EVERY, format=st.sampled_from(["NCHW", "NHWC"]))
def test_cudnn_there_and_back(found: Conversion, format: str) -> None:  # noqa: A002
    for kind in (found.problem.kind, ConvKind.WGRAD):
        # A weight gradient has nothing around its result.
        one = replace(found, problem=found.problem.with_kind(kind))
        one = one if kind is ConvKind.DGRAD else replace(one, around=(0, 0, 0, 0))
        written = cudnn.to_descriptors(one, format)
        assert canonical(cudnn.from_descriptors(written)) == canonical(one)
        if kind is not ConvKind.DGRAD:
            assert min(written.around) >= 0


def by_cudnns_words(d: cudnn.Descriptors, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """`cudnnConvolutionBackwardData` of canonical tensors, by PyTorch's own backward function."""
    out = torch.ops.aten.convolution_backward(
        torch.from_numpy(y), torch.empty(d.x, dtype=torch.float64), torch.from_numpy(w), None,
        list(d.stride), list(d.pad), list(d.dilation), False, [0, 0], d.groups,
        [True, False, False],
    )[0]  # fmt: skip
    top, left, bottom, right = d.around
    return functional.pad(out, (left, right, top, bottom)).numpy()


@SETTINGS
@given(found=EVERY_TRANSPOSED)
def test_cudnn_computes_it(found: Conversion) -> None:
    """The descriptors' K, C and padding mean to cuDNN's definition what the call meant."""
    d = cudnn.to_descriptors(found, "NCHW")
    x, weight = normals(found.input_shape, found.weight_shape)
    last = found.problem.grad_layout == "NHWC"
    y = np.ascontiguousarray(x.transpose(0, 3, 1, 2) if last else x)
    got = by_cudnns_words(d, y, found.to_oihw(weight).copy())
    want = compute(found, x, weight)
    if last:
        want = want.transpose(0, 3, 1, 2)
    np.testing.assert_allclose(got, want, atol=1e-12)


# ---- PyTorch ---------------------------------------------------------------------------------


@SETTINGS
@given(found=valid(st.one_of(TRANSPOSED["pytorch"], CONVOLUTIONS["pytorch"])))
def test_against_pytorch(found: Conversion) -> None:
    transposed = found.problem.kind is ConvKind.DGRAD
    written = WRITERS[found.problem.kind]["pytorch"][0](found)
    x, weight = normals(found.input_shape, found.weight_shape)
    function = functional.conv_transpose2d if transposed else functional.conv2d
    if transposed:
        assert not any(written.around)
    top, left, bottom, right = written.around
    padded = functional.pad(torch.from_numpy(x), (left, right, top, bottom))
    got = function(padded, torch.from_numpy(weight), **written.call).numpy()
    assert got.shape == found.output_shape
    np.testing.assert_allclose(got, compute(found, x, weight), atol=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_pytorch_readers(seed: int) -> None:
    """The arguments as a user writes them, `output_size` of the module among them."""
    rng = np.random.default_rng(seed)

    def pair(low: int, high: int) -> tuple[int, int]:
        a, b = rng.integers(low, high, 2)
        return int(a), int(b)

    groups, kernel, stride, dilation = int(rng.integers(1, 4)), pair(1, 5), pair(1, 4), pair(1, 4)
    padding, per, made = pair(0, 3), *pair(1, 4)
    x, weight = normals((2, groups * per, *pair(3, 8)), (groups * per, made, *kernel), seed=seed)
    base = functional.conv_transpose2d(
        torch.from_numpy(x), torch.from_numpy(weight), None, stride, 0, 0, groups, dilation
    ).shape[2:]
    if any(b - 2 * p < 1 for b, p in zip(base, padding, strict=True)):
        padding = (0, 0)
    if seed % 2:
        extra = tuple(
            int(rng.integers(0, max(s, d))) for s, d in zip(stride, dilation, strict=True)
        )
        want = functional.conv_transpose2d(
            torch.from_numpy(x), torch.from_numpy(weight), None, stride, padding, extra, groups,
            dilation,
        )  # fmt: skip
        found = pytorch.conv_transpose2d(
            x.shape, weight.shape, stride, padding, extra, groups, dilation, dtype="float64"
        )
    else:
        layer = torch.nn.ConvTranspose2d(
            groups * per, groups * made, kernel, stride, padding, 0, groups, False, dilation,
            dtype=torch.float64,
        )  # fmt: skip
        layer.weight.data = torch.from_numpy(weight)
        size = [
            b - 2 * p + int(rng.integers(0, s))
            for b, p, s in zip(base, padding, stride, strict=True)
        ]
        want = layer(torch.from_numpy(x), output_size=size)
        found = pytorch.conv_transpose2d(
            x.shape, weight.shape, stride, padding, groups=groups, dilation=dilation,
            output_size=size, dtype="float64",
        )  # fmt: skip
    assert found.output_shape == tuple(want.shape)
    np.testing.assert_allclose(compute(found, x, weight), want.detach().numpy(), atol=1e-12)


def test_a_call_has_no_tensors_arguments() -> None:
    """What is left for the framework itself, of each writer."""
    for kind, writers in WRITERS.items():
        p = DGRAD.with_kind(kind)
        for writer, _ in writers.values():
            written = writer(p)
            dropped = [name for name in written.arguments if name not in written.call]
            assert all(name.endswith("_shape") or name == "dtype" for name in dropped)
            assert not any(name.endswith("_shape") for name in written.call)
            assert len(dropped) == 2 + ("filters" not in written.arguments)


def test_the_former_name_of_around() -> None:
    found = keras.conv2d_transpose((1, 5, 5, 1), 1, 3, 2, "same")
    for one in (found, pytorch.to_conv_transpose2d(found)):
        with pytest.warns(DeprecationWarning, match=r"\.pad is now .*\.around"):
            assert one.pad == one.around


# ---- ONNX ------------------------------------------------------------------------------------


def evaluated(op: str, x: np.ndarray, w: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """A node's result by ONNX's own evaluator."""
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], **attributes)],
        "node",
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in ("x", "w")],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)],
    )
    model = helper.make_model(graph, opset_imports=[onnx_package.helper.make_opsetid("", 21)])
    (result,) = ReferenceEvaluator(model).run(None, {"x": x, "w": w})
    return np.asarray(result)


@pytest.mark.parametrize("seed", range(80))
def test_onnx_readers(seed: int) -> None:
    """Nodes of one group with every attribute.  What ONNX's evaluator cannot do is left to PyTorch
    and to the node tests: groups, an output_shape with auto_pad NOTSET, an output padding of a
    stride or more, and a padding that comes out negative."""
    rng = np.random.default_rng(seed)
    pair = [[int(v) for v in rng.integers(1, 4, 2)] for _ in range(3)]
    op = ("Conv", "ConvTranspose")[seed % 2]
    auto = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")[seed // 2 % 4]
    attributes: dict[str, Any] = {"strides": pair[0], "dilations": pair[1], "auto_pad": auto}
    if auto.startswith("SAME") and op == "Conv":
        attributes["dilations"] = [1, 1]  # else the evaluator pads as if there were none
    channels, made = (int(v) for v in rng.integers(1, 4, 2))
    shape = (channels, made, *pair[2]) if op == "ConvTranspose" else (made, channels, *pair[2])
    x, w = normals((2, channels, *(int(v) for v in rng.integers(7, 10, 2))), shape, seed=seed)
    if auto == "NOTSET":
        attributes["pads"] = [int(v) for v in rng.integers(0, 3, 4)]
    if op == "ConvTranspose":
        ends = [d * (r - 1) + 1 for r, d in zip(pair[2], pair[1], strict=True)]
        strides = pair[0]
        if auto.startswith("SAME"):
            strides = [min(s, e) for s, e in zip(strides, ends, strict=True)]
        attributes["strides"] = strides
        attributes["output_padding"] = [int(rng.integers(0, stride)) for stride in strides]
        if auto.startswith("SAME") and seed % 3 == 0:
            full = [(p - 1) * s + e for p, s, e in zip(x.shape[2:], strides, ends, strict=True)]
            attributes["output_shape"] = [int(rng.integers(n - 3, n + 1)) for n in full]
    reader = onnx.conv if op == "Conv" else onnx.conv_transpose
    found = reader(x.shape, w.shape, **attributes, dtype="float64")
    want = evaluated(op, x, w, attributes)
    assert found.output_shape == want.shape
    np.testing.assert_allclose(compute(found, x, w), want, atol=1e-12)


def test_onnx_zeros_where_more_is_asked_for() -> None:
    found = onnx.conv_transpose(
        (1, 1, 2, 2), (1, 1, 1, 1), strides=[1, 1], output_shape=[2, 4], dtype="float64"
    )
    assert found.around == (0, 0, 0, 2)
    x, w = normals((1, 1, 2, 2), (1, 1, 1, 1))
    np.testing.assert_array_equal(compute(found, x, w), np.pad(x * w, ((0, 0),) * 3 + ((0, 2),)))


# ---- weights ---------------------------------------------------------------------------------


def test_weights_between_frameworks() -> None:
    """One transposed convolution from 5 to 3 channels: each framework's memory of its weight."""
    layer = keras.conv2d_transpose((1, 4, 4, 5), 3, (2, 4), 2)
    (weight,) = normals(layer.weight_shape)
    assert layer.weight_shape == (2, 4, 3, 5)
    wanted = weight.transpose(3, 2, 0, 1)
    np.testing.assert_array_equal(layer.to_oihw(weight), wanted)
    np.testing.assert_array_equal(layer.from_oihw(wanted), weight)
    theirs = {
        name: reader(**writer(layer).arguments).from_oihw(wanted)
        for name, (writer, reader) in WRITERS[ConvKind.DGRAD].items()
    }
    np.testing.assert_array_equal(theirs["keras"], weight)
    np.testing.assert_array_equal(theirs["onnx"], wanted)
    np.testing.assert_array_equal(theirs["pytorch"], wanted)
    assert theirs["jax"].shape == (2, 4, 5, 3)
    np.testing.assert_array_equal(theirs["jax"], weight[::-1, ::-1].swapaxes(2, 3))
    d = cudnn.to_descriptors(layer)
    assert d.w == (5, 3, 2, 4)
    assert d.filter_shape == (5, 2, 4, 3)
    np.testing.assert_array_equal(
        cudnn.from_descriptors(d).from_oihw(wanted), wanted.transpose(0, 2, 3, 1)
    )


# ---- refusals --------------------------------------------------------------------------------

DGRAD = ConvProblem.parse("dgrad n=1 c=2 h=5 w=5 k=3 r=3 s=3 stride=2,2 pad=1,1,1,1")
TWO = cudnn.to_descriptors(DGRAD)
X, W = (1, 2, 5, 5), (2, 3, 3, 3)

REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "keras filters": (lambda: keras.conv2d((1, 5, 5, 2), 0, 3), ValueError,
        "Keras Conv2D: filters must be at least 1, got filters=0"),
    "keras padding": (lambda: keras.conv2d_transpose((1, 5, 5, 2), 3, 3, padding="full"),
        ValueError, "Keras Conv2DTranspose: padding must be one of valid, same, got 'full'"),
    "keras padding type": (lambda: keras.conv2d((1, 5, 5, 2), 3, 3, padding=1), TypeError,
        "Keras Conv2D: padding must be a string, got 1"),
    "keras shape": (lambda: keras.conv2d((1, 5, 5), 3, 3), ValueError,
        "input_shape must have 4 sizes, got 3: [1, 5, 5]"),
    "keras batch": (lambda: keras.conv2d((None, 5, 5, 2), 3, 3), TypeError,
        "Keras Conv2D: input_shape's sizes must be known, got (None, 5, 5, 2)"),
    "keras shape type": (lambda: keras.conv2d(5, 3, 3), TypeError,
        "input_shape must be a sequence of 4 sizes, got 5"),
    "keras output padding": (lambda: keras.conv2d_transpose((1, 5, 5, 2), 3, 3, 2,
        output_padding=2), ValueError,
        "output_padding must be less than strides, got (2, 2) and (2, 2)"),
    "keras dilation": (lambda: keras.conv2d_transpose((1, 5, 5, 2), 3, 3, 2, dilation_rate=2),
        ValueError, "strides above 1 and dilation_rate above 1 exclude each other, got (2, 2) and"),
    "keras groups": (lambda: keras.conv2d((1, 5, 5, 4), 3, 3, groups=2), ValueError,
        "Keras Conv2D: groups must divide K, got K=3, groups=2"),
    "keras groups below 1": (lambda: keras.conv2d((1, 5, 5, 4), 3, 3, groups=0), ValueError,
        "groups must be at least 1, got groups=0"),
    "keras window": (lambda: keras.conv2d((1, 2, 5, 4), 3, 3), ValueError,
        "P must be positive, got P=0 from H=2, R=3, padding 0 in all, stride 1, dilation 1"),
    "keras strides": (lambda: keras.conv2d((1, 5, 5, 4), 3, 3, (1, 0)), ValueError,
        "strides must be at least 1, got strides=[1, 0]"),
    "keras data_format": (lambda: keras.conv2d((1, 5, 5, 4), 3, 3, data_format="NHWC"), ValueError,
        "data_format must be one of channels_last, channels_first, got 'NHWC'"),
    "keras empty": (lambda: keras.conv2d_transpose((1, 1, 5, 2), 3, 2, 2, "same", (0, 0)),
        ValueError, "the output would be empty, its height 0"),
    "keras dtype": (lambda: keras.conv2d((1, 5, 5, 4), 3, 3, dtype="int8"), ValueError,
        "dtype must be one of float16, bfloat16, float32, float64, got 'int8'"),
    "onnx channels": (lambda: onnx.conv_transpose(X, (3, 2, 3, 3)), ValueError,
        "X and W must have the same channels K, got X K=2 and W K=3"),
    "onnx group": (lambda: onnx.conv(X, (4, 2, 3, 3), group=2), ValueError,
        "(group=2), got X C=2 and W C/group * group=4"),
    "onnx kernel_shape": (lambda: onnx.conv(X, (4, 2, 3, 3), kernel_shape=[3, 2]), ValueError,
        "kernel_shape must be W's, got [3, 2] and [3, 3]"),
    "onnx pads": (lambda: onnx.conv(X, (4, 2, 3, 3), pads=[1, 1]), ValueError,
        "pads must have 4 values, got 2: [1, 1]"),
    "onnx negative pads": (lambda: onnx.conv(X, (4, 2, 3, 3), pads=[0, 0, -1, 0]), ValueError,
        "pads must be at least 0, got pads=[0, 0, -1, 0]"),
    "onnx both": (lambda: onnx.conv(X, (4, 2, 3, 3), pads=[1] * 4, auto_pad="VALID"), ValueError,
        "pads and auto_pad exclude each other, got [1, 1, 1, 1] and VALID"),
    "onnx auto_pad": (lambda: onnx.conv(X, (4, 2, 3, 3), auto_pad="SAME"), ValueError,
        "auto_pad must be one of NOTSET, SAME_UPPER, SAME_LOWER, VALID, got 'SAME'"),
    "onnx output padding": (lambda: onnx.conv_transpose(X, W, output_padding=1), ValueError,
        "output_padding must be less than strides or dilations, got (1, 1) with (1, 1) and (1, 1)"),
    "onnx output shape": (lambda: onnx.conv_transpose(X, W, output_shape=[7]), ValueError,
        "output_shape must have 2 sizes, got [7]"),
    "onnx nothing left": (lambda: onnx.conv_transpose((1, 2, 1, 5), (2, 3, 1, 1), pads=[1, 0, 0, 0],
        dilations=3, output_padding=[2, 0]), ValueError,
        "no tap reaches the output, whose height starts at row 1 of 1"),
    "pytorch channels": (lambda: pytorch.conv_transpose2d(X, (3, 2, 3, 3)), ValueError,
        "input and weight must have the same channels K, got input K=2 and weight K=3"),
    "pytorch same": (lambda: pytorch.conv2d(X, (4, 2, 3, 3), 2, "same"), ValueError,
        "padding 'same' needs stride 1, got (2, 2)"),
    "pytorch output size": (lambda: pytorch.conv_transpose2d(X, W, 2, output_size=(11, 13)),
        ValueError, "output_size must be from 11 to 12 for stride 2, got 13"),
    "pytorch output padding": (lambda: pytorch.conv_transpose2d(X, W, 2, 0, 2), ValueError,
        "output_padding must be less than stride or dilation, got (2, 2) with (2, 2) and (1, 1)"),
    "jax numbers": (lambda: jax.conv_transpose((1, 5, 5, 2), (3, 3, 2, 3), 1, "SAME",
        dimension_numbers=("NHWC", "HWCO", "NHWC")), ValueError,
        "dimension_numbers of rhs must permute OIHW, got 'HWCO'"),
    "jax channels": (lambda: jax.conv_transpose((1, 5, 5, 2), (3, 3, 3, 2), 1, "SAME"), ValueError,
        "lhs and rhs must have the same channels K, got lhs K=2 and rhs K=3"),
    "cudnn y": (lambda: cudnn.from_descriptors(replace(TWO, y=(1, 3, 4, 3))), ValueError,
        "Data: y must be what x and w make, got [1, 3, 4, 3] and [1, 3, 3, 3]"),
    "cudnn k": (lambda: cudnn.from_descriptors(replace(TWO, w=(2, 3, 3, 3))), ValueError,
        "(groups=1), got x C=2 and w C/groups * groups=3"),
    "cudnn function": (lambda: cudnn.from_descriptors(replace(TWO, function="conv")), ValueError,
        "function must be one of cudnnConvolutionForward, "),
    "to cudnn": (lambda: cudnn.to_descriptors("fprop"), TypeError,
        "to cuDNN: expected a Conversion or a ConvProblem, got 'fprop'"),
    "kind": (lambda: onnx.to_conv(DGRAD), ValueError,
        "to ONNX Conv: the problem must be a fprop, got dgrad"),
    "layout": (lambda: onnx.to_conv_transpose(replace(DGRAD, kernel_layout="OIHH")), ValueError,
        "weight's layout must permute OIHW, got OIHH"),
    "mixed": (lambda: onnx.to_conv_transpose(replace(DGRAD, grad_dtype="float16")), ValueError,
        "all tensors must be of one dtype"),
    "weight shape": (lambda: onnx.conv_transpose(X, W).to_oihw(np.zeros((3, 2, 3, 3))), ValueError,
        "the weight must have shape (2, 3, 3, 3), got (3, 2, 3, 3)"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        call()
    assert words in str(caught.value)
