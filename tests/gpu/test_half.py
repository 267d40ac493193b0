"""Reductions of half precision on a device: the generator's rows against float64."""

from __future__ import annotations

import pytest
import tvm

from tests.fuzz import half
from tests.support.half_cases import RELAX, ROUNDOFF, Row
from tests.support.half_relay_cases import RELAY

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("registered")]

# What upstream's own pipeline cannot schedule, in float32 neither.
UNSCHEDULED = {"nn.cross_entropy_with_logits"}


def pipelines(surface: str, row: Row, mode: str) -> tuple[str, ...]:
    stock = surface == "relax" and mode == "value" and row.name not in UNSCHEDULED
    return row.pipelines if stock else ("ours",)


LINES = [
    f"surface={surface} op={row.key} mode={mode} dtype={dtype} n={n} fill={fill}"
    f" pipeline={pipeline} seed=0"
    for surface, rows in (("relax", RELAX), ("relay", RELAY))
    for row in rows
    for mode in (["value", "gradient"] if row.grad else ["value"])
    for dtype, n, fill in zip(ROUNDOFF, (100_352, 70_000), ("ones", "offset"), strict=True)
    for pipeline in pipelines(surface, row, mode)
]


@pytest.mark.parametrize("line", LINES)
def test_against_float64(line: str) -> None:
    said = half.check(line, tvm.target.Target.from_device(tvm.cuda(0)))
    assert said is None or said.startswith("refused: "), said


@pytest.mark.parametrize("dtype", ROUNDOFF)
@pytest.mark.parametrize("op", ["linear", "matmul-of-rows"])
def test_products_of_many_rows(dtype: str, op: str) -> None:
    """The fully-connected layer of a batch of 256, forward and backward."""
    if op == "linear":
        line = f"surface=relax op=linear mode=gradient dtype={dtype} n=4096 fill=uniform"
    else:
        line = f"surface=relax op=matmul-with-out_dtype mode=value dtype={dtype} n=2048 fill=normal"
    said = half.check(f"{line} pipeline=ours seed=0", tvm.target.Target.from_device(tvm.cuda(0)))
    assert said is None, said
