"""The partition: which rows take what, and what the module looks like afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad
from relay_wgrad.keys import OPTIONS, PROBLEM, ROW
from relay_wgrad.problem import ConvProblem
from relay_wgrad.transform import grad
from tests.support.partition_cases import (
    ZERO,
    Body,
    bias,
    composites,
    dgrad,
    fprop,
    masked,
    module,
    nn,
    only,
    op,
    ops,
    partitioned,
    regions,
    same_numbers,
    transposed,
)

X, W, V = (2, 3, 8, 8), (4, 3, 3, 3), (4, 3, 3, 3)
DX = (2, 4, 6, 6)  # what a convolution of X with W makes


@pytest.fixture(autouse=True)
def _setting(registered: None, any_epilogue: None) -> None:
    """The package's operators, and every row for every problem: the mechanism is tested here."""


F, D = {"x": X, "w": W}, {"g": DX, "w": W}
# row -> (body, parameters, ops of the composite)
ROWS: dict[str, tuple[Body, dict[str, Any], list[str]]] = {
    "fprop": (fprop, F, ["conv2d"]),
    "fprop_bias": (
        lambda e, x, w, b: bias(e, fprop(e, x, w), b), {**F, "b": (1, 4, 1, 1)}, ["conv2d", "add"]
    ),
    "fprop_relu": (lambda e, x, w: e(nn.relu(fprop(e, x, w))), F, ["conv2d", "relu"]),
    "fprop_bias_relu": (
        lambda e, x, w, b: e(nn.relu(bias(e, fprop(e, x, w), b, left=True))),
        {**F, "b": (4, 1, 1)}, ["conv2d", "add", "relu"],
    ),
    "dgrad": (dgrad, D, ["conv2d_backward_data"]),
    "dgrad_bias": (
        lambda e, g, w, b: bias(e, transposed(e, g, w), b), {**D, "b": (1, 3, 1, 1)},
        ["conv2d_transpose", "add"],
    ),
    "dgrad_relu": (
        lambda e, g, w: e(nn.relu(transposed(e, g, w))), D, ["conv2d_transpose", "relu"]
    ),
    "dgrad_bias_relu": (
        lambda e, g, w, b: e(nn.relu(bias(e, dgrad(e, g, w), b))), {**D, "b": (3, 1, 1)},
        ["conv2d_backward_data", "add", "relu"],
    ),
    "dgrad_mask": (
        lambda e, g, w, x: masked(e, dgrad(e, g, w), x), {**D, "x": X},
        ["conv2d_backward_data", "less", "where"],
    ),
    "dgrad_strictmask": (
        lambda e, g, w, x: masked(e, dgrad(e, g, w), x, op.less_equal), {**D, "x": X},
        ["conv2d_backward_data", "less_equal", "where"],
    ),
    "wgrad": (
        lambda e, g, x: e(relay_wgrad.conv2d_backward_weight(g, x, (3, 3))), {"g": DX, "x": X},
        ["conv2d_backward_weight"],
    ),
}  # fmt: skip


def test_every_row_has_a_case() -> None:
    assert {row.name for row in byoc_cudnn.patterns("cudnn")} == set(ROWS)
    for row in byoc_cudnn.patterns("cudnn"):
        assert row.backend == "cudnn"
        assert row.pattern is not None


@pytest.mark.parametrize("row", ROWS)
def test_row(row: str) -> None:
    body, shapes, inside = ROWS[row]
    mod = module(shapes, body)
    out, report = partitioned(mod)
    entry = only(report)
    assert (entry.backend, entry.row, entry.reason, entry.adapted) == ("cudnn", row, "", "")
    assert ops(out["main"]) == ["call"]
    (inner,) = composites(out)
    assert ops(inner) == inside
    assert inner.attrs["Composite"] == f"relay_wgrad_cudnn.{row}"
    assert inner.attrs[ROW] == row
    assert ConvProblem.parse(inner.attrs[PROBLEM]).repro() == entry.problem
    assert json.loads(inner.attrs[OPTIONS]) == {
        "allow_tf32": True, "benchmark": False, "deterministic": False, "scaled_half": True,
        "workspace_limit": None,
    }  # fmt: skip
    ((symbol, outer),) = regions(out).items()
    assert outer.attrs["Codegen"] == "relay_wgrad_cudnn"
    assert outer.attrs["global_symbol"] == symbol
    same_numbers(mod, out)


def test_without_fusion_calls_go_alone() -> None:
    body, shapes, _ = ROWS["fprop_bias_relu"]
    out, report = partitioned(module(shapes, body), fuse=False)
    assert only(report).row == "fprop"
    assert ops(out["main"])[0] == "call"
    assert "relu" in ops(out["main"])
    _, same = byoc_cudnn.partition_for_cudnn(module(shapes, body), fuse=False)
    assert same.rows() == report.rows() == {"cudnn.fprop": 1}


