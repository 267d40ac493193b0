"""Reshapes of sizes that the run knows: each axis from its own, and compiled in a moment."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import legalize
from relay_wgrad.pipeline.cpu import cpu_pipeline
from tests.support.children import run_module
from tests.support.compiled import virtual_machine

SIZES = {"n": 3, "d": 2, "h": 4, "w": 5}
CASES = {
    "n,4,d,h,w -> n,4,d,h*w": "merged",
    "n,4,d,h*w -> n,4,d,h,w": "apart",
    "n,4,h,w -> n*4,h*w": "two at a time",
    "n*h,w,4 -> n,h,4*w": "both ways",
    "n,h,w -> n*h*w": "all",
    "n,6,h -> n,2,3,h": "numbers",
    "n,h,1 -> n,h": "an axis of one",
    "n,h*w -> h,n*w": "across",  # which no axes of their own give
}


@pytest.mark.parametrize("case", CASES, ids=CASES.get)
def test_numbers(case: str, registered: None) -> None:
    letters = {name: tirx.Var(name, "int64") for name in SIZES}
    given, wanted = (
        [eval(size, {}, dict(letters)) for size in side.split(",")] for side in case.split(" -> ")
    )
    x = relax.Var("x", relax.TensorType(given, "float32"))
    bb = relax.BlockBuilder()
    params = [x, relax.Var("s", relax.ShapeType(list(letters.values())))]
    with bb.function("main", params):
        with bb.dataflow():
            out = bb.emit_output(relax.op.multiply(relax.op.reshape(x, wanted), relax.const(2.0)))
        bb.emit_func_output(out)
    machine = virtual_machine(bb.get(), legalize.cpu.host_target(), cpu_pipeline())
    first, second = (
        [eval(size, {}, dict(SIZES)) for size in side.split(",")] for side in case.split(" -> ")
    )
    array = np.random.default_rng(0).standard_normal(first, dtype="float32")
    sizes = tvm.runtime.ShapeTuple(list(SIZES.values()))
    got = machine["main"](tvm.runtime.tensor(array), sizes).numpy()
    assert np.array_equal(got, 2 * array.reshape(second))


@pytest.mark.longer("compiles a program; its reshapes are above")
def test_a_volume_behind_a_pool_is_compiled() -> None:
    """Whose merged rows and columns TVM's simplifier never came to an end with."""
    line = (
        "lang=relay pipe=cpu order=0 dtype=float32 start=image layout=NC dims=var shapes=n,4,d,h,w"
        " steps=max:2:3:1+softmax:1 end=mean:0.1.2.4:0 sizes=n3,d9,h7,w11/n2,d9,h1,w11 seed=480608"
    )
    done = run_module("tests.fuzz.symbolic_sizes", "--repro", line, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
