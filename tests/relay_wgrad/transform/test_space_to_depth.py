"""Convolutions of few channels on blocks of pixels: what they were, in every layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import legalize.cpu
from relay_wgrad.attrs import ConvAttrs
from relay_wgrad.ops.algebra import dgrad_call, fprop_call, wgrad_call
from relay_wgrad.pipeline.cpu import cpu_pipeline
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.transform import DepthEntry, SpaceToDepth, space_to_depth
from relay_wgrad.transform.depth_blocks import FORMS, Blocks
from relay_wgrad.transform.depth_forms import seconds
from tests.support.compiled import virtual_machine
from tests.support.problems import (
    random_operands,
    random_problem,
    relative_error,
    tolerance,
    torch_reference,
)

pytestmark = pytest.mark.usefixtures("registered")

DTYPES = ("float16", "bfloat16", "float32")


def drawn(rng: np.random.Generator, flop: float = 2e6) -> ConvProblem:
    """A forward problem of few channels that the pass takes; most have a stride."""
    while True:
        p = random_problem(rng, ConvKind.FPROP, dtypes=DTYPES, mixed=False, max_flop=flop)
        p = replace(p, c=int(rng.integers(1, 5)), groups=1, dilation=(1, 1))
        unit = 4 if p.data_dtype == "float32" else 8
        if p.strides != (1, 1) or (p.c != unit and rng.random() < 0.3):
            return p


def attributes(p: ConvProblem, **more: Any) -> ConvAttrs:
    return ConvAttrs(
        p.strides, p.padding, p.dilation, p.groups, p.data_layout, p.kernel_layout, p.grad_layout,
        **more,
    )  # fmt: skip


def variables(p: ConvProblem, n: Any = None) -> dict[str, relax.Var]:
    if n is not None:
        p = replace(p, n=n)
    return {
        role: relax.Var(role, relax.TensorType(p.shape(role), p.dtype(role)))
        for role in ("data", "weight", "grad")
    }


def module(problems: Sequence[ConvProblem], n: Any = None) -> tvm.IRModule:
    """A function for each problem: its convolution and its weight gradient."""
    bb = relax.BlockBuilder()
    for i, p in enumerate(problems):
        t = variables(p, n)
        a = attributes(p, kernel_size=(p.r, p.s))
        with bb.function(f"f{i}", list(t.values())):
            with bb.dataflow():
                y = bb.emit(fprop_call(t["data"], t["weight"], replace(a, kernel_size=None)), "y")
                dw = bb.emit(wgrad_call(t["grad"], t["data"], a), "dw")
                both = bb.emit_output(relax.Tuple([y, dw]))
            bb.emit_func_output(both)
    return bb.get()


def check(problems: Sequence[ConvProblem], forms: Sequence[str], n: Any = None) -> None:
    out, entries = module(problems, n), list[DepthEntry]()
    for i, form in enumerate(forms):
        out, found = space_to_depth(out, [f"f{i}"], form=form)
        entries += found
    assert [e.reason for e in entries if not e.became] == []
    assert len(entries) == 2 * len(problems)
    relax.analysis.well_formed(out)
    vm = virtual_machine(out, legalize.cpu.host_target(), cpu_pipeline())
    rng = np.random.default_rng(1)
    for i, p in enumerate(problems):
        wgrad = p.with_kind(ConvKind.WGRAD)
        x, w = random_operands(p, rng)
        dy, _ = random_operands(wgrad, rng)
        y, dw = vm[f"f{i}"](*map(tvm.runtime.tensor, (x, w, dy)))
        for problem, got, operands in ((p, y, (x, w)), (wgrad, dw, (dy, x))):
            error = relative_error(got.numpy(), torch_reference(problem, *operands))
            assert error <= tolerance(problem), problem.repro()


def test_every_index() -> None:
    """The arithmetic alone, on many problems in each form: blocks gathered by NumPy."""
    rng = np.random.default_rng(0)
    wider = set()
    for form in [*FORMS] * 20:
        p: Any = replace(
            drawn(rng, 1e5), data_layout="NCHW", kernel_layout="OIHW", grad_layout="NCHW",
            data_dtype="float64", weight_dtype="float64", grad_dtype="float64",
        )  # fmt: skip
        b = Blocks.of(p, 8, form)
        wider.add(b.width > b.columns.block)
        x, w = rng.standard_normal(p.shape("data")), rng.standard_normal(p.shape("weight"))
        c, dh, dw = b.split(np.arange(b.filled))
        image, filters = (
            gathered(tensor, c, dw < b.columns.block, *(
                (at(np.arange(count)[:, None], d[None]) for at, count, d in axes)
            ), b.new_channels)
            for tensor, axes in (
                (x, ((b.rows.source, b.rows.length, dh), (b.columns.source, b.columns.length, dw))),
                (w, ((b.rows.tap, b.rows.new_taps, dh), (b.columns.tap, b.columns.new_taps, dw))),
            )
        )  # fmt: skip
        n, channels, h, wide = image.shape
        new = ConvProblem(
            ConvKind.FPROP, n, channels, h, wide, p.k, b.rows.new_taps, b.columns.new_taps,
            data_dtype="float64", weight_dtype="float64", grad_dtype="float64",
        )  # fmt: skip
        want = torch_reference(p, x, w)
        assert relative_error(torch_reference(new, image, filters), want) < 1e-13, p.repro()
        r, s = np.meshgrid(np.arange(p.r), np.arange(p.s), indexing="ij")
        (i, dh), (j, dw) = b.rows.place(r), b.columns.place(s)
        first = (np.arange(p.c)[:, None, None] * b.rows.block + dh) * b.width + dw
        assert np.array_equal(filters[:, first, i, j], w), p.repro()
    assert wider == {False, True}


def gathered(tensor: Any, c: Any, has: Any, rows: Any, columns: Any, channels: int) -> Any:
    """(n, channels, i, j) of `tensor[n, c, rows, columns]`, zero outside and where it `has` not."""
    _, _, h, w = tensor.shape
    y, x = rows.T[:, :, None], columns.T[:, None, :]
    inside = (y >= 0) & (y < h) & (x >= 0) & (x < w) & has[:, None, None]
    found = tensor[:, c[:, None, None], np.clip(y, 0, h - 1), np.clip(x, 0, w - 1)] * inside
    return np.pad(found, ((0, 0), (0, channels - len(c)), (0, 0), (0, 0)))


STEMS = (
    "n=2 c=3 h=23 w=20 k=6 r=7 s=7 stride=2,2 pad=3,3,3,3 layout=NHWC/OHWI/NHWC dtype=f16/f16/f16",
    "n=2 c=4 h=9 w=13 k=5 r=2 s=5 stride=3,2 pad=2,0,1,4 layout=NCHW/OIHW/NCHW",
    "n=3 c=1 h=8 w=7 k=3 r=3 s=3 pad=1,1,1,1 layout=HWNC/IOHW/HWCN dtype=bf16/bf16/bf16",
)


@pytest.mark.share(3)
@pytest.mark.parametrize(("form", "stems"), [
    ("blocks", STEMS[::2]), ("rows", STEMS[:2]), ("windows", STEMS[1:]),
])  # fmt: skip
def test_both_are_what_they_were(form: str, stems: Sequence[str]) -> None:
    check([ConvProblem.parse(f"fprop {text}") for text in stems], [form] * len(stems))


@pytest.mark.longer
def test_random_problems() -> None:
    rng = np.random.default_rng(2)
    check([drawn(rng) for _ in range(24)], [*FORMS] * 8)


def test_what_was_not_read() -> None:
    """Pixels behind the last window, and those between windows, may be anything."""
    for text, form, rows in (
        ("n=1 c=3 h=10 w=10 k=4 r=3 s=3 stride=4,4 pad=0,0,0,0", "blocks", (3, 7, 8, 9)),
        ("n=1 c=3 h=11 w=11 k=4 r=5 s=5 stride=3,3 pad=1,1,1,1", "blocks", (10,)),
        ("n=1 c=3 h=11 w=11 k=4 r=5 s=5 stride=3,3 pad=1,1,1,1", "windows", (10,)),
    ):
        p = ConvProblem.parse(f"fprop {text} layout=NHWC/OHWI/NHWC")
        made = SpaceToDepth(form=form)(module([p]))
        vm = virtual_machine(made, legalize.cpu.host_target(), cpu_pipeline())
        rng = np.random.default_rng(0)
        (x, w), (dy, _) = (random_operands(q, rng) for q in (p, p.with_kind(ConvKind.WGRAD)))
        x[:, rows, :] = x[:, :, rows] = np.nan
        for result in vm["f0"](*map(tvm.runtime.tensor, (x, w, dy))):
            assert np.isfinite(result.numpy()).all(), text


def test_a_whole_row_is_no_larger() -> None:
    """An infinite pixel reaches those columns of a result that it is in, though rows are filled."""
    p = ConvProblem.parse(
        "fprop n=1 c=3 h=8 w=16 k=4 r=7 s=7 stride=2,2 pad=3,3,3,3"
        " layout=NHWC/OHWI/NHWC dtype=f16/f16/f16"
    )
    assert Blocks.of(p, 8, "rows").width == 8
    made = SpaceToDepth(form="rows")(module([p]))
    executable = virtual_machine(made, legalize.cpu.host_target(), cpu_pipeline())
    rng = np.random.default_rng(0)
    (x, w), (dy, _) = (random_operands(q, rng) for q in (p, p.with_kind(ConvKind.WGRAD)))
    x[:, 4, 8] = np.inf
    y, _ = executable["f0"](*map(tvm.runtime.tensor, (x, w, dy)))
    columns = np.flatnonzero(~np.isfinite(y.numpy()).all((0, 1, 3)))
    assert columns.tolist() == [3, 4, 5]  # 2 q - 3 <= 8 <= 2 q + 3


def test_symbolic_batch() -> None:
    check([ConvProblem.parse(f"fprop {STEMS[1]}")], ["blocks"], n=tirx.Var("n", "int64"))


def ops(func: relax.Function) -> list[str]:
    values = [b.value for block in func.body.blocks for b in block.bindings]
    calls = [v for v in values if isinstance(v, relax.Call)]
    return [
        str(c.args[0].name_hint) if str(c.op.name) == "relax.call_tir" else str(c.op.name)
        for c in calls
    ]


@pytest.mark.parametrize("form", ["blocks", "windows"])
def test_how_often_an_image_is_made(form: str) -> None:
    """Once, also where both calls read copies of it that were made alike; or for each call."""
    p = ConvProblem.parse("fprop n=2 c=3 h=32 w=32 k=8 r=3 s=3 stride=2,2 pad=1,1,1,1"
                          " layout=NHWC/OHWI/NHWC dtype=f16/f16/f16")  # fmt: skip
    t = variables(p)
    n, c, h, w = p.canonical_shape("data")
    image = relax.Var("image", relax.TensorType((n, c, h, w), "float32"))
    a = attributes(p)
    bb = relax.BlockBuilder()
    with bb.function("main", [image, t["weight"], t["grad"]]):
        with bb.dataflow():
            rows = [bb.emit(relax.op.permute_dims(image, [0, 2, 3, 1])) for _ in range(2)]
            x, again = (bb.emit(relax.op.astype(row, "float16"), "x") for row in rows)
            y = bb.emit(fprop_call(x, t["weight"], a), "y")
            dw = bb.emit(wgrad_call(t["grad"], again, replace(a, kernel_size=(3, 3))), "dw")
            both = bb.emit_output(relax.Tuple([y, dw]))
        bb.emit_func_output(both)
    out = SpaceToDepth(form=form)(bb.get())
    found = ops(out["main"])
    if form == "windows":  # of both axes: the gradient's image is made right before it
        # (of the two copies of the image that are alike it has its own)
        assert found[-3:] == [
            "space_to_depth", "relax.nn.conv2d_backward_weight", "filter_from_depth",
        ]  # fmt: skip
        assert found.count("space_to_depth") == 2
        return
    assert found == [
        "relax.permute_dims", "relax.astype", "space_to_depth", "filter_to_depth",
        "relax.nn.conv2d", "relax.nn.conv2d_backward_weight", "filter_from_depth",
    ]  # fmt: skip
    bindings = {b.var.name: b.value for b in out["main"].body.blocks[0].bindings}
    assert {"y", "dw", "dw_in_depth"} <= set(bindings)  # names of results stay
    # (2, 3, 32, 32) and 3x3 taps, in blocks of 2x2.
    assert tuple(map(int, bindings["x_to_depth"].ty.shape.values)) == (2, 17, 17, 16)
    again_out, entries = space_to_depth(out)
    assert again_out.same_as(out)
    assert {e.reason for e in entries} == {"16 channels: few are 4"}


BASE = "n=2 c=3 h=12 w=12 k=4 r=3 s=3 stride=2,2 pad=1,1,1,1 {} layout=NHWC/OHWI/NHWC dtype={}"
REFUSED = {
    "64 channels: few are 4": BASE.replace("c=3", "c=64").format("", "f16/f16/f16"),
    "3 groups": BASE.replace("k=4", "k=6").format("groups=3", "f16/f16/f16"),
    "dilation 2x1": BASE.format("dil=2,1", "f16/f16/f16"),
    "float64: only float16, bfloat16, float32": BASE.format("", "f64/f64/f64"),
    "4 channels of float32 are as many as a library reads at once": BASE.replace("c=3", "c=4")
    .replace("stride=2,2", "stride=1,1")
    .format("", "f32/f32/f32"),
    "1200 channels in blocks: at most 1024": (
        "n=1 c=3 h=20 w=20 k=4 r=20 s=20 stride=20,20 layout=NHWC/OHWI/NHWC dtype=f32/f32/f32"
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_stays(reason: str) -> None:
    p = ConvProblem.parse(f"fprop {REFUSED[reason]}")
    mod = module([p])
    out, (y, dw) = space_to_depth(mod)
    assert out.same_as(mod)
    assert y == DepthEntry("f0", "y", p.repro(), "", reason)
    assert dw == DepthEntry("f0", "dw", p.with_kind(ConvKind.WGRAD).repro(), "", reason)


def test_what_else_stays() -> None:
    p = ConvProblem.parse(f"fprop {BASE.format('', 'f16/f16/f16')}")
    one = replace(p, strides=(1, 1))
    mod = module([one])
    _, entries = space_to_depth(mod, stride_one=False)
    assert {e.reason for e in entries} == {"stride 1, which was not asked for"}
    _, entries = space_to_depth(module([p, p]), ["f1"])
    assert {e.function for e in entries} == {"f1"}
    h = tirx.Var("h", "int64")
    _, entries = space_to_depth(module([replace(p, h=h)]))
    assert {e.reason for e in entries} == {"sizes other than N that are symbolic"}
    bb = relax.BlockBuilder()
    t = variables(p)
    a = attributes(p)
    with bb.function("main", list(t.values())):
        with bb.dataflow():
            y = bb.emit(fprop_call(t["data"], t["weight"], a), "y")
            shape = relax.ShapeExpr(p.shape("data"))
            dx = bb.emit(dgrad_call(t["grad"], t["weight"], shape, a), "dx")
            dw = bb.emit(wgrad_call(t["grad"], t["data"], replace(a, kernel_size=(3, 3))), "dw")
            out = bb.emit_output(relax.Tuple([y, dx, dw]))
        bb.emit_func_output(out)
    _, entries = space_to_depth(bb.get())
    assert [(e.node, e.reason) for e in entries] == [
        ("y", "its data needs a gradient"), ("dw", "its data needs a gradient"),
    ]  # fmt: skip
    with pytest.raises(TypeError, match="space_to_depth: mod must be an IRModule, got int"):
        space_to_depth(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="form must be one of auto, blocks, rows, windows, got 'x"):
        SpaceToDepth(form="x")
    with pytest.raises(ValueError, match="filled_to must be a power of 2 from 4 bytes on, got 24"):
        space_to_depth(mod, filled_to=24)


FLOAT32: Any = dict.fromkeys(("data_dtype", "weight_dtype", "grad_dtype"), "float32")
KNOWN = {  # in half on blocks, as predicted to be fastest; that in float32
    "c=3 h=224 w=224 k=64 r=7 s=7 stride=2,2 pad=3,3,3,3": (
        "c=16 h=115 w=115 k=64 r=4 s=4", "c=48 h=115 w=112 k=64 r=4 s=1",
        "c=44 h=115 w=112 k=64 r=4 s=1",
    ),
    "c=3 h=224 w=224 k=32 r=3 s=3 stride=2,2 pad=1,1,1,1": (
        "c=16 h=113 w=113 k=32 r=2 s=2", "c=32 h=112 w=112 k=32 r=1 s=1",
        "c=28 h=112 w=112 k=32 r=1 s=1",
    ),
    "c=3 h=224 w=224 k=64 r=3 s=3 pad=1,1,1,1": (
        "c=8 h=226 w=226 k=64 r=3 s=3", "c=32 h=224 w=224 k=64 r=1 s=1",
        "c=28 h=224 w=224 k=64 r=1 s=1",
    ),
    "c=1 h=256 w=256 k=64 r=3 s=3 pad=1,1,1,1": (
        "c=8 h=258 w=258 k=64 r=3 s=3", "c=16 h=256 w=256 k=64 r=1 s=1",
        "c=12 h=256 w=256 k=64 r=1 s=1",
    ),
    "c=1 h=28 w=28 k=32 r=5 s=5 pad=2,2,2,2": (
        "c=8 h=32 w=32 k=32 r=5 s=5", "c=32 h=28 w=28 k=32 r=1 s=1", "c=8 h=32 w=28 k=32 r=5 s=1",
    ),
    "c=3 h=224 w=224 k=64 r=11 s=11 stride=4,4 pad=2,2,2,2": (
        "c=48 h=57 w=57 k=64 r=3 s=3", "c=48 h=57 w=57 k=64 r=3 s=3",
        "c=132 h=57 w=55 k=64 r=3 s=1",
    ),
    "c=3 h=224 w=224 k=96 r=4 s=4 stride=4,4": ("c=48 h=56 w=56 k=96 r=1 s=1",) * 3,
    "c=3 h=224 w=224 k=768 r=16 s=16 stride=16,16": ("c=768 h=14 w=14 k=768 r=1 s=1",) * 3,
}  # fmt: skip


def test_kernels_that_are_known() -> None:
    """Convolutions stay where these are predicted to be faster, with the conversion of an image."""
    p = ConvProblem.parse(
        "fprop n=64 c=3 h=224 w=224 k=64 r=3 s=3 pad=1,1,1,1 layout=NHWC/OHWI/NHWC"
        " dtype=f16/f16/f16"
    )
    fastest = 64 * min(seconds(p, Blocks.of(p, 8, form)) for form in FORMS) * 1e6
    for took, n, stays in (
        (0.5 * fastest, None, True), (0.9 * fastest, None, False), (None, None, False),
        (0.5 * fastest, tirx.Var("n", "int64"), False),
    ):  # fmt: skip
        asked = list[ConvProblem]()

        def known(
            problem: ConvProblem, took: float | None = took, asked: list[ConvProblem] = asked
        ) -> float | None:
            asked.append(problem)
            return took

        _, entries = space_to_depth(module([p], n), known=known)
        reasons = {"by kernels that are expected to be faster as it is" if stays else ""}
        assert {entry.reason for entry in entries} == reasons
        assert {problem.kind for problem in asked} >= {ConvKind.FPROP, ConvKind.WGRAD}
    _, entries = space_to_depth(module([p]), form="rows", known=lambda problem: 1.0)
    assert all(entry.became for entry in entries)


def test_shapes_of_known_networks() -> None:
    """First layers of networks, on blocks, and in the form that the model of times gives them."""
    for row, texts in KNOWN.items():
        problem, *halves, wide = (
            ConvProblem.parse(f"fprop n=8 {text} layout=NHWC/OHWI/NHWC dtype=f16/f16/f16")
            for text in (row, *texts)
        )
        for given, form, became in (
            (problem, "blocks", halves[0]), (problem, "auto", halves[1]),
            (replace(problem, **FLOAT32), "auto", replace(wide, **FLOAT32)),
        ):  # fmt: skip
            _, (y, dw) = space_to_depth(module([given]), form=form)
            assert y.became == became.repro()
            assert dw.became == y.became.replace("fprop", "wgrad")


def test_spans_stay() -> None:
    p = ConvProblem.parse(f"fprop {BASE.format('', 'f16/f16/f16')}")
    mod = module([p])
    span = tvm.ir.Span(tvm.ir.SourceName("model.onnx"), 1, 1, 2, 3)
    func = mod["f0"]
    bindings = [
        relax.VarBinding(b.var, relax.Call(b.value.op, b.value.args, b.value.attrs, [], span))
        if isinstance(b.value, relax.Call) else b
        for b in func.body.blocks[0].bindings
    ]  # fmt: skip
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], func.body.body)
    mod["f0"] = relax.Function(func.params, body, func.ret_ty, attrs=func.attrs)
    out = SpaceToDepth()(relax.transform.Normalize()(mod))
    found = [b.value for b in out["f0"].body.blocks[0].bindings]
    convs = [v for v in found if isinstance(v, relax.Call) and "conv2d" in str(v.op)]
    assert [v.span for v in convs] == [span, span]
