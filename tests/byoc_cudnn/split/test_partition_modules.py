"""The partition of whole modules: several functions, branches, symbolic sizes, hostile names."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx

import byoc_cudnn
import relay_wgrad
from byoc_cudnn import BACKENDS, Backend, Decision, Row
from byoc_cudnn.backends.cudnn.check import LAYOUTS, Options, check
from byoc_cudnn.decision import no
from byoc_cudnn.table import CODEGENS
from relay_wgrad.keys import PROBLEM
from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.transform import grad
from tests.support.partition_cases import (
    bias,
    composites,
    dgrad,
    fprop,
    masked,
    module,
    names,
    nn,
    only,
    op,
    partitioned,
    problem_module,
    regions,
    same_numbers,
)

X, W, V = (2, 3, 8, 8), (4, 3, 3, 3), (4, 3, 3, 3)
DX = (2, 4, 6, 6)  # what a convolution of X with W makes
F, D = {"x": X, "w": W}, {"g": DX, "w": W}


@pytest.fixture(autouse=True)
def _setting(registered: None, any_epilogue: None) -> None:
    """The package's operators, and every row for every problem: the mechanism is tested here."""


def test_equal_calls_share_a_function() -> None:
    def body(emit: Any, x: Any, w: Any, v: Any) -> Any:
        return emit(op.multiply(fprop(emit, x, w), fprop(emit, x, v)))

    out, report = partitioned(module({**F, "v": V}, body))
    assert (report.total, len(regions(out))) == (2, 1)


def test_several_functions_keep_what_they_are() -> None:
    a = module(F, lambda e, x, w: fprop(e, x, w), "a")
    b = module(D, lambda e, g, w: dgrad(e, g, w), "b")
    plain = module({"x": X}, lambda e, x: e(nn.relu(x)), "plain")
    mod = tvm.IRModule({name: m[name] for name, m in (("a", a), ("b", b), ("plain", plain))})
    mod["a"] = mod["a"].with_attr("note", "kept")
    mod = mod.with_attr("system", "kept")
    out, report = partitioned(mod)
    assert [(e.function, e.row) for e in report.entries] == [("a", "fprop"), ("b", "dgrad")]
    assert out["a"].attrs["note"] == "kept"
    assert out.attrs["system"] == "kept"
    tvm.ir.assert_structural_equal(out["plain"], mod["plain"])


def test_outside_dataflow_blocks_and_in_branches() -> None:
    source = """
# from tvm.script import ir as I
# from tvm.script import relax as R
@I.ir_module
class Module:
    @R.function
    def main(
        x: R.Tensor((2, 3, 8, 8), "float32"),
        w: R.Tensor((4, 3, 3, 3), "float32"),
        c: R.Tensor((), "bool"),
    ) -> R.Tensor((2, 4, 6, 6), "float32"):
        first = R.nn.conv2d(x, w)
        if c:
            y = R.nn.conv2d(x, w)
            z = R.nn.relu(y)
        else:
            u = R.nn.conv2d(x, w)
            z = R.add(u, first)
        return z
"""
    mod = tvm.script.from_source(source)
    out, report = partitioned(mod)
    assert [(e.node, e.row) for e in report.entries] == [
        ("first", "fprop"), ("y", "fprop_relu"), ("u", "fprop"),
    ]  # fmt: skip
    assert len(regions(out)) == 2


def test_constants_become_operands() -> None:
    weight = relax.const(tvm.runtime.tensor(np.ones(W, "float32")))
    mod = module({"x": X}, lambda e, x: fprop(e, x, weight))
    out, _ = partitioned(mod)
    (inner,) = composites(out)
    assert len(inner.params) == 2
    same_numbers(mod, out)


@pytest.mark.parametrize("kind", list(ConvKind))
def test_symbolic_batch(kind: ConvKind) -> None:
    n = tirx.Var('n"); abort("', "int64")
    problem = ConvProblem(kind, n, 3, 8, 8, 4, 3, 3, padding=(1, 1, 1, 1))
    mod = problem_module(problem)
    out, report = partitioned(mod)
    assert only(report).row == kind.value
    (inner,) = composites(out)
    assert inner.attrs[PROBLEM].startswith(f"{kind.value} n=n c=3 ")
    assert "abort" not in next(iter(regions(out).values())).script()


def test_symbolic_batch_runs() -> None:
    n = tirx.Var("n", "int64")
    mod = module(
        {"g": (n, 4, 6, 6), "w": W, "x": (n, 3, 8, 8), "b": (3, 1, 1)},
        lambda e, g, w, x, b: masked(
            e, e(relay_wgrad.conv2d_backward_data(g, w, (n, 3, 8, 8), padding=0)), x
        ),
    )
    out, report = partitioned(mod)
    assert only(report).row == "dgrad_mask"
    same_numbers(mod, out, n=3)


