"""A gradient rule whose partial is not of its operand's type is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tvm
from tvm import relax, tirx
from tvm.ir import Op

from relay_wgrad.transform import grad
from tests.support.grad_modules import module

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op
Rule = Callable[[Any], Any]


@pytest.fixture
def rule() -> Iterator[Callable[[str, Rule], None]]:
    """Puts a rule of one operand in place of an op's."""
    replaced: list[tuple[str, Any]] = []

    def put(name: str, partial: Rule) -> None:
        key = "FPrimalGradient"
        replaced.append((name, Op.get(name).get_attr(key)))
        Op.get(name).reset_attr(key)
        tvm.ir.register_op_attr(name, key, lambda var, call, ct, ctx: [partial(ct)], 20)

    yield put
    for name, upstream in reversed(replaced):  # a rule may have been replaced twice
        Op.get(name).reset_attr("FPrimalGradient")
        tvm.ir.register_op_attr(name, "FPrimalGradient", upstream, 10)


WRONG: list[tuple[Rule, str]] = [
    (lambda g: op.permute_dims(g), r"R.Tensor\(\(3, 2\)"),
    (lambda g: op.sum(g, [0]), r"R.Tensor\(\(3,\)"),  # broadcasts in a sum of adjoints
    (lambda g: op.expand_dims(g, 0), r"R.Tensor\(\(1, 2, 3\)"),
    (lambda g: op.astype(g, "float32"), 'dtype="float32"'),
    (lambda g: relax.Tuple([g, g]), r"Tuple\("),
]


@pytest.mark.parametrize("partial", range(len(WRONG)))
def test_wrong_types(rule: Callable[[str, Rule], None], partial: int) -> None:
    mod = module(lambda emit, x, w: op.add(emit(op.tanh(x)), x))
    wrong, got = WRONG[partial]
    rule("relax.tanh", wrong)
    with pytest.raises(
        ValueError, match=rf"(?s)rule of relax\.tanh \(at .*{got}.* its operand 'x'"
    ):
        grad(mod)


def test_of_a_tuple(rule: Callable[[str, Rule], None]) -> None:
    mod = module(lambda emit, x, w: emit(op.concat([x, w], 0)))
    rule("relax.concat", lambda g: op.split(g, 2, 1))
    with pytest.raises(
        ValueError, match=r"(?s)relax\.concat .*\b4\b.* its operand .*, which is .*Tuple"
    ):
        grad(mod)


def test_symbolic_sizes_that_may_agree(rule: Callable[[str, Rule], None]) -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    x = relax.Var("x", relax.TensorType((n, m), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            out = bb.emit_output(op.sum(bb.emit(op.tanh(x))))
        bb.emit_func_output(out)
    rule("relax.tanh", lambda g: op.permute_dims(g))  # n may be m
    grad(bb.get())
    rule("relax.tanh", lambda g: op.nn.pad(g, [0, 0, 0, 1]))
    with pytest.raises(ValueError, match=r"(?s)rule of relax\.tanh"):
        grad(bb.get())
