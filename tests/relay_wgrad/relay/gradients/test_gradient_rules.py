"""Each operator's gradient against slopes in float64; one compilation for all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm

import relay_wgrad
from relay_wgrad import relay
from relay_wgrad.relay import transform
from relay_wgrad.relay.ast import Call, Expr, Function, IRModule, Op, Tuple, TupleGetItem, Var
from relay_wgrad.relay.gradients import FAMILIES
from relay_wgrad.relay.infer import infer_expr
from relay_wgrad.relay.lower import lower
from relay_wgrad.relay.records import REGISTRY, lookup
from relay_wgrad.relay.transform.simplify_inference import NAMES
from relay_wgrad.relay.types import TensorType, TupleType
from tests.support.chosen import cases_of
from tests.support.compiled import virtual_machine
from tests.support.fast import FAST
from tests.support.relay.gradients import FLOATS, type_of, wide
from tests.support.relay.op_cases import CASES, Case, positive, real, whole

BUILT_IN = set(REGISTRY)  # other tests register operators of their own

# Beside the cases of the operators' own tests: what only gradients meet.
MORE = (
    Case("strided_slice", (real(9, 4),), np.array,
         {"begin": [7, 1], "end": [-10, 3], "strides": [-3, 1]}),
    Case("strided_slice", (real(10, 4),), np.array, {"begin": [1], "end": [9], "strides": [3]}),
    Case("strided_slice", (real(5, 4),), np.array,
         {"begin": [1, 0], "end": [2, -1], "strides": [1], "slice_mode": "size"}),
    Case("take", (real(4, 3), whole(2, 5, low=-2, high=6)), np.array, {"axis": 0}),
    Case("take", (real(2, 4, 3), whole(5, low=-9, high=9)), np.array, {"axis": -2, "mode": "wrap"}),
    Case("take", (real(2, 4), whole(low=0, high=2)), np.array),
    Case("nn.dense", (real(2, 3, 4), real(5, 4)), np.array, {"units": 5}),
    Case("nn.matmul", (real(2, 4, 3), real(5, 4)), np.array,
         {"transpose_a": True, "transpose_b": True}),
    Case("nn.matmul", (real(2, 3, 4), real(4, 5)), np.array),
    Case("nn.matmul", (real(2, 4, 3), real(4, 5)), np.array, {"transpose_a": True}),
    Case("nn.adaptive_avg_pool2d", (real(1, 2, 5, 7),), np.array, {"output_size": [3, 2]}),
    Case("expand_dims", (real(2, 3),), np.array, {"axis": -2, "num_newaxis": 2}),
    Case("concatenate", ((real(2, 3), real(2, 1), real(2, 2)),), np.array, {"axis": -1}),
    Case("split", (real(2, 6),), np.array, {"indices_or_sections": [1, 4], "axis": 1}),
    Case("one_hot", (whole(3, low=0, high=4), real(), real()), np.array,
         {"depth": 4, "dtype": "float32"}),
    Case("full", (real(),), np.array, {"shape": [2, 3]}),
    Case("variance", (real(3, 4), real(3, 1)), np.array,
         {"axis": [1], "keepdims": True, "unbiased": True}),
    Case("max", (real(3, 4),), np.array, {"axis": [-1]}),
    Case("nn.nll_loss", (real(3, 4, 2), whole(3, 2, low=0, high=4), positive(4)), np.array,
         {"reduction": "mean", "ignore_index": 2}),
    Case("nn.nll_loss", (real(3, 4), whole(3, low=0, high=4), positive(4)), np.array,
         {"reduction": "none", "ignore_index": -100}),
    # Second order: the gradients' own.
    Case("nn.conv2d_backward_weight", (real(2, 4, 3, 4), real(2, 6, 6, 7)), np.array,
         {"strides": [2, 2], "padding": [1, 0, 0, 1], "groups": 2, "kernel_size": [3, 1],
          "kernel_layout": "NCHW", "out_layout": "OIHW"}),
    Case("nn.avg_pool2d_grad", (real(1, 2, 3, 3), real(1, 2, 6, 6)), np.array,
         {"pool_size": [2, 2], "strides": [2, 2]}),
)  # fmt: skip


def _conv_cases() -> Iterator[Case]:
    """Groups, depthwise, dilation, strides that leave a rest, padding of each side, layouts."""
    for groups, c, k, chosen in ((1, 3, 4, (0, 2)), (2, 4, 6, (1, 3)), (4, 4, 8, (1, 2))):
        common: dict[str, Any] = {"groups": groups, "kernel_size": [3, 2]}
        settings: tuple[dict[str, Any], ...] = (
            {"padding": [1, 0, 2, 1]},
            {"strides": [2, 3], "padding": [1, 1]},
            {"dilation": [2, 3], "padding": [2]},
            {"strides": [2, 2], "dilation": [1, 2]},
        )
        for attrs in (settings[i] for i in chosen):
            yield Case("nn.conv2d", (real(2, c, 8, 9), real(k, c // groups, 3, 2)), np.array,
                       common | attrs)  # fmt: skip
            extra = {"output_padding": [1, 1]} if attrs.get("strides") else {}
            yield Case("nn.conv2d_transpose", (real(2, c, 4, 5), real(c, k // groups, 3, 2)),
                       np.array, common | attrs | extra | {"channels": k})  # fmt: skip
    layouts = {"data_layout": "NHWC", "strides": [2, 2], "padding": [1, 1], "groups": 2}
    yield Case("nn.conv2d", (real(1, 7, 8, 4), real(3, 3, 2, 6)), np.array,
               layouts | {"kernel_layout": "HWIO"})  # fmt: skip
    yield Case("nn.conv2d", (real(1, 7, 8, 4), real(6, 3, 3, 2)), np.array,
               layouts | {"kernel_layout": "OHWI", "out_layout": "NCHW"})  # fmt: skip
    yield Case("nn.conv2d_transpose", (real(1, 4, 4, 6), real(3, 3, 2, 6)), np.array,
               layouts | {"kernel_layout": "HWOI"})  # fmt: skip


ALL = (*CASES, *MORE, *_conv_cases())


@dataclass(frozen=True)
class Program:
    """A case's operands, and the gradient of sum(w * result * result) by them and by w."""

    arrays: list[np.ndarray]
    gradient: Function