def test_symbolic_pixels() -> None:
    """fprop and wgrad take their sizes from operands; dgrad's must come from one."""
    n, h = tirx.Var("n", "int64"), tirx.Var("h", "int64")
    x, y = (n, 3, h, 8), (n, 4, h - 2, 6)
    forward = module({"x": x, "w": W}, fprop)
    assert only(partitioned(forward)[1]).row == "fprop"

    def back(emit: Any, g: Any, w: Any, like: Any) -> Any:
        return emit(relay_wgrad.conv2d_backward_data(g, w, x))

    _, report = partitioned(module({"g": y, "w": W, "like": x}, back))
    assert only(report).reason == "no operand's shape gives the symbolic h"

    def mask(emit: Any, g: Any, w: Any, like: Any) -> Any:
        return masked(emit, back(emit, g, w, like), like)

    mod = module({"g": y, "w": W, "like": x}, mask)
    out, report = partitioned(mod)
    assert only(report).row == "dgrad_mask"
    same_numbers(mod, out, n=2, h=7)


def test_symbolic_pixels_of_a_whole_gradient() -> None:
    """Inner sizes are expressions of the image's: a composite has variables for them."""
    n, h = tirx.Var("n", "int64"), tirx.Var("h", "int64")

    def loss(emit: Any, x: Any, w: Any, b: Any, v: Any) -> Any:
        y = emit(nn.relu(bias(emit, emit(nn.conv2d(x, w, strides=2, padding=1)), b)))
        z = emit(nn.conv2d(y, v, strides=(2, 1)))
        return op.sum(emit(op.multiply(z, z)))

    shapes = {"x": (n, 3, h, h), "w": W, "b": (4, 1, 1), "v": (5, 4, 3, 3)}
    forward = module(shapes, loss)
    mod = tvm.IRModule({"main": grad(forward)["main_adjoint"].with_attr("global_symbol", "main")})
    out, report = partitioned(mod)
    assert report.rows() == {
        "cudnn.fprop_bias_relu": 1, "cudnn.fprop": 1, "cudnn.dgrad_strictmask": 1, "cudnn.wgrad": 2,
    }  # fmt: skip
    assert report.left[0].reason == "no operand's shape gives the symbolic h, h"
    same_numbers(mod, out, n=2, h=11)


@pytest.mark.parametrize(
    "name", ['x"); system("id', "a/b:0", "relay_wgrad_cudnn_fprop", "über", "a\nb", "main*/"]
)
def test_hostile_names_stay_outside(name: str) -> None:
    """Names of functions and variables reach no symbol and no attribute."""
    shapes = {'w"); x': X, name: W}
    func = module(shapes, lambda e, x, w: e(nn.relu(fprop(e, x, w))))["main"]
    out, report = byoc_cudnn.partition(tvm.IRModule({name: func.with_attr("global_symbol", name)}))
    assert (report.share, report.entries[0].function) == (1, name)
    ((symbol, outer),) = regions(out).items()
    assert re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", symbol)
    assert symbol != name
    assert outer.attrs["global_symbol"] == symbol
    (inner,) = composites(out)
    texts = [str(value) for _, value in inner.attrs.items()] + [p.name for p in inner.params]
    assert not any(name in text or "system" in text for text in texts if name != symbol)
    assert len(names(byoc_cudnn.unpartition(out))) == 1
    str(report), report.to_markdown(), report.table()


def test_structural_sharing_needs_equal_functions() -> None:
    """Two batches that are called the same are two functions only if they are different ones."""
    one, other = tirx.Var("n", "int64"), tirx.Var("n", "int64")

    def body(emit: Any, x: Any, w: Any, z: Any) -> Any:
        return [fprop(emit, x, w), fprop(emit, z, w)]

    mod = module({"x": (one, 3, 8, 8), "w": W, "z": (other, 3, 8, 8)}, body)
    out, report = partitioned(mod)
    assert (report.total, len(regions(out))) == (2, 1)
    (inner,) = composites(out)
    assert not tvm_ffi.structural_equal(inner.params[0].ty, mod["main"].params[0].ty)


def test_two_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preferred one takes what it has a row for, the other one the rest."""

    def accepts(problem: ConvProblem, epilogue: str) -> Decision:
        return check(problem, epilogue) if problem.kind is ConvKind.WGRAD else no("weights only")

    row = Row("other", ConvKind.WGRAD, "", accepts)
    other = Backend("other", "relay_wgrad_other", Options, LAYOUTS, accepts, (row,))
    monkeypatch.setitem(BACKENDS, "other", other)
    monkeypatch.setitem(CODEGENS, other.codegen, other)

    def body(emit: Any, x: Any, w: Any, g: Any) -> Any:
        dw = emit(relay_wgrad.conv2d_backward_weight(g, x, (3, 3)))
        return [fprop(emit, x, w), dw, dgrad(emit, g, w)]

    mod = module({**F, "g": DX}, body)
    both = ("other", "cudnn")
    out, report = partitioned(mod, backends=both, cudnn={"benchmark": True})
    assert report.rows() == {"other.wgrad": 1, "cudnn.fprop": 1, "cudnn.dgrad": 1}
    assert {str(f.attrs["Codegen"]) for f in regions(out).values()} == {
        "relay_wgrad_other", "relay_wgrad_cudnn",
    }  # fmt: skip
    alone, report = partitioned(mod, backends=("other",))
    assert report.reasons() == {"no row for fprop": 1, "no row for dgrad": 1}
    # What one backend left, another one may take later.
    _, report = byoc_cudnn.partition(alone)
    assert report.rows() == {"other.wgrad": 1, "cudnn.fprop": 1, "cudnn.dgrad": 1}
    with pytest.raises(ValueError, match="options for cudnn, which is not among other"):
        byoc_cudnn.partition(mod, ("other",), cudnn={})
