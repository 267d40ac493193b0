"""The share of the ONNX generator that every test run pays for; its rows and the list are one."""

from __future__ import annotations

import pytest

from relay_wgrad.frontend.onnx.ops import OPS

from .harness import failures
from .onnx_ops import GENERATOR, rows


def test_every_op_of_the_list_has_a_row() -> None:
    assert sorted(rows()) == sorted(OPS)


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
