"""Equal calls are legalized once: the module is upstream's, and no rule is asked twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import relax, tirx
from tvm.ir import Op

from relay_wgrad.pipeline.equal_calls import legalize_equal_once
from relay_wgrad.pipeline.fused_kernels import legalize_ops

pytestmark = pytest.mark.usefixtures("registered")

Emit = Callable[[relax.Expr], Any]
op = relax.op


def module(body: Callable[[Emit, list[relax.Var]], Any], *shapes: Any) -> Any:
    bb = relax.BlockBuilder()
    params = [relax.Var(f"p{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with bb.function("main", params):
        with bb.dataflow():
            result = bb.emit_output(body(bb.emit, params))
        bb.emit_func_output(result)
    return bb.get()


def repeated(emit: Emit, params: list[relax.Var]) -> Any:
    """Calls that are equal, and calls that differ from them in one thing each."""
    x, y, row = params
    half, third = relax.const(np.float32(0.5)), relax.const(np.float32(1 / 3))
    parts = [
        emit(op.multiply(x, y)), emit(op.multiply(y, x)),
        emit(op.multiply(x, x)), emit(op.multiply(y, y)),  # another kernel reads one operand
        emit(op.multiply(x, half)), emit(op.multiply(y, half)), emit(op.multiply(x, third)),
        emit(op.where(op.less(x, half), x, half)), emit(op.where(op.less(y, half), y, third)),
        emit(op.add(x, row)), emit(op.add(row, x)), emit(op.add(y, row)),
        emit(op.clip(x, -1, 1)), emit(op.clip(y, -1, 1)), emit(op.clip(x, -1, 2)),
    ]  # fmt: skip
    joined = emit(op.concat([x, y], 0)), emit(op.concat([y, y], 0)), emit(op.concat([y, x], 0))
    sums = [emit(op.sum(*each)) for each in ((joined[0], 0), (joined[1], 0), (x, 0), (x, 1))]
    parts += [emit(op.reshape(each, (4, 4))) for each in (x, y)]
    return relax.Tuple([*parts, *joined, *sums])


SHAPES = ((4, 4), (4, 4), (4,))


def asked(mod: Any, once: bool) -> tuple[Any, Counter[str]]:
    """The legalized module, and how often each operator's rule was asked."""
    count: Counter[str] = Counter()

    def counted(name: str) -> Any:
        rule = Op.get(name).get_attr("FLegalize")

        def call(bb: relax.BlockBuilder, given: relax.Call) -> relax.Expr:
            count[name] += 1
            return rule(bb, given)

        return call

    names = [f"relax.{name}" for name in ("multiply", "add", "concat", "sum", "clip")]
    rules = {name: counted(name) for name in names}
    made = (legalize_equal_once if once else relax.transform.LegalizeOps)(rules)(mod)
    return made, count


def test_the_module_is_upstreams_and_rules_are_asked_once() -> None:
    mod = module(repeated, *SHAPES)
    (plain, often), (made, count) = asked(mod, once=False), asked(mod, once=True)
    assert tvm_ffi.structural_equal(plain, made)
    assert plain.script() == made.script()  # names of kernels and variables too
    assert often == {"relax.multiply": 7, "relax.add": 3, "relax.concat": 3, "relax.sum": 4,
                     "relax.clip": 3}  # fmt: skip
    # x * y; x * x; x * 0.5; x * 1/3.  A matrix and a row, either way round.  Two tensors, or one
    # twice.  Sums of eight rows, of four, of
    # columns.  Either bound.
    assert count == {"relax.multiply": 4, "relax.add": 2, "relax.concat": 2, "relax.sum": 3,
                     "relax.clip": 2}  # fmt: skip


def test_what_only_the_run_knows_is_asked_of_each_call() -> None:
    """A rule may write a comparison of sizes before the call's kernel."""
    n = tirx.Var("n", "int64")
    mod = module(lambda emit, p: emit(op.add(emit(op.add(*p)), p[1])), (n, 4), (n, 4))
    (plain, often), (made, count) = asked(mod, once=False), asked(mod, once=True)
    assert tvm_ffi.structural_equal(plain, made)
    assert count == often == {"relax.add": 2}


def test_a_rule_that_writes_several_kernels_is_asked_of_each_call() -> None:
    def mean(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        total = bb.emit(op.sum(call.args[0], call.attrs.axis))
        return op.divide(total, relax.const(np.float32(4)))

    def body(emit: Emit, params: list[relax.Var]) -> Any:
        return relax.Tuple([emit(op.mean(x, 0)) for x in params[:2]])

    mod, rules = module(body, *SHAPES), {"relax.mean": mean}
    made = legalize_equal_once(rules)(mod)
    assert tvm_ffi.structural_equal(relax.transform.LegalizeOps(rules)(mod), made)


def test_our_pipelines_legalize_so() -> None:
    mod = legalize_ops()(module(repeated, *SHAPES))
    assert tvm_ffi.structural_equal(legalize_ops()(mod), mod)


def test_each_kernel_is_told_of_when_it_is_there() -> None:
    told: list[tirx.PrimFunc] = []
    mod = legalize_ops(told.append)(module(repeated, *SHAPES))
    kernels = [func for _, func in mod.functions_items() if isinstance(func, tirx.PrimFunc)]
    assert kernels
    assert all(any(tvm_ffi.structural_equal(k, one) for one in told) for k in kernels)
