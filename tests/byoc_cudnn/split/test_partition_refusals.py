"""Every way in which a convolution can stay behind, with its reason; and wrong arguments."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import tvm
from rich.console import Console
from tvm import relax, tirx

import byoc_cudnn
import relay_wgrad
from byoc_cudnn import Decision, Entry, Report
from byoc_cudnn.backends.cudnn.check import Options, check
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.transform import RaiseConvBackward, RaiseEntry
from tests.support.partition_cases import (
    module,
    names,
    nn,
    only,
    op,
    partitioned,
    problem_module,
    regions,
)


@pytest.fixture(autouse=True)
def _registered(registered: None) -> None:
    """All of this needs the package's operators."""


# ---- problems ------------------------------------------------------------------------------------

# problem -> part of the reason, None where it is accepted
PROBLEMS = {
    "fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3": None,
    "fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3 groups=4 dil=1,1 dtype=bf16/bf16/bf16": None,
    "fprop n=1 c=4 h=9 w=9 k=8 r=3 s=3 groups=2 dil=2,3 stride=3,2 dtype=f16/f16/f16": None,
    "wgrad n=1 c=4 h=4 w=4 k=4 r=3 s=3 dtype=f16/f32/f16": "all must be one dtype",
    "wgrad n=1 c=4 h=4 w=4 k=4 r=3 s=3 dtype=bf16/f32/bf16": "all must be one dtype",
    "wgrad n=1 c=4 h=4 w=4 k=4 r=3 s=3 dtype=f32/f16/f32": "all must be one dtype",
    "fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3 dtype=f16/f16/f32": "all must be one dtype",
    "dgrad n=1 c=4 h=4 w=4 k=4 r=3 s=3 dtype=f32/f16/f16": "all must be one dtype",
    "fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3 dtype=f16/f32/f16": "all must be one dtype",
    "fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3 dtype=f64/f64/f64": "dtype float64: cuDNN's are",
    "fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3 layout=NHWC/HWIO/NHWC": "layouts NHWC/HWIO/NHWC",
    "wgrad n=1 c=4 h=4 w=4 k=4 r=3 s=3 layout=NCHW/OIHW/NHWC": "layouts NCHW/OIHW/NHWC",
    "dgrad n=1 c=4 h=4 w=4 k=4 r=3 s=3 pad=0,1,1,1": "asymmetric padding",
    "fprop n=65536 c=64 h=32 w=32 k=1 r=1 s=1": "data has 4294967296 elements",
    "fprop n=65536 c=1 h=32 w=32 k=64 r=1 s=1": "grad has 4294967296 elements",
    "wgrad n=1 c=65536 h=2 w=2 k=65536 r=1 s=1": "weight has 4294967296 elements",
}


@pytest.mark.parametrize("line", PROBLEMS)
def test_problem(line: str) -> None:
    decision, reason = check(ConvProblem.parse(line), ""), PROBLEMS[line]
    assert decision.ok is (reason is None)
    assert bool(decision) is decision.ok
    assert (reason or "") in decision.reason


