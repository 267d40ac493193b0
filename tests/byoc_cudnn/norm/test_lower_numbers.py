"""A step whose normalizations are calls of functions, for which PyTorch stands, is what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from byoc_cudnn.codegen.lowering import lower
from byoc_cudnn.norm.lower import planned
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad
from tests.support.compiled import virtual_machine
from tests.support.norm_packed import recorder

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op
SHAPE, POOLED, C = (2, 7, 8, 6), (2, 4, 4, 6), 6


def network() -> tvm.IRModule:
    """A stem with pooling; residual blocks, of normalizations, one to three, and of its input, with
    ReLU, ReLU6 and neither."""
    bb = relax.BlockBuilder()
    names = [f"{n}{i}" for i in range(9) for n in ("gamma", "beta", "mean", "var")]
    params = {n: relax.Var(n, relax.TensorType((C,), "float32")) for n in names}
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    weight = relax.Var("weight", relax.TensorType(POOLED, "float32"))
    updates: list[Any] = []

    def norm(i: int, value: Any, *residual: Any, activation: str = "") -> Any:
        given = [params[f"{n}{i}"] for n in ("gamma", "beta", "mean", "var")]
        made = bb.emit(op.nn.batch_norm_train(
            value, *given[:2], *residual, *given[2:], axis=3, activation=activation
        ))  # fmt: skip
        updates.extend(bb.emit_output(relax.TupleGetItem(made, j)) for j in (3, 4))
        return bb.emit(relax.TupleGetItem(made, 0))

    with bb.function("main", [x, weight, *params.values()]):
        with bb.dataflow():
            stem = norm(5, x, activation="relu")
            x_ = bb.emit(op.nn.max_pool2d(stem, (3, 3), (2, 2), (1, 1), layout="NHWC"))
            short = norm(0, bb.emit(op.sin(x_)))
            y = norm(1, bb.emit(op.cos(x_)), short, activation="relu")
            y = norm(2, bb.emit(op.sin(y)), y, activation="relu6")
            y = norm(3, bb.emit(op.multiply(y, x_)), y)
            y = norm(4, y, activation="relu")
            y = norm(
                6, bb.emit(op.sin(y)), norm(7, bb.emit(op.cos(y)), norm(8, y)), activation="relu"
            )
            loss = bb.emit_output(op.sum(op.multiply(y, weight)))
        bb.emit_func_output(relax.Tuple([loss, *updates]))
    wrt = ["x", *(n for n in names if n[:4] in ("gamm", "beta"))]
    return tvm.IRModule({ADJOINT: grad(bb.get(), "main", wrt=wrt)[ADJOINT]})


@pytest.mark.longer("a whole step; its calls and kernels stay")
def test_calls_of_functions_compute_the_step() -> None:
    before, family = network(), recorder()
    after, entries = lower(before, family, planned, 90)  # type: ignore[arg-type]
    relax.analysis.well_formed(after)
    family.register()
    assert len(entries) == 18
    assert all(entry.symbol for entry in entries)
    kinds = [(c.direction, c.others, c.summed, c.bits) for c in family.calls]
    assert kinds.count(("forward", 1, False, True)) == 1  # the first block's two in one
    assert kinds.count(("backward", 1, True, True)) == 1
    assert [c.direction for c in family.calls if c.others == 2] == ["forward", "backward"]
    assert [c.direction for c in family.calls if c.pooled] == ["forward", "backward"]
    func = after[ADJOINT]
    names = [str(getattr(getattr(b.value, "op", None), "name", "")) for b in
             func.body.blocks[0].bindings]  # fmt: skip
    assert names.count("relax.call_dps_packed") == 12
    assert not {"relax.nn.max_pool2d", "relax.grad.max_pool2d_backward"}.intersection(names)
    rng = np.random.default_rng(0)
    values = [
        np.abs(v) if "var" in p.name else v
        for p in func.params
        for v in [rng.standard_normal([int(n) for n in p.ty.shape.values], "float32")]
    ]
    got, want = (_run(mod.without_attr("external_mods"), values) for mod in (after, before))
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert np.linalg.norm(a - b) < 2e-5 * max(np.linalg.norm(b), 1), i


def _run(mod: tvm.IRModule, values: Any) -> list[np.ndarray]:
    vm = virtual_machine(mod)
    first, partials = vm[ADJOINT](*(tvm.runtime.tensor(v) for v in values))
    return [t.numpy() for t in (*first, *partials)]
