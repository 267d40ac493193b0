"""Normalizations that are added become one call: which do, and what a step computes then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from byoc_cudnn.codegen.lowering import lower
from byoc_cudnn.norm.call import OTHERS
from byoc_cudnn.norm.lower import planned
from relay_wgrad.training.step import ADJOINT
from relay_wgrad.transform import grad
from tests.support import norm_packed
from tests.support.compiled import virtual_machine
from tests.support.norm_net import Net, run, step

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op


def branches(net: Net, x: Any, count: int, last: Any = None) -> Any:
    """RepVGG's block: normalizations of convolutions, and of its input, added before ReLU."""
    total = net.norm(x, "") if last is None else last
    for _ in range(count - 2):
        total = net.norm(net.conv(x), "", total)
    return net.norm(net.conv(x), "relu", total)


def three(net: Net) -> Any:
    x = net.conv(net.x)
    for _ in range(2):
        x = branches(net, x, 3)
    return net.total(net.conv(x))


def two_to_five(net: Net) -> Any:
    """Of five there are no kernels."""
    x = net.conv(net.x)
    for count in (2, 4, 5):
        x = branches(net, x, count)
    return net.total(net.conv(x))


def of_a_tensor(net: Net) -> Any:
    """The last residual is no normalization's: none is taken."""
    x = net.conv(net.x)
    return net.total(net.conv(branches(net, x, 3, x)))


def read_besides(net: Net) -> Any:
    """What one gives is read by something else too."""
    x = net.conv(net.x)
    inner = net.norm(net.conv(x), "", net.norm(x, ""))
    return net.total(net.norm(net.conv(x), "relu", inner), net.conv(inner))


NETS: dict[Callable[[Net], Any], list[int]] = {
    three: [2, 2], two_to_five: [1, 3], of_a_tensor: [], read_besides: []
}  # fmt: skip


@pytest.mark.parametrize("build", NETS, ids=lambda build: build.__name__)
def test_a_step_is_what_it_was(build: Callable[[Net], Any]) -> None:
    assert OTHERS == 3
    mod, family = step(build), norm_packed.recorder()
    made, _ = lower(mod, family, planned, 90)  # type: ignore[arg-type]
    relax.analysis.well_formed(made)
    family.register()
    calls = {call.symbol: call for call in family.calls}
    found = [
        calls[str(binding.value.args[0].global_symbol)]
        for block in made[ADJOINT].body.blocks
        for binding in block.bindings
        if str(getattr(getattr(binding.value, "op", None), "name", "")) == "relax.call_dps_packed"
    ]
    assert [call.others for call in found if call.forward and call.others] == NETS[build]
    assert sorted(call.others for call in found if not call.forward and call.others) == NETS[build]
    want = run(mod)
    for pipeline in (None, relax.get_pipeline("default")):
        after = run(made.without_attr("external_mods"), pipeline)
        for got, right in zip(after, want, strict=True):
            assert np.linalg.norm(got - right) < 2e-5 * max(float(np.linalg.norm(right)), 1)


def test_each_has_its_running_statistics() -> None:
    """Of the operator's: new ones are no other normalization's."""
    bb, shape = relax.BlockBuilder(), (2, 3, 4, 8)
    names = [f"{n}{i}" for i in range(3) for n in ("x", "gamma", "beta", "mean", "var")]
    params = {
        n: relax.Var(n, relax.TensorType(shape if n[0] == "x" else (8,), "float32")) for n in names
    }
    with bb.function("main", list(params.values())):
        with bb.dataflow():
            total, given = None, []
            for i in (2, 1, 0):
                x, gamma, beta, *running = (params[n] for n in names[5 * i : 5 * i + 5])
                more = [] if total is None else [total]
                activation = "relu" if i == 0 else ""
                made = bb.emit(op.nn.batch_norm_train(
                    x, gamma, beta, *more, *running, axis=3, activation=activation
                ))  # fmt: skip
                given += [bb.emit_output(relax.TupleGetItem(made, k)) for k in (3, 4)]
                total = bb.emit(relax.TupleGetItem(made, 0))
            loss = bb.emit_output(op.sum(bb.emit(op.multiply(total, total))))
        bb.emit_func_output(relax.Tuple([loss, *given]))
    wrt = [n for n in names if n[:4] not in ("mean", "var0", "var1", "var2")]
    mod = tvm.IRModule({ADJOINT: grad(bb.get(), "main", wrt=wrt)[ADJOINT]})
    family = norm_packed.recorder()
    made, _ = lower(mod, family, planned, 90)  # type: ignore[arg-type]
    family.register()
    assert {call.others for call in family.calls} == {2}
    for got, right in zip(flat(made), flat(mod), strict=True):
        assert np.linalg.norm(got - right) < 2e-5 * max(float(np.linalg.norm(right)), 1)


def flat(mod: tvm.IRModule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    values = [
        np.abs(rng.standard_normal([int(n) for n in p.ty.shape.values], "float32"))
        for p in mod[ADJOINT].params
    ]
    first, partials = virtual_machine(mod.without_attr("external_mods"))[ADJOINT](
        *map(tvm.runtime.tensor, values)
    )
    return [t.numpy() for t in (*first, *partials)]
