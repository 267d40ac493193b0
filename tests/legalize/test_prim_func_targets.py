"""The target argument of the two kernel generators, which users call as well as `legalize`."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm.target import Target

import legalize.cpu
import legalize.cuda
from relay_wgrad.problem import ConvProblem

PROBLEM = ConvProblem.parse("fprop n=1 c=4 h=8 w=8 k=6 r=3 s=3")


def test_a_target_may_be_its_text() -> None:
    host = legalize.cpu.host_target()
    want = legalize.cpu.prim_func(PROBLEM, host)
    tvm.ir.assert_structural_equal(legalize.cpu.prim_func(PROBLEM, str(host)), want)
    legalize.cpu.prim_func(PROBLEM, "llvm")
    device = Target({"kind": "cuda", "arch": "sm_90"})
    want = legalize.cuda.prim_func(PROBLEM, device)
    tvm.ir.assert_structural_equal(legalize.cuda.prim_func(PROBLEM, str(device)), want)


@pytest.mark.parametrize("module", [legalize.cpu, legalize.cuda], ids=["cpu", "cuda"])
def test_what_is_no_target_is_refused(module: Any) -> None:
    with pytest.raises(ValueError, match=r"prim_func: 'nonsense' is not the text of a target"):
        module.prim_func(PROBLEM, "nonsense")
    with pytest.raises(TypeError, match=r"prim_func: target must be a .*, got int"):
        module.prim_func(PROBLEM, 3)


def test_a_target_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="CPU kernels need a target of kind llvm, got cuda"):
        legalize.cpu.prim_func(PROBLEM, Target({"kind": "cuda", "arch": "sm_90"}))