def _program(index: int) -> Program:
    case = ALL[index]
    arrays: list[np.ndarray] = []
    params: list[Var] = []

    def parameter(value: Any) -> Expr:
        if isinstance(value, tuple):
            return Tuple(tuple(map(parameter, value)))
        arrays.append(value)
        ty = TensorType(value.shape, str(value.dtype))
        params.append(Var(f"x{len(params)}", ty, checked_type=ty))
        return params[-1]

    attrs = dict(case.attrs)
    if attrs.get("dtype") in FLOATS:
        attrs["dtype"] = "float64"
    made = infer_expr(Call(Op(case.op), tuple(parameter(wide(a)) for a in case.args), attrs))
    results = [made]
    if isinstance(made.checked_type, TupleType):
        results = [TupleGetItem(made, i) for i in range(len(made.checked_type.fields))]
    rng = np.random.default_rng(index)
    total: Expr | None = None
    for result in map(infer_expr, results):
        weights = parameter(rng.standard_normal(result.checked_type.shape))
        term = relay.sum(result * result * weights)
        total = term if total is None else total + term
    assert total is not None
    return Program(arrays, relay.transform.gradient(Function(tuple(params), total)))


def _leaves(value: Any) -> list[Any]:
    return [x for v in value for x in _leaves(v)] if isinstance(value, tuple) else [value]


def _has_gradient(case: Case) -> bool:
    """Whether there is a rule, and floats go in and come out."""
    if case.op not in {name for family in FAMILIES for name in family.RULES} | NAMES:
        return False
    made = lookup(case.op).infer([type_of(a) for a in case.args], case.attrs)
    types = made.fields if isinstance(made, TupleType) else (made,)
    out = all(ty.dtype in FLOATS for ty in types)
    return out and any(str(x.dtype) in FLOATS for x in _leaves(case.args))


def _refused(case: Case) -> bool:
    if case.op == "nn.adaptive_max_pool2d":
        height, width = case.args[0].shape[2:]
        wanted = case.attrs.get("output_size") or (height, width)
        return bool(height % wanted[0] or width % wanted[-1])
    if case.op == "nn.adaptive_max_pool1d":
        return bool(case.args[0].shape[2] % case.attrs["output_size"][0])
    if case.op == "nn.max_pool3d":
        return "dilation" in case.attrs
    if case.op == "gather_nd":
        return bool(case.attrs.get("batch_dims"))
    return case.attrs.get("pad_mode", "constant") != "constant"


RULED = [i for i, case in enumerate(ALL) if _has_gradient(case)]
_RESIZED = ("image.", "nn.upsampling3d")
# What TVM resizes it rounds to float32, where slopes are rough: test_image_gradients.py.
CHECKED = [i for i in RULED if not _refused(ALL[i]) and not ALL[i].op.startswith(_RESIZED)]


@pytest.fixture(scope="module")
def programs(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[dict[int, Program | ValueError], Any]]:
    was = relay_wgrad.is_registered()
    relay_wgrad.register()
    made: dict[int, Program | ValueError] = {}
    for i in cases_of(request.session, test_gradient_is_the_slope, "index"):
        try:
            made[i] = _program(i)
        except ValueError as error:
            made[i] = error  # its own test fails
    mod = IRModule({f"gradient{i}": p.gradient for i, p in made.items() if isinstance(p, Program)})
    # Compiling is what takes the time: so no zeros to add, and no optimization.
    passes = [transform.ToGraphNormalForm(), transform.SimplifyExpr()]
    mod = transform.Sequential(passes)(mod)
    built = virtual_machine(lower(mod), FAST)
    yield made, built
    if not was:
        relay_wgrad.unregister()


