"""Indices that TVM's `iter_map_simplify` must leave alone, and a kernel that it made wrong."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.ir import Range
from tvm.sym import iter_map_simplify

from legalize import cpu
from legalize.quotient import quotient
from relay_wgrad.problem import ConvProblem
from tests.fuzz import small
from tests.fuzz.harness import failures
from tests.support.problems import (
    poisoned,
    random_operands,
    relative_error,
    tolerance,
    torch_reference,
)

# One tap of two meets each row: the range of taps is a quotient that no min or max hides.
ONE_TAP = "fprop n=2 c=1 h=2 w=3 k=1 r=2 s=1 pad=1,1,1,1 dil=2,1 dtype=f64/f64/f64"


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_rows_that_one_tap_meets(target: str) -> None:
    problem = ConvProblem.parse(ONE_TAP)
    chosen = tvm.target.Target({"kind": "llvm", "mcpu": target, "num-cores": 2})
    kernel = cpu.prim_func(problem, chosen)
    a, b = random_operands(problem, np.random.default_rng(0))
    out = tvm.runtime.tensor(poisoned(problem))
    tvm.compile(kernel, target=chosen)["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    assert relative_error(out.numpy(), torch_reference(problem, a, b)) <= tolerance(problem)


@pytest.mark.parametrize(("size", "divisor"), [(2, 2), (4, 2), (8, 4), (56, 2), (6, 3)])
@pytest.mark.parametrize("offset", [-3, -1, 1, 2])
def test_not_simplified(size: int, divisor: int, offset: int) -> None:
    v = tirx.Var("v", "int64")
    of_digit = v % tirx.const(size, "int64") + tirx.const(offset, "int64")
    of_rest = tirx.const(2 * size + offset, "int64") - v
    for dividend, least in ((of_digit, offset), (of_rest, offset)):
        index = quotient(dividend, divisor, least)
        domain = {v: Range(tirx.const(0, "int64"), tirx.const(2 * size, "int64"))}
        (kept,) = iter_map_simplify([index], domain)
        assert "//" not in str(kept), f"{index} became {kept}"
        for at in range(2 * size):
            x = (at % size if dividend is of_digit else 2 * size - at) + offset
            analyzer = tvm.sym.Analyzer()
            analyzer.bind(v, tirx.const(at, "int64"))
            got = analyzer.simplify(kept)
            assert int(got) == x // divisor


def test_numbers_stay_numbers() -> None:
    assert quotient(-3, 2, -3) == -2
    v = tirx.Var("v", "int64")
    assert quotient(v, 1) is v


@pytest.mark.longer
def test_a_share_of_the_generator() -> None:
    assert not failures(small.GENERATOR, range(5), seed=3)
