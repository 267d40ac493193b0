"""Layout changes left in the gradients of real architectures, and the pass's time by depth."""

from __future__ import annotations

import time
from typing import Any

import pytest
import tvm
from tvm import relax

import relay_wgrad
from relay_wgrad.frontend import from_onnx
from relay_wgrad.transform import ConvertLayout, count_reasons, grad, layout_changes

from .layout_cases import chain

# name -> (input, weights, each with its gradient, the program's own transposes, flattening)
EXPECTED = {
    "squeezenet": {"input": 1, "parameter": 26, "result": 26},
    "resnet50": {"input": 1, "parameter": 53, "result": 53, "transpose": 2},
    "shufflenet": {"input": 1, "parameter": 49, "result": 49, "transpose": 34},
    "alexnet": {"input": 1, "parameter": 5, "result": 5, "transpose": 6, "reshape": 2},
}


@pytest.fixture(autouse=True)
def _registered() -> Any:
    relay_wgrad.register()


@pytest.mark.parametrize("name", EXPECTED)
def test_boundary_only(name: str) -> None:
    graph = from_onnx(name)
    module = grad(graph.module, "main", wrt=graph.trainable)
    before = module["main_adjoint"]
    after = ConvertLayout("NHWC")(module)
    relax.analysis.well_formed(after)
    changes = layout_changes(after["main_adjoint"], before)
    assert dict(count_reasons(changes)) == EXPECTED[name]
    assert all(change.allowed for change in changes)
    kept = ConvertLayout("NHWC", params="convert")(tvm.IRModule({"main_adjoint": before}))
    expected = {k: v for k, v in EXPECTED[name].items() if k not in ("parameter", "result")}
    assert dict(count_reasons(layout_changes(kept["main_adjoint"], before))) == expected


def test_time_is_linear_in_depth() -> None:
    def seconds(depth: int) -> float:
        module = grad(chain(depth), "main")
        best = float("inf")
        for _ in range(2):
            start = time.process_time()
            ConvertLayout("NHWC", functions=["main_adjoint"])(module)
            best = min(best, time.process_time() - start)
        return best

    seconds(10)
    short, long = seconds(40), seconds(160)
    assert long < 4 * short * 2.5  # quadratic would be 16 times
