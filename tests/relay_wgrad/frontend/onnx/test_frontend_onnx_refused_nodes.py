"""Single nodes that `from_onnx` refuses: what is wrong with each, in its own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relay_wgrad.frontend import from_onnx
from tests.support.onnx.models import draw, node, tiny

IMAGES, MATRIX, LINES = (2, 3, 4, 4), (2, 6), (2, 4, 6)
WEIGHTS: dict[str, np.ndarray] = {
    "i0": np.array(0), "i9": np.array(9), "ones": np.array([1, 1]),
    "zeros": np.array([0, 0, 0]), "axes": np.array([0, 0]), "two": np.array([2, 2]),
    "deep": np.zeros((1, 5), "int64"), "floats": draw(2),
    "ends": np.array([0.0, 1.0]), "pads": np.array([1, 1, 1]), "parts": np.array([1, 1]),
    "w": draw(5, 3, 3, 3), "flat": draw(4, 3), "vector": draw(3), "slope": draw(2, 3, 4, 4, 4),
    "scale": draw(2), "few": np.array([1, 2], "float32"),
    "tiny": np.array([1, 1, 0.1, 1], "float32"), "sizes": np.array([2, 2, 2]),
    "volume": np.array([1, 1, 3, 4, 4]), "rows": draw(1, 20, 3), "again": draw(1, 20, 5),
    "short": np.array([1, 2, 1, 2], "int32"), "axis0": np.array([1]),
    "one": draw(1, 3, 3, 3), "turned": draw(3, 1, 3, 3),
}  # fmt: skip

CASES: list[tuple[str, tuple[int, ...], Any]] = [
    # shapes
    ("axis 4 of a tensor with 4 axes", IMAGES, node("Gather", "i0", axis=4)),
    ("copies an axis that [2, 6] lacks", MATRIX, node("Reshape", "zeros")),
    ("axes [1] of [2, 6] are not all of size 1", MATRIX, node("Squeeze", "axis0")),
    ("axes [0, 0] name one twice", MATRIX, node("Unsqueeze", "axes")),
    ("mode 'mirror': only constant, reflect", MATRIX, node("Pad", "pads", mode="mirror")),
    ("pads [1, 1, 1]: expected two for each", MATRIX, node("Pad", "pads")),
    ("shape [1, 1]: expected a size for each", IMAGES, node("CenterCropPad", "ones")),
    ("expected as many of both", MATRIX, node("Slice", "ones", "zeros")),
    ("expected 2 of each", MATRIX, node("Slice", "ones", "two", "axis0")),
    ("starts=9: expected a vector", MATRIX, node("Slice", "i9", "i9")),
    ("repeats [1, 1] of [2, 3, 4, 4]", IMAGES, node("Tile", "ones")),
    ("blocksize=2 of [2, 6]: expected (N, C, H, W)", MATRIX, node("DepthToSpace", blocksize=2)),
    ("3 channels are no multiple of 4", IMAGES, node("DepthToSpace", blocksize=2)),
    ("4x4 pixels are no multiple of 3", IMAGES, node("SpaceToDepth", blocksize=3)),
    ("sizes [1, 1] do not split an axis of 6", MATRIX, node("SplitToSequence", "parts", axis=1)),
    ("keepdims=0 is not supported", MATRIX, node("SplitToSequence", keepdims=0)),
    # indices
    ("indices are float32: expected integers", MATRIX, node("OneHot", "i9", "ends")),
    ("indices of [1, 5] do not fit [2, 6], batch_dims=0", MATRIX, node("GatherND", "deep")),
    ("indices of [1, 5] do not fit [2, 6]", MATRIX, node("ScatterND", "deep", "floats")),
    ("indices of [2] do not fit [2, 6]", MATRIX, node("GatherElements", "ones")),
    ("expected matrices, got [6]", (6,), node("Trilu")),
    ("select_last_index=1 is not supported", MATRIX, node("ArgMax", select_last_index=1)),
    ("size [1, 1, 3, 4, 4]: only images", (1, 3, 4), node("AffineGrid", "volume")),
    # elementwise
    ("a slope of [2, 3, 4, 4, 4] is not broadcast to", IMAGES, node("PRelu", "slope")),
    ("approximate='erf': expected 'none' or 'tanh'", MATRIX, node("Gelu", approximate="erf")),
    ("infinities of one sign alone", MATRIX, node("IsInf", detect_negative=0)),
    ("to=8: only floats", MATRIX, node("Cast", to=8)),
    ("dtype=7: only floats are supported", MATRIX, node("RandomNormalLike", dtype=7)),
    # windows, pools and resizes
    ("one number for each of 5 channels, got shape [2]", IMAGES, node("Conv", "w", "scale")),
    ("one number for each of 1 channels, got shape [3]", IMAGES, node("Conv", "one", "vector")),
    ("B must have one number for each of 3 channels, got shape [2]", IMAGES,
     node("ConvTranspose", "turned", "scale", group=3)),
    ("expected 3 to 5 axes, got shape [2, 6]", MATRIX, node("MaxPool", kernel_shape=[2])),
    ("p=0: must be at least 1", IMAGES, node("LpPool", p=0, kernel_shape=[2, 2])),
    ("ceil_mode=1 is not supported", IMAGES, node("LpPool", ceil_mode=1, kernel_shape=[2, 2])),
    ("pads=[1, 1]: expected 4 sizes", IMAGES, node("MaxPool", kernel_shape=[2, 2], pads=[1, 1])),
    ("unknown auto_pad 'SAME'", IMAGES, node("MaxPool", kernel_shape=[2, 2], auto_pad="SAME")),
    ("scales or sizes are missing", IMAGES, node("Resize")),
    ("expected a positive number for each of", IMAGES, node("Resize", "", "few")),
    ("axis 2 of 4 elements would be empty, scale 0.1", IMAGES, node("Resize", "", "tiny")),
    ("sizes [2, 2, 2] and [2, 2]: only images", (1, 4, 9), node("Col2Im", "sizes", "two")),
    # layers
    ("weight of shape [4, 3]: must have as many axes as the data, 4", IMAGES, node("Conv", "flat")),
    ("expected 3 to 5 axes, got shape [2, 4]", (2, 4), node("Conv", "flat")),
    ("expected matrices, got [2, 3, 4, 4] and [4, 3]", IMAGES, node("Gemm", "flat")),
    ("statistics [2] do not fit 3 channels", IMAGES,
     node("BatchNormalization", "scale", "scale", "scale", "scale")),
    ("expected at least 3 axes, got shape [2, 6]", MATRIX,
     node("InstanceNormalization", "vector", "vector")),
    ("axes [0, 0] of a tensor with 2 axes", MATRIX, node("ReduceSum", "axes")),
    ("axis 2, p=2 of a tensor with 2 axes", MATRIX, node("LpNormalization", axis=2)),
    # attention and recurrent layers
    ("4 heads do not divide 6 features", LINES,
     node("Attention", "x", "x", q_num_heads=4, kv_num_heads=2)),
    ("2 heads of keys do not divide 3 of queries", LINES,
     node("Attention", "x", "x", q_num_heads=3, kv_num_heads=2)),
    ("past_key is not supported", LINES,
     node("Attention", "x", "x", "", "x", q_num_heads=2, kv_num_heads=2)),
    ("activations ['Elu']: expected 1 of Tanh or Relu", (3, 4, 3),
     node("RNN", "rows", "again", activations=["Elu"])),
    ("peepholes and input_forget=1", (3, 4, 3), node("LSTM", "rows", "again", input_forget=1)),
    ("layout=1 is not supported", (3, 4, 3), node("LSTM", "rows", "again", layout=1)),
    ("sequences of other lengths than 3", (3, 4, 3), node("LSTM", "rows", "again", "", "short")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("message", "shape", "made"),
    CASES,
    ids=[f"{m.op_type}-{i}" for i, (_, _, m) in enumerate(CASES)],
)
def test_refused(message: str, shape: tuple[int, ...], made: Any) -> None:
    given = {name: WEIGHTS[name] for name in made.input if name in WEIGHTS}
    with pytest.raises(ValueError) as caught:
        from_onnx(tiny([made], shape, given, opset=23), loss="mse")
    assert message in str(caught.value)
    assert f"{made.op_type} node 'y'" in str(caught.value)