NHWC = "layout=NHWC/OHWI/NHWC"
HALF = f"{NHWC} dtype=f16/f16/f16"
# (problem, epilogue) -> part of the reason, None where it is fused
EPILOGUES = {
    ("fprop n=1 c=3 h=4 w=4 k=5 r=3 s=3", "bias_relu"): None,
    ("fprop n=1 c=3 h=4 w=4 k=5 r=3 s=3", "relu"): "relu in NCHW: cuDNN fuses it in NHWC only",
    ("fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3 groups=4", "bias"): "bias with groups=4",
    ("fprop n=1 c=4 h=9 w=9 k=4 r=3 s=3 dil=1,2", "bias"): "dilation=(1, 2)",
    (f"fprop n=1 c=3 h=4 w=4 k=5 r=3 s=3 {NHWC}", "relu"): None,
    (f"dgrad n=1 c=8 h=4 w=4 k=16 r=3 s=3 {NHWC}", "bias"): None,
    ("dgrad n=1 c=8 h=4 w=4 k=16 r=3 s=3", "bias"): "bias in NCHW",
    (f"dgrad n=1 c=12 h=4 w=4 k=16 r=3 s=3 {NHWC}", "relu"): "C=12, K=16",
    (f"dgrad n=1 c=16 h=4 w=4 k=12 r=3 s=3 {NHWC}", "relu"): "C=16, K=12",
    (f"dgrad n=1 c=16 h=4 w=4 k=16 r=3 s=3 groups=2 {NHWC}", "bias_relu"): "groups=2",
    (f"dgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 stride=2,1 {NHWC}", "bias_relu"): None,
    (f"dgrad n=1 c=16 h=9 w=2 k=16 r=3 s=1 stride=2,2 {NHWC}", "bias_relu"): None,
    (f"dgrad n=1 c=16 h=9 w=1 k=16 r=3 s=1 stride=2,2 {NHWC}", "bias"): "sides (9, 1)",
    (f"dgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 {HALF}", "mask"): None,
    (f"dgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 stride=1,2 {HALF}", "mask"): "strides=(1, 2)",
    (f"dgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 {NHWC}", "mask"): "mask with float32",
    (f"dgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 {HALF}", "strictmask"): None,
    (f"dgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 stride=1,2 {HALF}", "strictmask"): "strides=(1, 2)",
    (f"dgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 {NHWC}", "strictmask"): "mask with float32",
    (f"wgrad n=1 c=16 h=9 w=9 k=16 r=3 s=3 {NHWC}", "relu"): "no epilogue 'relu' for wgrad",
}


@pytest.mark.parametrize(("line", "epilogue"), EPILOGUES)
def test_epilogue(line: str, epilogue: str) -> None:
    decision, reason = check(ConvProblem.parse(line), epilogue), EPILOGUES[line, epilogue]
    assert decision.ok is (reason is None)
    assert (reason or "") in decision.reason


def test_symbolic_channels_and_no_images() -> None:
    c = tirx.Var("c", "int64")
    symbolic = ConvProblem(ConvKind.FPROP, 1, c, 4, 4, 8, 3, 3)
    assert check(symbolic, "").reason == "symbolic channels or kernel: C=c"
    empty = ConvProblem(ConvKind.FPROP, 0, 4, 4, 4, 8, 3, 3)
    assert "data is empty" in check(empty, "").reason
    many = ConvProblem(ConvKind.FPROP, tirx.Var("n", "int64"), 2**16, 2**8, 2**8, 8, 3, 3)
    assert "data has 4294967296 elements" in check(many, "").reason
    wgrad = ConvProblem(ConvKind.WGRAD, 1, 4, 4, 4, 8, 3, 3)
    assert check(wgrad, "bias").reason == "no epilogue 'bias' for wgrad"


def test_a_refusal_has_a_reason() -> None:
    for ok, reason in ((True, "because"), (False, "")):
        with pytest.raises(ValueError, match="a refusal has a reason"):
            Decision(ok, reason)


# ---- programs ------------------------------------------------------------------------------------


def left(mod: tvm.IRModule, count: int = 1) -> str:
    """The one reason why a module's convolutions stay."""
    out, report = partitioned(mod)
    assert (report.total, report.offloaded) == (count, 0)
    assert set(regions(out)) == set(regions(mod))
    tvm.ir.assert_structural_equal(out, mod)
    (reason,) = report.reasons()
    return reason


def test_reason_of_a_refused_problem_is_the_entry_s() -> None:
    double = ConvProblem.parse("fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3 dtype=f64/f64/f64")
    assert "dtype float64" in left(problem_module(double))


def test_blocked_layout() -> None:
    mod = module(
        {"x": (1, 1, 8, 8, 4), "w": (1, 1, 3, 3, 4, 4)},
        lambda e, x, w: e(nn.conv2d(x, w, data_layout="NCHW4c", kernel_layout="OIHW4i4o")),
    )
    assert "blocked layout" in left(mod)


