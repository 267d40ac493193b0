"""Normalizations around joins: what comes back to one is read where the join's gradient lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from byoc_cudnn.codegen.lowering import lower
from byoc_cudnn.joins.lower import planned as joins
from byoc_cudnn.norm.lower import planned as norms
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad
from tests.support import joins as joins_support
from tests.support import norm_packed
from tests.support.compiled import virtual_machine

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op
WIDTHS = (8, 8, 8, 6)


def network() -> tvm.IRModule:
    """Normalizations one after another, cut and joined again: of the first the gradient is the sum
    of two parts, of the second of a part and a whole, of the third a part, of the fourth a part of
    no whole packs."""
    bb = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, 5, 8), "float32"))
    weight = relax.Var("weight", relax.TensorType((4, 1, 1, 40), "float32"))
    names = [f"{n}{i}" for i in range(4) for n in ("gamma", "beta")]
    params = [relax.Var(n, relax.TensorType((WIDTHS[int(n[-1])],), "float32")) for n in names]

    def norm(i: int, value: Any) -> Any:
        given = params[2 * i : 2 * i + 2]
        made = bb.emit(op.nn.batch_norm_train(value, *given, axis=3, activation="relu"))
        return bb.emit(relax.TupleGetItem(made, 0))

    with bb.function("main", [x, weight, *params]):
        with bb.dataflow():
            first = norm(0, x)
            second = norm(1, bb.emit(op.sin(x)))
            third = norm(2, bb.emit(op.sin(second)))
            cut = bb.emit(op.split(bb.emit(op.sin(x)), [6], 3))
            fourth = norm(3, bb.emit(relax.TupleGetItem(cut, 0)))
            rest = bb.emit(relax.TupleGetItem(cut, 1))
            inner = bb.emit(op.concat([first, fourth], 3))
            whole = bb.emit(op.concat([second, first, third, inner, rest], 3))
            layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
            y = bb.emit(op.nn.conv2d(whole, weight, **layouts))
            loss = bb.emit_output(op.sum(bb.emit(op.multiply(y, y))))
        bb.emit_func_output(loss)
    wrt = ["x", *names]
    return tvm.IRModule({ADJOINT: grad(bb.get(), "main", wrt=wrt)[ADJOINT]})


def run(mod: tvm.IRModule, values: list[np.ndarray]) -> list[np.ndarray]:
    vm = virtual_machine(mod.without_attr("external_mods") if mod.attrs else mod)
    first, partials = vm[ADJOINT](*map(tvm.runtime.tensor, values))
    return [t.numpy() for t in (first, *partials)]


def test_a_step_is_what_it_was() -> None:
    before, families = network(), (norm_packed.recorder(), joins_support.recorder())
    after = before
    for family, planned in zip(families, (norms, joins), strict=True):
        after, _ = lower(after, family, planned, 90)  # type: ignore[arg-type]
        relax.analysis.well_formed(after)
        family.register()
    backward = [call for call in families[0].calls if not call.forward]
    assert {(call.slices, call.summed) for call in backward} == {
        (((8, 40), (24, 40)), True), (((0, 40), (0, 8)), True), (((16, 40),), False), ((), False),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal([int(n) for n in p.ty.shape.values], "float32")
        for p in after[ADJOINT].params
    ]
    for got, want in zip(run(after, values), run(before, values), strict=True):
        assert np.linalg.norm(got - want) < 2e-5 * max(float(np.linalg.norm(want)), 1)