@pytest.mark.parametrize("row", ROWS)
def test_patterns_serve_the_stock_pass(row: str) -> None:
    """FuseOpsByPattern with a row's pattern makes the composite that the partition makes."""
    body, shapes, inside = ROWS[row]
    mod = module(shapes, body)
    pattern = next(r.pattern for r in byoc_cudnn.patterns("cudnn") if r.name == row)
    stock = relax.transform.FuseOpsByPattern(
        [(f"x.{row}", pattern)], bind_constants=False, annotate_codegen=True
    )(mod)
    (inner,) = composites(stock)
    assert sorted(ops(inner)) == sorted(inside)


def test_the_module_afterwards() -> None:
    body, shapes, _ = ROWS["fprop_bias_relu"]
    out, _ = byoc_cudnn.partition(module(shapes, body), cudnn={"deterministic": True})
    options = json.dumps({
        "allow_tf32": True, "benchmark": False, "deterministic": True, "scaled_half": True,
        "workspace_limit": None,
    })  # fmt: skip
    problem = (
        "fprop n=2 c=3 h=8 w=8 k=4 r=3 s=3 stride=1,1 pad=0,0,0,0 dil=1,1 groups=1"
        " layout=NCHW/OIHW/NCHW dtype=f32/f32/f32"
    )
    expected = tvm.script.from_source(
        f"""
# from tvm.script import ir as I
# from tvm.script import relax as R
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((2, 3, 8, 8), "float32"),
        w: R.Tensor((4, 3, 3, 3), "float32"),
        b: R.Tensor((4, 1, 1), "float32"),
    ) -> R.Tensor((2, 4, 6, 6), "float32"):
        cls = Module
        with R.dataflow():
            lv: R.Tensor((2, 4, 6, 6), "float32") = (
                cls.relay_wgrad_cudnn_fprop_bias_relu(x, w, b)
            )
            gv: R.Tensor((2, 4, 6, 6), "float32") = lv
            R.output(gv)
        return gv

    @R.function
    def relay_wgrad_cudnn_fprop_bias_relu(
        data: R.Tensor((2, 3, 8, 8), "float32"),
        weight: R.Tensor((4, 3, 3, 3), "float32"),
        bias: R.Tensor((4, 1, 1), "float32"),
    ) -> R.Tensor((2, 4, 6, 6), "float32"):
        R.func_attr({{"Codegen": "relay_wgrad_cudnn"}})

        @R.function
        def composite(
            data_1: R.Tensor((2, 3, 8, 8), "float32"),
            weight_1: R.Tensor((4, 3, 3, 3), "float32"),
            bias_1: R.Tensor((4, 1, 1), "float32"),
        ) -> R.Tensor((2, 4, 6, 6), "float32"):
            R.func_attr({{
                "Composite": "relay_wgrad_cudnn.fprop_bias_relu",
                "relay_wgrad.problem": {problem!r},
                "relay_wgrad.row": "fprop_bias_relu",
                "relay_wgrad.options": {options!r},
            }})
            with R.dataflow():
                lv: R.Tensor((2, 4, 6, 6), "float32") = R.nn.conv2d(data_1, weight_1)
                lv1: R.Tensor((2, 4, 6, 6), "float32") = R.add(bias_1, lv)
                out: R.Tensor((2, 4, 6, 6), "float32") = R.nn.relu(lv1)
                R.output(out)
            return out

        out_1: R.Tensor((2, 4, 6, 6), "float32") = composite(data, weight, bias)
        return out_1
"""
    )
    tvm.ir.assert_structural_equal(out, expected)


def test_the_way_back_is_exact() -> None:
    for body, shapes, _ in ROWS.values():
        mod = module(shapes, body)
        back = byoc_cudnn.unpartition(byoc_cudnn.partition(mod)[0])
        if {"less", "less_equal"} & {*ops(mod["main"])}:
            assert sorted(ops(back["main"])) == sorted(ops(mod["main"]))
        else:
            tvm.ir.assert_structural_equal(back, mod)


# ---- what a row must not take --------------------------------------------------------------------


def tried(report: byoc_cudnn.Report) -> str:
    return "; ".join(reason for entry in report.entries for _, reason in entry.tried)


def test_the_backward_part_needs_no_preactivation() -> None:
    """ReLU's gradient compares its result, so the sum need not be in memory."""

    def loss(emit: Any, x: Any, w: Any, b: Any) -> Any:
        y = emit(nn.relu(bias(emit, fprop(emit, x, w), b)))
        return op.sum(emit(op.multiply(y, y)))

    forward = module({**F, "b": (1, 4, 1, 1)}, loss)
    assert partitioned(forward)[1].rows() == {"cudnn.fprop_bias_relu": 1}
    mod = tvm.IRModule({"main": grad(forward)["main_adjoint"].with_attr("global_symbol", "main")})
    out, report = partitioned(mod)
    assert report.rows() == {"cudnn.fprop_bias_relu": 1, "cudnn.dgrad": 1, "cudnn.wgrad": 1}
    assert "relu" not in ops(out["main"])
    same_numbers(mod, out)