def _tensors(arrays: list[Any]) -> list[Any]:
    return [tvm.runtime.tensor(np.array(a, order="C")) for a in arrays]


@pytest.mark.share(11)
@pytest.mark.parametrize("index", CHECKED, ids=[f"{i}-{ALL[i].op}" for i in CHECKED])
def test_gradient_is_the_slope(programs: Any, index: int) -> None:
    """Along a random direction of all floats at once."""
    made, machine = programs
    if isinstance(made[index], ValueError):
        raise made[index]
    arrays, run = made[index].arrays, machine[f"gradient{index}"]
    rng = np.random.default_rng(index)
    floats = [str(a.dtype) == "float64" for a in arrays]
    ways = [
        rng.standard_normal(a.shape) if f else np.zeros(a.shape)
        for a, f in zip(arrays, floats, strict=True)
    ]

    def at(step: float) -> float:
        moved = [a + step * w if f else a for a, w, f in zip(arrays, ways, floats, strict=True)]
        return float(run(*_tensors(moved))[0].numpy())

    _, grads = run(*_tensors(arrays))
    step = 1e-6
    slope = (at(step) - at(-step)) / (2 * step)
    inner = 0.0
    for array, way, part, is_float in zip(arrays, ways, grads, floats, strict=True):
        assert (part.shape, str(part.dtype)) == (array.shape, str(array.dtype))
        if is_float:
            inner += float((part.numpy() * way).sum())
        else:
            assert not part.numpy().any()
    np.testing.assert_allclose(inner, slope, rtol=2e-6, atol=2e-6)


@pytest.mark.usefixtures("registered")
def test_every_gradient_is_made_and_lowered() -> None:
    """Of all cases: what compilers make of them is the slope of a share in make test."""
    for index in CHECKED:
        made = _program(index)
        lowered = lower(IRModule({"gradient": made.gradient}))
        tvm.relax.analysis.well_formed(lowered)
        partials = infer_expr(made.gradient).checked_type.ret_type.fields[1].fields
        assert [tuple(map(int, ty.shape)) for ty in partials] == [a.shape for a in made.arrays]


@pytest.mark.parametrize("index", [i for i in RULED if _refused(ALL[i])])
def test_refused_with_a_reason(index: int) -> None:
    with pytest.raises(ValueError, match=f"the gradient of {ALL[index].op}: only w"):
        _program(index)


def test_every_operator_has_a_rule_or_none() -> None:
    """Those without: no float result, or no gradient that is worth one."""
    rules = {name for family in FAMILIES for name in family.RULES} | NAMES
    without = BUILT_IN - rules
    no_floats = {
        "all", "any", "argmax", "argmin", "bitwise_and", "bitwise_not", "bitwise_or",
        "bitwise_xor", "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan",
        "left_shift", "less", "less_equal", "logical_and", "logical_not", "logical_or",
        "logical_xor", "not_equal", "right_shift",
    }  # fmt: skip
    marks = {
            "annotation.compiler_begin", "annotation.compiler_end", "annotation.stop_fusion",
        }  # fmt: skip
    refused = {"floor_mod", "mod", "trunc_mod", "prod", "nn.max_pool2d_grad"}
    # Relay registered none.
    none = {
        *(name for name in BUILT_IN if name.startswith("dyn.")), "nn.correlation", "stft",
        "sparse_fill_empty_rows", "sparse_to_dense", "sparse_reshape",
        "nn.deformable_conv2d", "vision.roi_align", "vision.roi_pool", "vision.yolo_reorg",
        "vision.all_class_non_max_suppression", "vision.get_valid_counts", "vision.multibox_prior",
        "vision.multibox_transform_loc", "vision.non_max_suppression", "argwhere", "einsum",
        "nn.dilate", "random.normal",
        "random.threefry_generate", "random.threefry_split", "random.uniform",
        "strided_set", "unique",
        "adv_index", "argsort", "cumprod", "cumsum", "fixed_point_multiply", "gather",
        "image.affine_grid", "image.crop_and_resize", "image.dilation2d", "image.grid_sample",
        "matrix_set_diag", "meshgrid", "nn.batch_to_space_nd", "nn.depth_to_space",
        "nn.mirror_pad", "nn.space_to_batch_nd", "nn.space_to_depth", "reinterpret",
        "reverse_sequence", "scatter_elements", "scatter_nd", "searchsorted", "sequence_mask",
        "sliding_window", "sort", "topk", "trilu", "unravel_index",
    }  # fmt: skip
    assert without == (no_floats | refused | marks | none) - {n for n in rules if n[:4] == "dyn."}
