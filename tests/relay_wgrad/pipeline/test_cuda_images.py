"""Images of few channels on CUDA: what the rule takes, and that its loops compute the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad.pipeline.cuda import cuda_pipeline
from relay_wgrad.pipeline.cuda_images import Images
from tests.support.cuda_source import cuda_source, read_back
from tests.support.element_cases import CUDA, SM_90, arrays_of, function, op, result_of, run
from tests.support.partition_cases import module
from tests.support.schedules import on_the_host

pytestmark = pytest.mark.usefixtures("registered")


def last(e: Any, x: Any, dtype: str = "float16") -> Any:
    """Channels last, in another type."""
    x = e(op.permute_dims(x, [0, 2, 3, 1]))
    return e(op.astype(x, dtype)) if dtype else x


CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "to half": ({"x": ((2, 3, 5, 16), "float32")}, last),
    "to bfloat16, two channels": (
        {"x": ((1, 2, 3, 8), "float32")}, lambda e, x: last(e, x, "bfloat16"),
    ),
    "float32": ({"x": ((3, 4, 1, 12), "float32")}, lambda e, x: last(e, x, "")),
    "half": ({"x": ((2, 3, 4, 24), "float16")}, lambda e, x: last(e, x, "")),
    "less a mean": (
        {"x": ((2, 3, 4, 8), "float32"), "m": ((3, 1, 1), "float32")},
        lambda e, x, m: last(e, e(op.subtract(x, m))),
    ),
    "rows outside": (
        {"x": ((2, 5, 3, 16), "float32")},
        lambda e, x: e(op.astype(e(op.permute_dims(x, [0, 1, 3, 2])), "float16")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_numbers(name: str) -> None:
    """As without the schedule, bit for bit."""
    operands, body = CASES[name]
    func = function(operands, body)
    schedule = on_the_host(Images).apply(func, CUDA, False)
    assert schedule is not None
    assert "T.vectorized" in schedule.mod.script()
    names = [str(p.name) for p in func.params]
    order = sorted(range(len(operands)), key=lambda i: names.index(list(operands)[i]))
    arrays = [arrays_of(operands)[i] for i in order]
    got, want = (
        run(f, arrays, result_of(operands, body)) for f in (schedule.mod["main"], func)
    )  # fmt: skip
    np.testing.assert_array_equal(got.view("uint8"), want.view("uint8"))


@pytest.mark.parametrize(
    ("operands", "body"),
    [
        ({"x": ((2, 3, 5, 12), "float32")}, last),  # no eight pixels
        ({"x": ((2, 5, 4, 16), "float32")}, last),  # not few
        ({"x": ((2, 1, 4, 16), "float32")}, last),
        ({"x": ((2, 4, 5, 3), "float32")}, lambda e, x: e(op.astype(x, "float16"))),
        (
            {"x": ((2, 3, 4, 18), "float32")},  # rows that begin between packs
            lambda e, x: last(e, e(op.strided_slice(x, [3], [0], [16]))),
        ),
        (
            {"x": ((2, 3, 4, 24), "float32")},
            lambda e, x: last(e, e(op.strided_slice(x, [3], [4], [20]))),
        ),
        (
            {"x": ((2, 3, 4, 8), "float32"), "y": ((2, 3, 4, 8), "float32")},
            lambda e, x, y: last(e, e(op.add(x, y))),
        ),
    ],
)
def test_other_kernels_are_left(operands: Any, body: Any) -> None:
    assert Images().apply(function(operands, body), CUDA, False) is None


def test_the_code() -> None:
    """Six loads of 16 bytes and three stores for eight pixels of three channels, in registers."""
    mod = module({"x": ((4, 3, 32, 40), "float32")}, last)
    built = tvm.compile(mod, SM_90, relax_pipeline=cuda_pipeline())
    code = cuda_source(built.mod)
    (text,) = re.findall(r"__global__ [^;{]*\{.*?^\}", code, re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"= \*\(float4\*\)\(x_ptr", text)) == 6
    assert len(re.findall(r"^ *\*\(uint4\*\)\(\w+_ptr \+.*_local_ptr", text, re.MULTILINE)) == 3
    assert "for (" not in text
    assert read_back(code) == []