def test_gradient_of_relu_between_convolutions() -> None:
    """Our rule's ReLU gradient is what the row `dgrad_strictmask` matches."""

    def loss(emit: Any, x: Any, w: Any, v: Any) -> Any:
        y = emit(nn.conv2d(emit(nn.relu(fprop(emit, x, w))), v))
        return op.sum(emit(op.multiply(y, y)))

    forward = module({**F, "v": (5, 4, 3, 3)}, loss)
    mod = tvm.IRModule({"main": grad(forward)["main_adjoint"].with_attr("global_symbol", "main")})
    out, report = partitioned(mod)
    assert report.rows()["cudnn.dgrad_strictmask"] == 1
    assert report.share == 1
    same_numbers(mod, out)


@pytest.mark.parametrize("body", [
    lambda e, x, w, b: [(y := fprop(e, x, w)), bias(e, y, b)],
    lambda e, x, w, b: e(op.multiply(y := fprop(e, x, w), bias(e, y, b))),
])  # fmt: skip
def test_intermediate_that_is_used_elsewhere(body: Body) -> None:
    mod = module({**F, "b": (1, 4, 1, 1)}, body)
    out, report = partitioned(mod)
    assert only(report).row == "fprop"
    assert "is needed elsewhere" in tried(report)
    same_numbers(mod, out)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        ((2, 4, 6, 6), "not one value per channel"),
        ((1, 1, 6, 6), "not one value per channel"),
        ((6,), "not one value per channel"),
        ((), "not one value per channel"),
        ((1, 2, 4, 6, 6), "more than 4 axes"),
    ],
)
def test_addend_that_is_no_bias(shape: tuple[int, ...], reason: str) -> None:
    body, _, _ = ROWS["fprop_bias"]
    out, report = partitioned(module({**F, "b": shape}, body))
    assert only(report).row == "fprop"
    assert reason in tried(report)
    assert ops(out["main"]) == ["call", "add"]


def test_bias_in_other_layouts() -> None:
    def body(emit: Any, x: Any, w: Any, b: Any) -> Any:
        return bias(emit, emit(nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OHWI")), b)

    vectors = [(4,), (1, 4), (1, 1, 1, 4)]
    for shape in [*vectors, (6, 1), (6, 1, 1)]:
        shapes = {"x": (2, 8, 8, 3), "w": (4, 3, 3, 3), "b": shape}
        wanted = "fprop_bias" if shape in vectors else "fprop"
        assert only(partitioned(module(shapes, body))[1]).row == wanted


def test_sum_of_a_convolution_with_itself() -> None:
    """One pixel, one image: its result has a bias's shape, but is no operand."""
    shapes = {"x": (1, 3, 3, 3), "w": W}
    mod = module(shapes, lambda e, x, w: e(op.add(y := fprop(e, x, w), y)))
    out, report = partitioned(mod)
    assert only(report).row == "fprop"
    assert "made by the convolution itself" in tried(report)
    same_numbers(mod, out)


def test_sum_of_two_convolutions_goes_to_one() -> None:
    shapes = {"x": (1, 3, 3, 3), "w": W, "v": V}
    mod = module(shapes, lambda e, x, w, v: e(op.add(fprop(e, x, w), fprop(e, x, v))))
    out, report = partitioned(mod)
    assert report.rows() == {"cudnn.fprop_bias": 1, "cudnn.fprop": 1}
    same_numbers(mod, out)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        (lambda e, y, x: e(op.where(e(op.less(x, relax.const(1.0))), ZERO, y)), "another value"),
        (lambda e, y, x: e(op.where(e(op.less(x, ZERO)), relax.const(2.0), y)), "another value"),
        (lambda e, y, x: masked(e, y, e(op.sum(x))), "not of the result's shape"),
        (lambda e, y, x: e(op.where(e(op.less(x, ZERO)), y, ZERO)), ""),
        (lambda e, y, x: e(op.where(e(op.greater(x, ZERO)), ZERO, y)), ""),
        (lambda e, y, x: e(op.where(e(op.less_equal(x, ZERO)), y, ZERO)), ""),
        (lambda e, y, x: e(op.where(e(op.less(y, ZERO)), ZERO, x)), ""),
        (lambda e, y, x: [masked(e, y, x), y], "is needed elsewhere"),
    ],
)
def test_mask_that_is_none(mask: Any, reason: str) -> None:
    mod = module({**D, "x": X}, lambda e, g, w, x: mask(e, dgrad(e, g, w), x))
    _, report = partitioned(mod)
    entry = only(report)
    assert entry.row == "dgrad"
    assert reason in tried(report)


def test_mask_that_is_used_elsewhere() -> None:
    def body(emit: Any, g: Any, w: Any, x: Any) -> Any:
        below = emit(op.less(x, ZERO))
        y = dgrad(emit, g, w)
        return [emit(op.where(below, ZERO, y)), emit(op.where(below, x, ZERO))]

    mod = module({**D, "x": X}, body)
    out, report = partitioned(mod)
    assert only(report).row == "dgrad"
    assert "is needed elsewhere" in tried(report)
    same_numbers(mod, out)
