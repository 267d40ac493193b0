"""`register_backend`: a backend of somebody else's.  Notebook 60 has a whole one, and runs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import tvm
from tvm import relax

import byoc_cudnn
from byoc_cudnn import BACKENDS, Backend, Decision, register_backend
from byoc_cudnn.backends.base import rows_of
from byoc_cudnn.table import CODEGENS, NoOptions
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.partition_cases import regions

LAYOUTS = [("NHWC", "OHWI", "NHWC")]
ALONE = {kind: [""] for kind in ConvKind}


@pytest.fixture(autouse=True)
def _as_before(registered: None) -> Iterator[None]:
    tables = [(table, dict(table)) for table in (BACKENDS, CODEGENS)]
    yield
    for table, before in tables:
        table.clear()
        table.update(before)


def pointwise(problem: ConvProblem, epilogue: str) -> Decision:
    if (problem.r, problem.s) == (1, 1):
        return Decision(True)
    return Decision(False, f"a {problem.r}x{problem.s} kernel")


def module() -> tvm.IRModule:
    x = relax.Var("x", relax.TensorType((1, 6, 6, 4), "float32"))
    weights = [relax.Var(f"w{k}", relax.TensorType((4, k, k, 4), "float32")) for k in (1, 3)]
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights]):
        with builder.dataflow():
            y: Any = x
            for w in weights:
                y = builder.emit(
                    relax.op.nn.relu(
                        relax.op.nn.conv2d(y, w, data_layout="NHWC", kernel_layout="OHWI")
                    )
                )
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    return builder.get()


def test_it_takes_what_it_accepts_and_its_regions_can_be_read() -> None:
    register_backend("mine", pointwise, LAYOUTS, {ConvKind.FPROP: ["relu", ""]})
    out, report = byoc_cudnn.partition(module(), ["mine"])
    assert report.rows() == {"mine.fprop_relu": 1}
    assert [entry.reason for entry in report.left] == ["a 3x3 kernel"]
    (function,) = regions(out).values()
    region = byoc_cudnn.read_region(function)
    assert str(function.attrs["Codegen"]) == "mine"
    assert (region.symbol, region.epilogue) == ("mine_fprop_relu", ("relu",))
    assert region.operands == ("data", "weight")
    assert region.problem.shape("weight") == (4, 1, 1, 4)
    back = byoc_cudnn.unpartition(out)
    assert len(byoc_cudnn.partition(back, ["mine"])[1].entries) == 2


def test_what_is_longer_is_asked_first_whatever_the_order() -> None:
    """`fprop` would take the convolution and leave its ReLU."""
    register_backend("mine", pointwise, LAYOUTS, {ConvKind.FPROP: ["", "relu", "bias_relu"]})
    assert [row.epilogue for row in BACKENDS["mine"].rows] == ["bias_relu", "relu", ""]
    assert byoc_cudnn.partition(module(), ["mine"])[1].rows() == {"mine.fprop_relu": 1}


def test_one_of_this_package_generates_code_without_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of the list, which `register_backend` has not seen: `partition` makes it known."""
    rows = rows_of("listed", {ConvKind.FPROP: ("",)}, pointwise)
    listed = Backend(
        "listed", "listed", NoOptions, tuple(LAYOUTS), pointwise, rows,
        generate=lambda regions, _: "".join(f"// {region.symbol}" for region in regions),
    )  # fmt: skip
    monkeypatch.setitem(BACKENDS, "listed", listed)
    monkeypatch.setitem(CODEGENS, "listed", listed)
    compiled = relax.transform.RunCodegen()(byoc_cudnn.partition(module(), ["listed"])[0])
    (source,) = compiled.attrs["external_mods"]
    assert source.inspect_source() == "// listed_fprop"


def test_it_stands_beside_the_others_and_may_be_replaced() -> None:
    @dataclass(frozen=True)
    class Options:
        threads: int = 1

    register_backend("mine", lambda *_: Decision(False, "no"), LAYOUTS, ALONE, codegen="old")
    register_backend("mine", pointwise, LAYOUTS, ALONE, codegen="new", options=Options)
    assert "old" not in CODEGENS
    assert CODEGENS["new"] is BACKENDS["mine"]
    _, report = byoc_cudnn.partition(module(), ["mine", "cudnn"], mine={"threads": 2})
    assert report.rows() == {"mine.fprop": 1, "cudnn.fprop_relu": 1}
    with pytest.raises(ValueError, match="mine: unknown option tiles; there are threads"):
        byoc_cudnn.partition(module(), ["mine"], mine={"tiles": 2})


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "type": ({"name": 5}, TypeError, "name must be a string, got 5"),
    "name": ({"name": "my-own"}, ValueError, "name must be an identifier, got 'my-own'"),
    "ours": ({"name": "cudnn"}, ValueError, "cudnn is a backend of this package"),
    "codegen": ({"codegen": "relay_wgrad_cudnn"}, ValueError,
                "codegen relay_wgrad_cudnn is that of cudnn"),
    "symbol": ({"codegen": 'x"; y'}, ValueError, "codegen must be an identifier"),
    "epilogue": ({"epilogues": {ConvKind.FPROP: ["gelu"]}}, ValueError,
                 "unknown epilogue 'gelu'; there are '', 'bias', 'relu'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    given, kind, words = REFUSED[name]
    arguments = {"name": "mine", "accepts": pointwise, "layouts": LAYOUTS, "epilogues": ALONE}
    before = dict(BACKENDS), dict(CODEGENS)
    with pytest.raises(kind, match="register_backend: ") as caught:
        register_backend(**(arguments | given))
    assert words in str(caught.value)
    assert before == (BACKENDS, CODEGENS)
