"""Type relations: unknown sizes, refusals and their words, attributes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from relay_wgrad import relay
from relay_wgrad.relay.lower import lower
from relay_wgrad.relay.records import REGISTRY, REQUIRED, Attr, lookup
from relay_wgrad.relay.types import ANY, TensorType, TupleType, Type
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST


def t(*shape: Any, dtype: str = "float32") -> TensorType:
    return TensorType(shape, dtype)


WGRAD = {"kernel_size": [3, 3], "kernel_layout": "NCHW", "out_layout": "OIHW"}
POOL = {"pool_size": [2, 2]}
X = t(2, 3, 8, 8)
V = t(2, 3, 4, 4, 4)

REFUSALS: list[tuple[str, list[Type], dict[str, Any], str]] = [
    ("add", [t(2), t(3)], {}, r"add: Incompatible broadcast type Tensor\[\(2\), float32\] and"),
    ("add", [t(2), t(2, dtype="int32")], {},
     "add: data types float32 and int32 do not match in BroadcastRel"),
    ("less", [t(2), t(2, dtype="int32")], {}, "do not match in BroadcastCompRel"),
    ("add", [t(2)], {}, r"add: takes 2 arguments \(lhs, rhs\), got 1"),
    ("add", [t(2), t(2)], {"axis": 1}, "add: unknown attributes axis: it has none"),
    ("where", [t(2, dtype="bool"), t(2), t(2, dtype="int32")], {},
     "x and y must have the same dtype: float32 vs int32"),
    ("logical_and", [t(2), t(2)], {}, "lhs must be bool"),
    ("cast", [t(2)], {}, "cast: attribute dtype is missing"),
    ("sum", [X], {"axis": [4]}, "Axis out of bounds in reduce operator: axis=4, ndim=4"),
    ("sum", [X], {"axis": [1, -3]}, "axis must name each axis once"),
    ("variance", [X, t(3)], {}, "data and mean must have the same rank"),
    ("reshape", [t(2, 3)], {"newshape": [4]},
     r"Input tensor shape\(2, 3\) and reshaped shape\(4\) are not compatible!"),
    ("reshape", [t(2, 3)], {"newshape": [-1, -1]}, "One and only one dim can be inferred"),
    ("reshape", [t(2, 3)], {"newshape": [-1, 4]}, "are not compatible"),
    ("reshape", [t(2, 3)], {"newshape": [-5]}, "Unsupported special value: -5"),
    ("reshape", [t(4)], {"newshape": [-4, -1, -1]}, "Split dims cannot both be -1."),
    ("reshape", [t(4)], {"newshape": [-4, 3, -1]}, "cannot split a dimension of size 4"),
    ("reshape", [t(4)], {"newshape": [-4, 3]}, "-4 must be followed by two sizes"),
    ("reshape", [t(4)], {"newshape": [-3]}, "takes a dimension at -3 that"),
    ("reshape", [t(4)], {}, "reshape: attribute newshape is missing"),
    ("reshape_like", [t(4), t(5)], {}, "Reshape inputs size should be compatible"),
    ("transpose", [t(2, 3)], {"axes": [0]}, "axes has 1 elements, but data.ndim = 2"),
    ("transpose", [t(2, 3)], {"axes": [0, 2]}, "in range"),
    ("transpose", [t(2, 3)], {"axes": [0, -2]}, "Duplicate axes in transpose: 0"),
    ("expand_dims", [t(2)], {"axis": 2}, "expand_dims only accepts `axis` in"),
    ("squeeze", [t(2)], {"axis": [0]}, "cannot squeeze axis with dimension not equal to 1"),
    ("squeeze", [t(ANY)], {}, "axis needs to be defined for dynamic input"),
    ("broadcast_to", [t(2)], {"shape": [3]}, "Incompatible broadcast"),
    ("broadcast_to", [t(3)], {"shape": [1]}, "does not broadcast to"),
    ("collapse_sum_like", [t(3), t(2, 3)], {}, "does not broadcast to"),
    ("tile", [t(3)], {"reps": [0]}, "Tile reps value should always be larger than 0, but get: 0"),
    ("repeat", [t(3)], {"repeats": 0, "axis": 0}, "repeat only accepts `repeats >= 1`"),
    ("layout_transform", [X], {"src_layout": "NCHW", "dst_layout": "NHWD"}, "cannot convert from"),
    ("layout_transform", [X], {"src_layout": "NCHW", "dst_layout": "NCHW2c"},
     "axis C of size 3 cannot be split into blocks of 2"),
    ("layout_transform", [X], {"src_layout": "NC4", "dst_layout": "NC"}, "undefined layout"),
    ("concatenate", [X], {}, "requires a tuple of tensors as the first argument, found Tensor"),
    ("concatenate", [TupleType((t(2), t(2, 2)))], {}, "requires all tensors have the same ndim"),
    ("concatenate", [TupleType((t(2, 3), t(2, 2)))], {}, "have the same shape on all other axes"),
    ("concatenate", [TupleType(())], {}, "at least one tensor"),
    ("split", [t(5)], {"indices_or_sections": 2}, "need to be able to divide input.shape"),
    ("split", [t(5)], {"indices_or_sections": [3, 2]}, "sorted ascending list"),
    ("split", [t(5)], {"indices_or_sections": [5]}, "The sum of sections must match"),
    ("strided_slice", [t(5)], {"begin": [3], "end": [1], "strides": [1]},
     r"Input \[Begin=3, End=1\] is invalid for axis=0"),
    ("strided_slice", [t(5)], {"begin": [0], "end": [1], "strides": [0]}, "strides must not be 0"),
    ("take", [t(5), t(2)], {}, "indices of take must be tensor of integer"),
    ("nn.pad", [t(5), t()], {"pad_width": [[1, 1], [1, 1]]}, "as many pad width pairs"),
    ("image.resize2d", [X], {"size": [4, 4]}, "roi must be 4 numbers, got None"),
    ("image.resize2d", [X], {"size": [4, 4], "roi": [0.0] * 4, "layout": "NC"},
     "only supports input layouts that are convertible from NCHW, got 'NC'"),
    ("image.resize1d", [X], {"size": [4]}, "data must have 3 axes"),
    ("image.resize2d", [X], {"size": [4, 0], "roi": [0.0] * 4}, "size must be 2 positive integers"),
    ("image.resize2d", [X], {"size": [4, 4], "roi": [0.0] * 4, "method": "area"}, "got 'area'"),
    ("image.crop_and_resize", [X, t(4, 3), t(4, dtype="int32")], {"crop_size": [2, 2]},
     r"boxes must be \(n, 4\)"),
    ("image.dilation2d", [X, t(2, 2, 2)], {}, "weight must have data's channels"),
    ("image.dilation2d", [X, t(3, 9, 2)], {}, "the window of 9 does not fit: size 8"),
    ("image.dilation2d", [X, t(3, 2, 2)], {"kernel_layout": "HWI"}, "got 'NCHW' and 'HWI'"),
    ("image.affine_grid", [t(2, 3, 3)], {"target_shape": [4, 4]}, "should be an affine matrix"),
    ("image.affine_grid", [t(2, 2, 3)], {"target_shape": [1, 4]}, "sizes above 1"),
    ("image.grid_sample", [X, t(2, 3, 4, 4)], {}, r"grid must be \(2, 2, …\)"),
    ("gather", [t(3, 4), t(4, 4, dtype="int32")], {"axis": 1}, "no larger than data but along"),
    ("gather", [t(3, 4), t(3, 4)], {"axis": 1}, "indices must be of integers"),
    ("gather_nd", [t(3), t(2, 4, dtype="int32")], {}, "2 indices and batch_dims=0 do not fit"),
    ("scatter_elements", [t(3), t(2, dtype="int32"), t(3)], {}, "must have one shape"),
    ("scatter_elements", [t(3), t(2, dtype="int32"), t(2)], {"reduction": "or"}, "got 'or'"),
    ("scatter_nd", [t(3, 4), t(1, 2, dtype="int32"), t(2)], {}, "updates must be of"),
    ("adv_index", [TupleType((t(3), t(2)))], {}, "indices must be of integers"),
    ("sequence_mask", [t(3, 4), t(3, dtype="int32")], {}, "valid_length must be as long as"),
    ("reverse_sequence", [t(3, 4), t(3, dtype="int32")], {"seq_axis": 0}, "must differ, got 0"),
    ("matrix_set_diag", [t(3, 4), t(4)], {}, r"diagonal must be \(3,\)"),
    ("arange", [t(), t(), t()], {"start": 0, "stop": 5, "step": -1, "dtype": "float32"},
     "Invalid range for arange: start=0, stop=5, step=-1"),
    ("meshgrid", [TupleType((t(3), t(2, 2)))], {}, "meshgrid requires scalars and vectors"),
    ("cumsum", [t(3)], {"axis": 1}, r"axis must be in \[-ndim, ndim\)"),
    ("sliding_window", [t(3)], {"axis": 0, "window_shape": [4], "strides": [1]}, "does not fit"),
    ("topk", [t(3)], {"k": 4}, "k must be no more than the 3 of axis 0, got 4"),
    ("searchsorted", [t(3, 4), t(4)], {}, "must have values' axes"),
    ("reinterpret", [t(3)], {"dtype": "int64"}, "of as many bits as data's, got int64"),
    ("fixed_point_multiply", [t(3)], {"multiplier": 1, "shift": 0}, "data must be of int32"),
    ("nn.space_to_depth", [X], {"block_size": 3}, "H of 8 cannot be divided by 3"),
    ("nn.depth_to_space", [X], {"block_size": 2}, "C of 3 cannot be divided by 4"),
    ("nn.space_to_batch_nd", [X], {"block_shape": [2], "paddings": [[0, 0]]},
     "a padded axis of 3 cannot be divided by 2"),
    ("nn.batch_to_space_nd", [X], {"block_shape": [3], "crops": [[0, 0]]}, "a batch of 2 cannot"),
    ("nn.mirror_pad", [t(3)], {"mode": "REFLECT", "pad_width": [[3, 0]]}, "has no mirror of"),
    ("nn.deformable_conv2d", [X, t(2, 8, 6, 6), t(4, 3, 3, 3)], {},
     r"offset must be of \(2, 18, 6"),
    ("nn.deformable_conv2d", [X, X, t(4, 2, 3, 3)], {}, "has 2 channels a group of 1, data has 3"),
    ("vision.roi_align", [X, t(2, 4)], {"pooled_size": [2, 2], "spatial_scale": 1.0},
     r"rois must be \(n, 5\)"),
    ("vision.roi_pool", [X, t(2, 5)], {"pooled_size": [2], "spatial_scale": 1.0},
     "pooled_size must be 2 positive integers"),
    ("vision.yolo_reorg", [X], {"stride": 2}, "its square 3 channels"),
    ("nn.conv1d", [X, t(4, 3, 3)], {}, "data must have 3 axes"),
    ("nn.conv1d", [t(2, 3, 8), t(4, 2, 3)], {}, "the input channels"),
    ("nn.conv1d", [t(2, 3, 8), t(4, 3, 3)], {"data_layout": "NCH"}, "must have three axes"),
    ("nn.conv1d", [t(2, 3, 8), t(4, 3, 3)], {"strides": [1, 2]}, "strides must be one integer"),
    ("nn.max_pool1d", [t(2, 3, 8)], {"pool_size": [9]}, "the window does not fit: size 8"),
    ("sparse_reshape", [t(5, 2, dtype="int64"), t(3, dtype="int64"), t(1, dtype="int64")], {},
     "must have prev_shape's axes"),
    ("full", [t(5)], {"shape": [2]}, "Fill value should be a scalar but has dimension 1"),
    ("nn.bias_add", [X, t(8)], {}, r"bias must be Tensor\[\(3\), float32\] for .*axis=1, got"),
    ("nn.bias_add", [X, t(8)], {"axis": 4}, "The axis in bias_add must be in range for the shape"),
    ("nn.dense", [t(2, 3), t(4, 5)], {}, "the axes to sum over must match, got 3"),
    ("nn.dense", [t(2, 3), t(4, 3)], {"units": 5}, "units=5 must be the weight's 4"),
    ("nn.batch_matmul", [t(2, 3, 4), t(3, 4, 5)], {}, "BatchDot: batch dimensions don't match"),
    ("nn.batch_norm", [X, t(3), t(3), t(3), t(4)], {}, r"moving_var must be Tensor\[\(3\)"),
    ("nn.conv2d", [X, t(4, 2, 3, 3)], {}, r"conv2d: requires that `3`, the input channels \(3\)"),
    ("nn.conv2d", [X, t(4, 3, 3, 3)], {"channels": 5},
     r"does not match the number of channels \(5\)"),
    ("nn.conv2d", [X, t(4, 3, 3, 3)], {"kernel_size": [1, 1]},
     "shape of weight is inconsistent with kernel_size"),
    ("nn.conv2d", [X, t(4, 3, 9, 3)], {}, "the result's size must be positive, got 0"),
    ("nn.conv2d", [X, t(4, 3, 3, 3)], {"data_layout": "NCHW4h"},
     "conv2d only support input layouts that are convertible from NCHW"),
    ("nn.conv2d", [t(3, 8, 8), t(4, 3, 3, 3)], {}, "must have 4 axes"),
    ("nn.conv2d", [X, t(4, 1, 3, 3)], {"groups": 3}, "groups must divide the output channels"),
    ("nn.conv2d_transpose", [X, t(4, 3, 3, 3)], {}, "is inconsistent with in_channels"),
    ("nn.conv2d_transpose", [X, t(3, 4, 3, 3)], {"channels": 3}, "inconsistent with out_channels"),
    ("nn.conv3d", [X, t(4, 3, 3, 3)], {}, "data with layout NCDHW must have 5 axes"),
    ("nn.conv3d", [V, t(4, 2, 2, 2, 2)], {}, "conv3d: requires that `3`, the input channels"),
    ("nn.conv3d", [V, t(4, 3, 2, 2, 2)], {"strides": [1, 2]}, "strides must be 1 or 3 positive"),
    ("nn.conv3d_transpose", [V, t(4, 3, 2, 2, 2)], {}, "Conv3DTransposed: shape of weight"),
    ("nn.conv3d_backward_weight", [t(2, 4, 3, 2, 3), V],
     {"kernel_size": [2], "kernel_layout": "NCDHW", "out_layout": "OIDHW"},
     "3 x 3 x 3, got 3 x 2 x 3"),
    ("nn.max_pool3d", [V], {"pool_size": [2, 2]}, "pool_size must be 1 or 3 positive integers"),
    ("nn.max_pool3d", [V], {"pool_size": [2], "layout": "NCHWx"}, "convertible from NCDHW"),
    ("nn.upsampling3d", [V], {"scale_d": 0.0, "scale_h": 1.0, "scale_w": 1.0},
     "scale_d must be positive"),
    ("nn.conv2d_backward_weight", [t(2, 4, 6, 6), X], {},
     "data layouts that are convertible from NCHW. The provided layout is: kernel_layout='OIHW'"),
    ("nn.conv2d_backward_weight", [t(2, 4, 6, 6), X], WGRAD | {"kernel_size": None},
     "kernel_size attribute needs to be specified"),
    ("nn.conv2d_backward_weight", [t(2, 4, 8, 6), X], WGRAD, "6 x 6, got 8 x 6"),
    ("nn.max_pool2d", [X], POOL | {"layout": "NC"}, "Pool2D layout must have H and W"),
    ("nn.max_pool2d", [X], {"pool_size": [9, 9]}, "the window does not fit: size 8"),
    ("nn.avg_pool2d_grad", [X, X], POOL, "grad must be as large as the pool of data"),
    ("nn.cross_entropy", [t(2, 3), t(2, 4)], {}, "CrossEntropy: shapes of x and y is inconsistent"),
    ("nn.lrn", [V], {}, "LRN requires 4-D input"),
    ("nn.dropout", [X], {"rate": 2.0}, r"rate must be in \[0, 1\]"),
]  # fmt: skip


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda r: f"{r[0]}-{r[3][:30]}")
def test_a_violated_relation_is_refused(refusal: tuple[str, list[Type], dict, str]) -> None:
    name, types, attrs, message = refusal
    with pytest.raises((ValueError, TypeError), match=message) as caught:
        lookup(name).infer(types, attrs)
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize(
    ("name", "attr", "value", "message"),
    [
        ("sum", "axis", "1", r"sum: axis must be a list of integers or None, got '1'"),
        ("sum", "keepdims", 2, "keepdims must be a bool, got 2"),
        ("expand_dims", "axis", 1.0, "axis must be an integer, got 1.0"),
        ("clip", "a_min", True, "a_min must be a number, got True"),
        ("cast", "dtype", "real", "dtype must be the name of a dtype, got 'real'"),
        ("nn.conv2d", "data_layout", 3, "data_layout must be a string, got 3"),
        ("nn.pad", "pad_width", [1, 2], "pad_width must be a list of lists of integers"),
        ("split", "indices_or_sections", "2", "must be an integer or a list of integers"),
    ],
)
def test_an_attribute_of_the_wrong_kind(name: str, attr: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        lookup(name).read({attr: value})


def test_an_argument_of_the_wrong_kind() -> None:
    with pytest.raises(TypeError, match=r"^nn\.relu: data must be a tensor"):
        lookup("nn.relu").infer([TupleType((X,))], {})


def test_unknown_operators_name_near_ones() -> None:
    with pytest.raises(ValueError, match=r"'conv2d'; near: nn.conv2d"):
        lookup("conv2d")
    with pytest.raises(ValueError, match=r"near: .*nn.avg_pool2d\b"):
        lookup("nn.avgpool2d")
    with pytest.raises(ValueError, match=r"^unknown Relay operator 'qqqqqqqq'$"):
        lookup("qqqqqqqq")


B = t(ANY, 3, 8, 8)


@pytest.mark.parametrize(
    ("name", "types", "attrs", "shape"),
    [
        ("add", [B, t(3, 1, 1)], {}, (ANY, 3, 8, 8)),
        ("add", [B, t(2, 3, 8, 8)], {}, (2, 3, 8, 8)),
        ("sum", [B], {"axis": [1]}, (ANY, 8, 8)),
        ("reshape", [B], {"newshape": [0, -1]}, (ANY, 192)),
        ("reshape", [B], {"newshape": [-3, 8, 8]}, (ANY, 8, 8)),
        ("reshape", [B], {"newshape": [-1, 2]}, (ANY, 2)),
        ("nn.batch_flatten", [B], {}, (ANY, 192)),
        ("concatenate", [TupleType((B, X))], {}, (ANY, 3, 8, 8)),
        ("concatenate", [TupleType((B, X))], {"axis": 1}, (ANY, 6, 8, 8)),
        ("concatenate", [TupleType((t(ANY, 3), t(ANY, ANY)))], {}, (ANY, 3)),
        ("tile", [B], {"reps": [2]}, (ANY, 3, 8, 16)),
        ("nn.conv2d", [B, t(4, 3, 3, 3)], {}, (ANY, 4, 6, 6)),
        ("nn.conv2d", [t(2, 3, ANY, 8), t(4, 3, 3, 3)], {}, (2, 4, ANY, 6)),
        ("nn.conv2d_transpose", [B, t(3, 4, 3, 3)], {}, (ANY, 4, 10, 10)),
        ("nn.max_pool2d", [B], POOL | {"strides": [2]}, (ANY, 3, 4, 4)),
        ("nn.pad", [B, t()], {"pad_width": [[0, 0]] * 3 + [[1, 1]]}, (ANY, 3, 8, 10)),
        ("nn.dense", [t(ANY, 3), t(4, 3)], {}, (ANY, 4)),
        ("layout_transform", [B], {"src_layout": "NCHW", "dst_layout": "NHWC"}, (ANY, 8, 8, 3)),
        ("strided_slice", [B], {"begin": [0, 1], "end": [1, 2], "strides": [1]}, (ANY, 1, 8, 8)),
    ],
)
def test_unknown_sizes(name: str, types: list[Type], attrs: dict, shape: tuple) -> None:
    assert lookup(name).infer(types, attrs) == TensorType(shape)


@pytest.mark.usefixtures("registered")
def test_a_batch_known_only_by_the_run() -> None:
    """A chain of layers with a symbolic batch."""
    n = tvm.tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType([n, 3, 8, 8], "float32"))
    w = relax.Var("w", relax.TensorType([4, 3, 3, 3], "float32"))
    b = relax.Var("b", relax.TensorType([4], "float32"))
    d = relax.Var("d", relax.TensorType([2, 36], "float32"))
    exprs: dict[str, tuple[Any, Type]] = {
        "x": (x, B), "w": (w, t(4, 3, 3, 3)), "b": (b, t(4)), "d": (d, t(2, 36)),
    }  # fmt: skip
    bb = relax.BlockBuilder()

    def call(name: str, *args: str, **attrs: Any) -> str:
        types = [exprs[a][1] for a in args]
        out = lookup(name).infer(types, attrs)
        expr = lookup(name).build(bb, [exprs[a][0] for a in args], attrs, types, out)
        exprs[name] = (bb.emit(expr), out)
        return name

    with bb.function("main", [x, w, b, d]):
        with bb.dataflow():
            y = call("nn.bias_add", call("nn.conv2d", "x", "w"), "b")
            y = call("nn.max_pool2d", call("nn.relu", y), pool_size=[2, 2], strides=[2, 2])
            y = call("nn.dense", call("nn.softmax", call("nn.batch_flatten", y)), "d")
            out = bb.emit_output(exprs[y][0])
        bb.emit_func_output(out)
    assert exprs[y][1] == t(ANY, 2)
    vm = virtual_machine(bb.get(), FAST)
    args = [np.ones((5, 3, 8, 8)), np.ones((4, 3, 3, 3)), np.ones(4), np.ones((2, 36))]
    got = vm["main"](*(tvm.runtime.tensor(a.astype("float32")) for a in args)).numpy()
    np.testing.assert_allclose(got, np.ones((5, 2)), rtol=1e-5)


def test_building_refuses_what_has_no_relax_form() -> None:
    x = relax.Var("x", relax.TensorType([4], "float32"))
    bb = relax.BlockBuilder()
    tile = lookup("tile")
    with pytest.raises(ValueError, match="tile: cannot be built with an unknown size"):
        tile.build(bb, [x], {"reps": [2]}, [t(ANY)], t(ANY))
    with pytest.raises(ValueError, match="1 argument types for 2 arguments"):
        tile.build(bb, [x, x], {"reps": [2]}, [t(4)], t(8))


@pytest.mark.usefixtures("registered")
def test_a_constant_pads_with_its_value() -> None:
    x = relax.Var("x", relax.TensorType([1], "float32"))
    bb = relax.BlockBuilder()
    attrs, types = {"pad_width": [[1, 0]]}, [t(1), t()]
    with bb.function("main", [x]):
        built = lookup("nn.pad").build(bb, [x, relax.const(3.0)], attrs, types, t(2))
        bb.emit_func_output(bb.emit(built))
    vm = virtual_machine(bb.get(), FAST)
    got = vm["main"](tvm.runtime.tensor(np.ones(1, "float32"))).numpy()
    assert got.tolist() == [3.0, 1.0]


def test_names_and_attributes_are_unique() -> None:
    for name, op in REGISTRY.items():
        assert name == op.name
        names = [attr.name for attr in op.attrs]
        assert len(set(names)) == len(names)
        assert op.checked in ("relay", "numpy", "torch")


def _value(attr: Attr, rng: random.Random) -> Any:
    """Something of the attribute's kind, often senseless."""
    number = rng.randint(-2, 4)
    numbers = [rng.randint(-2, 4) for _ in range(rng.randint(0, 4))]
    kinds = {
        "int": number, "float": float(number), "bool": bool(number % 2), "dtype": "float32",
        "str": rng.choice(["NCHW", "NHWC", "OIHW", "NCHW2c", "end", "mean", "clip", ""]),
        "ints": numbers, "sizes": numbers, "dims": numbers,
        "sections": rng.choice([number, numbers]),
        "pairs": [[1, 0]] * rng.randint(0, 4), "floats": list(map(float, numbers)),
        "number": rng.choice([number, number / 2]),
    }  # fmt: skip
    return rng.choice([attr.default, kinds[attr.kind.rstrip("?")]])


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_relations_answer_or_refuse(name: str) -> None:
    """Whatever the types and attributes: a type, or a ValueError or TypeError of the operator's."""
    op, rng = lookup(name), random.Random(name)
    dims = [1, 2, 3, 4, 8, ANY]
    for _ in range(100):
        types: list[Type] = []
        for _ in op.inputs:
            shape = tuple(rng.choice(dims) for _ in range(rng.choice([0, 1, 2, 3, 4, 4])))
            ty: Type = t(*shape, dtype=rng.choice(["float32", "float32", "int32", "bool"]))
            types.append(rng.choice([ty, ty, ty, TupleType((ty, ty)), TupleType(())]))
        attrs = {a.name: v for a in op.attrs if (v := _value(a, rng)) is not REQUIRED}
        try:
            out = op.infer(types, attrs)
        except (TypeError, ValueError) as refusal:
            assert str(refusal).startswith(name), f"{types} {attrs}: {refusal}"  # noqa: PT017
        else:
            fields = out.fields if isinstance(out, TupleType) else (out,)
            assert all(isinstance(f, TensorType) for f in fields)
            assert all(d is ANY or d >= 0 for f in fields for d in f.shape)


def test_a_cubic_that_reflects_between_pixels_is_refused() -> None:
    """TOPI's kernel of it has no end in LLVM."""
    x, grid = relay.var("x", shape=(1, 1, 4, 4)), relay.var("grid", shape=(1, 2, 3, 3))
    call = relay.image.grid_sample(
        x, grid, method="bicubic", padding_mode="reflection", align_corners=False
    )
    mod = relay.IRModule.from_expr(relay.Function([x, grid], call))
    with pytest.raises(ValueError, match=r"image.grid_sample: .* need align_corners=True"):
        lower(mod)


@pytest.mark.parametrize("border", ["zeros", "border", "reflection"])
def test_a_linear_sample_is_one_kernel(border: str) -> None:
    """With a gradient all the same; composed it takes two to three times as long."""
    x, grid = relay.var("x", shape=(1, 1, 4, 4)), relay.var("grid", shape=(1, 2, 3, 3))
    call = relay.image.grid_sample(x, grid, padding_mode=border)
    made = lower(relay.IRModule.from_expr(relay.Function([x, grid], call))).script()
    assert made.count("R.image.grid_sample(") == 1
    assert "R.take(" not in made