def test_unknown_shape() -> None:
    x = relax.Var("x", relax.TensorType(None, "float32", ndim=4))
    w = relax.Var("w", relax.TensorType((4, 3, 3, 3), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            out = bb.emit_output(nn.conv2d(x, w))
        bb.emit_func_output(out)
    assert "unknown" in left(bb.get())


def test_match_cast() -> None:
    x = relax.Var("x", relax.TensorType((1, 3, 6, 6), "float32"))
    w = relax.Var("w", relax.TensorType((4, 3, 3, 3), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        call = bb.normalize(nn.conv2d(x, w))
        out = relax.Var("y", call.ty)
        bb.emit_normalized(relax.MatchCast(out, call, call.ty))
        bb.emit_func_output(out)
    assert left(bb.get()) == "bound by match_cast: bind it to a variable first"


def test_local_function() -> None:
    source = """
# from tvm.script import ir as I
# from tvm.script import relax as R
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((1, 3, 6, 6), "float32"), w: R.Tensor((4, 3, 3, 3), "float32")
    ) -> R.Tensor((1, 4, 4, 4), "float32"):
        @R.function
        def inner(
            a: R.Tensor((1, 3, 6, 6), "float32"), b: R.Tensor((4, 3, 3, 3), "float32")
        ) -> R.Tensor((1, 4, 4, 4), "float32"):
            y = R.nn.conv2d(a, b)
            z = R.nn.conv2d(a, b)
            s = R.add(y, z)
            return s

        out = inner(x, w)
        return out
"""
    assert "a local function" in left(tvm.script.from_source(source), count=2)


def test_function_of_another_pass() -> None:
    mod = problem_module(ConvProblem.parse("fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3"))
    for attribute, value in (("Codegen", "other"), ("Primitive", True)):
        taken = tvm.IRModule({"main": mod["main"].with_attr(attribute, value)})
        assert left(taken) == "in a function that another pass has taken"


def test_strict() -> None:
    shapes = {"x": ((1, 3, 6, 6), "float64"), "w": ((4, 3, 3, 3), "float64")}
    mod = module(shapes, lambda e, x, w: e(nn.conv2d(x, w)))
    with pytest.raises(
        ValueError, match="1 of 1 convolutions stay: main: lv = conv2d: dtype float64"
    ):
        byoc_cudnn.partition(mod, strict=True)
    with pytest.raises(ValueError, match="dtype float64"):
        byoc_cudnn.partition_for_cudnn(mod, strict=True)
    fine = problem_module(ConvProblem.parse("fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3"))
    assert byoc_cudnn.partition(fine, strict=True)[1].share == 1


# ---- arguments -----------------------------------------------------------------------------------


def one() -> tvm.IRModule:
    return problem_module(ConvProblem.parse("fprop n=1 c=4 h=4 w=4 k=4 r=3 s=3"))


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"backends": ("cutlas",)}, ValueError, "unknown backend 'cutlas'; there are cudnn"),
        ({"backends": "cudnn"}, TypeError, "must be a list of names"),
        ({"backends": ()}, TypeError, "must be a list of names"),
        ({"backends": (1,)}, TypeError, "named by a string, got 1"),
        ({"cutlas": {}}, ValueError, "unknown backend 'cutlas'; there are cudnn"),
        ({"cudnn": {"tf32": True}}, ValueError, "unknown option tf32; there are allow_tf32, bench"),
        ({"cudnn": {"allow_tf32": 1}}, TypeError, "allow_tf32 must be bool, got 1"),
        ({"cudnn": {"workspace_limit": 1.5}}, TypeError, "workspace_limit must be int, got 1.5"),
        ({"cudnn": {"workspace_limit": True}}, TypeError, "workspace_limit must be int, got True"),
        ({"cudnn": {"workspace_limit": -1}}, ValueError, "workspace_limit must be at least 0"),
        ({"cudnn": 3}, TypeError, "options must be a mapping, got 3"),
    ],
)
def test_arguments(given: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        byoc_cudnn.partition(one(), **given)


def test_more_arguments() -> None:
    with pytest.raises(TypeError, match="must be an IRModule, got Function"):
        byoc_cudnn.partition(one()["main"])
    with pytest.raises(TypeError, match="must be an IRModule, got Function"):
        byoc_cudnn.unpartition(one()["main"])
    with pytest.raises(ValueError, match="unknown backend 'tpu'"):
        byoc_cudnn.patterns("tpu")
    with pytest.raises(TypeError, match="allow_tf32 must be bool"):
        byoc_cudnn.partition_for_cudnn(one(), allow_tf32=None)
    out, _ = byoc_cudnn.partition(one(), cudnn=Options(benchmark=True))
    (region,) = regions(out).values()
    assert '"benchmark\\": true' in region.script()


def test_needs_the_operators() -> None:
    mod = one()
    relay_wgrad.unregister()
    with pytest.raises(RuntimeError, match=r"call relay_wgrad.register\(\) first"):
        byoc_cudnn.partition(mod)


def test_nothing_to_do() -> None:
    mod = module({"x": (2, 3)}, lambda e, x: e(op.exp(x)))
    out, report = partitioned(mod)
    assert (report.total, report.share, str(report)) == (0, 1, "0 of 0 convolutions offloaded")
    assert names(out) == ["main"]


# ---- the report ----------------------------------------------------------------------------------


def test_report_in_all_forms() -> None:
    entries = [
        Entry("main", "lv", "conv2d", "fprop", "cudnn", "fprop", source="w[red]"),
        Entry("main", "a|b", "conv2d", "fprop", reason="dtype"),
        Entry("main", "c", "conv2d", "fprop", reason="dtype"),
    ]
    report = Report(entries)
    assert (report.total, report.offloaded, len(report.left)) == (3, 1, 2)
    assert report.share == pytest.approx(1 / 3)
    assert report.reasons() == {"dtype": 2}
    assert report.rows() == {"cudnn.fprop": 1}
    assert repr(report) == "<Report: 1 of 3 convolutions offloaded>"
    assert str(report).splitlines() == [
        "1 of 3 convolutions offloaded",
        "      1  cudnn.fprop",
        "      2  left: dtype (a|b, c)",
    ]
    data = json.loads(report.to_json())
    assert (data["total"], data["offloaded"], len(data["entries"])) == (3, 1, 3)
    assert data["entries"][1]["node"] == "a|b"
    assert data["composites"] == []
    markdown = report.to_markdown().splitlines()
    assert len(markdown) == 2 + 2 + 3
    assert "| a\\|b |" in markdown[5]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.table())
    assert "w[red]" in console.export_text(), "names are no markup"


