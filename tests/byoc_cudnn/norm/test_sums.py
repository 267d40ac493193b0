"""Sums beside normalizations that become parts of them: which do, and what a step computes then."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from byoc_cudnn.codegen.lowering import lower
from byoc_cudnn.norm.lower import lower_norms, planned
from relay_wgrad.frontend import from_torch
from relay_wgrad.training.step import ADJOINT, converted, step_module
from tests.support import norm_packed
from tests.support.norm_net import Net, run, step

pytestmark = pytest.mark.usefixtures("registered")

op = relax.op


def add(net: Net, a: Any, b: Any) -> Any:
    return net.bb.emit(op.add(a, b))


def before(net: Net) -> Any:
    """ResNetV2's: a block begins with a normalization; its shortcut is what that reads, and once a
    convolution of it."""
    x = net.conv(net.x)
    for width in (16, 16, 32):
        y = net.norm(x)
        x = add(net, net.conv(x, width) if width > 16 else x, net.conv(y, width))
    return net.total(net.norm(x))


def behind(net: Net) -> Any:
    """Darknet's: a block ends in an activation, behind which its beginning is added."""
    x = net.conv(net.x)
    for _ in range(3):
        x = add(net, x, net.norm(net.conv(x), "silu"))
    return net.total(net.conv(x))


def early(net: Net) -> Any:
    """A sum is read by something else before it is normalized, and by what that is made of."""
    a = net.conv(net.x)
    whole = add(net, a, net.conv(a))
    other = net.norm(net.conv(whole), "", whole)
    return net.total(net.norm(whole, "relu", other))


def itself(net: Net) -> Any:
    """Of what is normalized: its own result, and both gradients come to one place."""
    x = net.conv(net.x)
    for _ in range(2):
        x = add(net, net.norm(x), x)
    return net.total(net.conv(x))


def fused(net: Net) -> Any:
    """What TVM computes in one kernel with its operands stays there."""
    a, b = net.conv(net.x), net.bb.emit(op.sin(net.conv(net.x)))
    x = net.norm(add(net, a, b))
    return net.total(net.conv(add(net, net.bb.emit(op.cos(a)), net.norm(net.conv(x)))))


# How many calls have which sums.
NETS: dict[Callable[[Net], Any], dict[str, int]] = {
    before: {"total": 3, "skip": 3},
    behind: {"after": 3, "gradients": 2},
    early: {},
    itself: {"after": 2, "skip": 2},
    fused: {},
}


def replaced(mod: tvm.IRModule) -> tuple[tvm.IRModule, Counter[str]]:
    """With stand-ins for the generated functions, and which sums calls have."""
    family = norm_packed.recorder()
    made, _ = lower(mod, family, planned, 90)  # type: ignore[arg-type]
    relax.analysis.well_formed(made)
    family.register()
    calls = {call.symbol: call for call in family.calls}
    found = Counter[str]()
    for block in made[ADJOINT].body.blocks:
        for binding in block.bindings:
            args = getattr(binding.value, "args", ())
            call = calls.get(str(getattr(args[0], "global_symbol", ""))) if len(args) else None
            if call is not None:
                found["after"] += call.after
                found["skip"] += call.skip
                found["total" if call.forward else "gradients"] += call.total
    return made.without_attr("external_mods"), +found


@pytest.mark.parametrize("build", NETS, ids=lambda build: build.__name__)
def test_a_step_is_what_it_was(build: Callable[[Net], Any]) -> None:
    mod = step(build)
    after, found = replaced(mod)
    assert found == NETS[build], found
    compared(after, mod)


def compared(after: tvm.IRModule, mod: tvm.IRModule) -> None:
    """By the plan that lays results in the places of operands, and by TVM's, which does not."""
    want = run(mod)
    for pipeline in (None, relax.get_pipeline("default")):
        for got, right in zip(run(after, pipeline), want, strict=True):
            assert np.linalg.norm(got - right) < 2e-5 * max(float(np.linalg.norm(right)), 1)


def random_network(seed: int) -> Callable[[Net], Any]:
    """Sums, normalizations and convolutions of what is there, each now and then of the same."""

    def build(net: Net) -> Any:
        rng = np.random.default_rng(seed)
        known = [net.conv(net.x), net.conv(net.x)]

        def one() -> Any:
            return known[-1 - int(rng.integers(min(len(known), 3)))]

        for _ in range(10):
            kind, act = int(rng.integers(8)), str(rng.choice(["", "relu", "silu"]))
            if kind < 3:
                known.append(add(net, one(), one()))
            elif kind < 5:
                known.append(net.norm(one(), act))
            elif kind == 5:
                known.append(net.norm(one(), "relu" if act == "silu" else act, one()))
            elif kind == 6:
                known.append(add(net, one(), net.norm(net.conv(one()), act)))
            else:
                known.append(net.conv(one()))
        return net.total(*known[-3:])

    return build


@pytest.mark.longer_cases("3", "4", "5", "6", "7", why="a step for each")
@pytest.mark.parametrize("seed", range(8))
def test_random_networks(seed: int) -> None:
    mod = step(random_network(seed))
    after, _ = replaced(mod)
    compared(after, mod)


def test_half_sums_go_by_way_of_float32() -> None:
    """As front ends write them: no sum of a block is left, forward or backward."""
    torch = pytest.importorskip("torch")

    class Blocks(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            nn = torch.nn
            self.convs = nn.ModuleList(
                nn.Conv2d(c, 16, 3, padding=1, bias=False) for c in (8, *[16] * 4)
            )
            self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(5))
            self.head = nn.Linear(16, 5)

        def forward(self, x: Any) -> Any:
            x = self.convs[0](x)
            for conv, norm in zip(self.convs[1:3], self.norms[:2], strict=True):
                x = x + conv(torch.relu(norm(x)))
            x = self.norms[2](x)
            for conv, norm in zip(self.convs[3:], self.norms[3:], strict=True):
                x = x + torch.nn.functional.silu(norm(conv(x)))
            return self.head(x.mean((2, 3)))

    graph = from_torch(Blocks().train(), (torch.zeros(2, 8, 6, 6),))
    mod = converted(step_module(graph, dtype="float16", raise_norms=True), "NHWC")
    made, _ = lower_norms(mod, 90)
    relax.analysis.well_formed(made)
    text = made[ADJOINT].script()
    shape = "R.Tensor((2, 6, 6, 16), "
    sums = [line for line in text.splitlines() if shape in line and "R.add(" in line]
    assert not sums, sums
