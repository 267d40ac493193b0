"""Weight gradients as composites in Relay, and what holds of raising whatever it does."""

from __future__ import annotations

import numpy as np

from relay_wgrad import relay
from relay_wgrad.relay import transform as T
from relay_wgrad.relay.ast import post_order
from relay_wgrad.relay.text import astext, fromtext
from relay_wgrad.transform import RaiseReport
from tests.support.relay.evaluate import evaluate
from tests.support.relay.fixtures import fixture_names
from tests.support.relay.texts import HEADER, fixture_text
from tests.support.relay.unchanged import flat

WGRAD, DGRAD = "nn.conv2d_backward_weight", "nn.conv2d_transpose"
LEGALIZED = [*fixture_names("wgrad_*_legalized"), *fixture_names("wgrad_*_legalized_nhwc")]
BASES = fixture_names("wgrad_*_legalized")


X = "Tensor[(4, 4, 5, 5), float32]"
G = "Tensor[(4, 6, 5, 5), float32]"
W = "Tensor[(6, 4, 3, 3), float32]"
LETS = """
  let %a = tile(%grad, reps=[1, 4, 1, 1]);
  let %b = reshape(%a, newshape=[-1, 1, 0, 0]);
  let %c = reshape(%data, newshape=[1, -1, 0, 0]);
  let %d = nn.conv2d(%c, %b, padding=[1, 1, 1, 1], groups=16);
  let %e = reshape(%d, newshape=[4, 4, 6, 3, 3]);
  let %f = sum(%e, axis=[0]);
  let %w = transpose(%f, axes=[1, 0, 2, 3]);
"""
GRAPH = """
  %0 = tile(%grad, reps=[1, 4, 1, 1]);
  %1 = reshape(%data, newshape=[1, -1, 0, 0]);
  %2 = reshape(%0, newshape=[-1, 1, 0, 0]);
  %3 = nn.conv2d(%1, %2, padding=[1, 1, 1, 1], groups=16);
  %4 = sum(reshape(%3, newshape=[4, 4, 6, 3, 3]), axis=[0]);
  %5 = transpose(%4, axes=[1, 0, 2, 3]);
"""


def operator(grad: str = "%grad", data: str = "%data") -> str:
    attrs = 'kernel_size=[3, 3], kernel_layout="NCHW", out_layout="OIHW"'
    return f"{WGRAD}({grad}, {data}, padding=[1, 1, 1, 1], channels=6, {attrs})"


def lets(grad: str = "%grad", data: str = "%data") -> str:
    return LETS.replace("%grad", grad).replace("%data", data)


def program(body: str, params: str = f"%data: {X}, %grad: {G}", rest: str = "") -> relay.IRModule:
    return T.InferType()(fromtext(f"{HEADER}def @main({params}) {{ {body} }}\n{rest}"))


def fixture(name: str) -> relay.IRModule:
    return T.InferType()(fromtext(fixture_text(name)))


def raised(mod: relay.IRModule) -> tuple[relay.IRModule, RaiseReport]:
    """The pass, with what must hold of it whatever it did."""
    reports: list[RaiseReport] = []
    before = astext(mod)
    out = T.RaiseConvBackward(reports.append)(mod)
    assert astext(mod) == before
    assert relay.structural_equal(T.InferType()(fromtext(astext(out))), out)
    for function in out.functions.values():
        assert all(n.checked_type or isinstance(n, relay.Op) for n in post_order(function))
    (report,) = reports
    return out, report


def ops(mod: relay.IRModule, name: str = "main") -> list[str]:
    nodes = post_order(mod[name])
    return [n.op.name for n in nodes if isinstance(n, relay.Call) and isinstance(n.op, relay.Op)]


def integers(function: relay.Function) -> dict[str, np.ndarray]:
    """Small integers, whose sums are exact in float64."""
    rng = np.random.default_rng(0)
    choice = [-3.0, -2.0, -1.0, 1.0, 2.0, 3.0]
    return {p.name: rng.choice(choice, p.type_annotation.shape) for p in function.params}


def checked(mod: relay.IRModule) -> tuple[relay.IRModule, RaiseReport]:
    """`raised`, and the numbers of @main, which has no function but operators, exactly."""
    out, report = raised(mod)
    inputs = integers(mod["main"])
    before, after = (flat(evaluate(m["main"], inputs)) for m in (T.InferType()(mod), out))
    assert len(before) == len(after)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    return out, report