def test_source_is_the_weight() -> None:
    def body(emit: Any, x: Any, conv1_w: Any, g: Any) -> Any:
        half = emit(op.astype(emit(op.permute_dims(conv1_w, [0, 1, 3, 2])), "float16"))
        x16, g16 = emit(op.astype(x, "float16")), emit(op.astype(g, "float16"))
        y = emit(nn.conv2d(x16, half))
        dw = emit(relay_wgrad.conv2d_backward_weight(g16, x16, (3, 3), out_dtype="float32"))
        dx = emit(relay_wgrad.conv2d_backward_data(g16, half, (2, 3, 8, 8)))
        return [y, dw, dx]

    mod = module({"x": (2, 3, 8, 8), "conv1_w": (4, 3, 3, 3), "g": (2, 4, 6, 6)}, body)
    out, report = partitioned(mod)
    assert [e.source for e in report.entries] == ["conv1_w"] * 3
    again = byoc_cudnn.partition(out)[1]
    assert [e.source for e in again.entries] == ["conv1_w"] * 3
    # The weight's gradient has become one of float32 operands, and is reported as that.
    kept = [i for i, e in enumerate(report.entries) if not e.adapted]
    assert len(kept) == 2
    assert all(again.entries[i].problem == report.entries[i].problem for i in kept)


