"""The share of the ONNX generator that every test run pays for; its rows and the list are one."""

from __future__ import annotations

import pytest

from relay_wgrad.frontend import from_onnx
from relay_wgrad.frontend.onnx.ops import OPS
from tests.support.onnx.layer_cases import STRANGERS

from .harness import failures
from .onnx_ops import GENERATOR, rows, written


def test_every_op_of_the_list_has_a_row() -> None:
    assert sorted(rows()) == sorted(OPS)


def test_what_is_taken_is_no_stranger() -> None:
    assert not {*rows()} & {*STRANGERS}


@pytest.mark.usefixtures("registered")
def test_every_op_of_the_list_has_a_gradient() -> None:
    """Without compiling: numbers are the generator's, which draws few of them here."""
    for name, row in rows().items():
        opset = max(row.since, 17)
        line = f"f64 op{opset} ties=0 batch=fixed names=plain bn=eval drop=mask 1: {name}"
        graph = from_onnx(
            written(line).model(), loss="mse", weights="initial", dtype="float64", bn="eval"
        )
        try:
            graph.gradient([graph.inputs[0].name, *graph.trainable])
        except ValueError as error:
            pytest.fail(f"{name}: {error}")


@pytest.mark.usefixtures("registered")
def test_share() -> None:
    assert not failures(GENERATOR, range(4))


FOUND = {
    "where forgot to sum a gradient where its operand was broadcast":
        "f64 op12 ties=0 batch=fixed names=alike bn=eval drop=off 177956: Where",
    "a Reshape of a scalar":
        "f64 op20 ties=1 batch=open names=plain bn=eval drop=off 281056: ReduceMin | ReduceMax",
}  # fmt: skip


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("line", FOUND.values(), ids=FOUND)
def test_what_it_found(line: str) -> None:
    assert GENERATOR.answer(line) == {"status": "passed", "message": ""}