def test_source_has_the_line_where_it_is_known() -> None:
    span = tvm.ir.Span(tvm.ir.SourceName("/home/me/model.py"), 7, 7, 1, 9)
    x = relax.Var("x", relax.TensorType((1, 3, 6, 6), "float32"))
    w = relax.Var("w", relax.TensorType((4, 3, 3, 3), "float32"))
    plain = nn.conv2d(x, w)
    bb = relax.BlockBuilder()
    with bb.function("main", [x, w]):
        with bb.dataflow():
            out = bb.emit_output(relax.Call(plain.op, [x, w], plain.attrs, [], span))
        bb.emit_func_output(out)
    assert only(partitioned(bb.get())[1]).source == "w model.py:7"


@pytest.mark.parametrize(
    ("kinds", "hint"),
    [
        (["wgrad"], "1 of these is a weight gradient in composite form"),
        (["dgrad"] * 2, "2 of these are data gradients in composite form"),
        (["dgrad", "wgrad"], "2 of these are gradients in composite form"),
    ],
)
def test_hint(kinds: list[str], hint: str) -> None:
    hint += ": run RaiseConvBackward first"
    composites = [RaiseEntry("main", "dw", kind) for kind in kinds]
    report = Report([Entry("main", "c", "conv2d", "", "cudnn", "fprop")], composites)
    assert report.hint == hint
    assert str(report).splitlines()[-1] == hint
    assert hint in report.to_markdown()
    assert [entry["kind"] for entry in json.loads(report.to_json())["composites"]] == kinds
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.table())
    assert hint in " ".join(console.export_text().split())


def test_stock_gradients_are_in_composite_form() -> None:
    """As Relax's own rule writes them; ours are operators, and nothing is said of them."""
    relay_wgrad.unregister()
    stock = relax.transform.Gradient("main")(_loss())
    relay_wgrad.register()
    with pytest.warns(UserWarning, match="4 convolutions; 1 of these is a weight gradient") as seen:
        _, report = byoc_cudnn.partition(stock)
    assert [warning.filename for warning in seen] == [__file__]
    assert [(e.function, e.kind) for e in report.composites] == [("main_adjoint", "wgrad")]
    _, report = byoc_cudnn.partition(RaiseConvBackward()(stock))
    assert (report.composites, report.rows()["cudnn.wgrad"]) == ((), 1)


def _loss() -> tvm.IRModule:
    shapes = {"x": (2, 3, 8, 8), "w": (4, 3, 3, 3)}
    return module(shapes, lambda e, x, w: e(op.sum(e(nn.conv2d(x, w)))))


def test_table_joins_equal_calls_and_says_what_they_share() -> None:
    line = "fprop n=1 c=3 h=6 w=6 k=4 r=3 s=3"
    half = line + " dtype=f16/f16/f32"
    entries = [
        Entry("main", "a", "conv2d", line, "cudnn", "fprop"),
        Entry("main", "b", "conv2d", line, "cudnn", "fprop"),
        Entry("f", "c", "conv2d", half, reason="dtype", source="w model.py:7"),
        Entry("f", "d", "conv2d", line.replace("n=1", "n=N"), "cudnn", "fprop", adapted="pad"),
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(Report(entries).table("mine"))
    title, _, head, _, *rows = (line.rstrip() for line in console.export_text().splitlines())
    assert title == "mine, cudnn"
    assert head.split() == [
        "function", "kind", "problem", "layout", "row", "adapted", "reason", "first", "at", "×",
    ]  # fmt: skip
    assert [row.split()[-1] for row in rows if row] == ["2", "1", "1"]
    for text in ("NCHW/OIHW f16/f32", "stays", "w model.py:7"):
        assert text in rows[1]
    assert "n=N c=3" in rows[2]
