"""Products that share an operand become one, with what follows each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

from relay_wgrad import relay
from relay_wgrad.relay import transform as T

pytestmark = pytest.mark.usefixtures("registered")

N, C = 3, 4


def run(mod: Any, inputs: dict[str, np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    found = relay.create_executor("graph", mod, tvm.cpu(), "llvm").evaluate()(**inputs)
    return [x.numpy() for x in found]


def program(*followed: tuple[int, Any]) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    """Dense layers of one input, each of so many units, plus an operand of that shape."""
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(N, C))
    params, results = [x], []
    for i, (units, shape) in enumerate(followed):
        w, b = relay.var(f"w{i}", shape=(units, C)), relay.var(f"b{i}", shape=shape)
        params += [w, b]
        results.append(relay.nn.relu(relay.add(relay.nn.dense(x, w), b)))
    mod = tvm_module(relay.Function(params, relay.Tuple(results)))
    inputs = {
        p.name_hint: rng.standard_normal([int(n) for n in p.type_annotation.shape]).astype("f4")
        for p in params
    }
    return mod, inputs


def tvm_module(function: Any) -> Any:
    return relay.transform.InferType()(relay.IRModule.from_expr(function))


def count(mod: Any, name: str) -> int:
    found = [0]

    def visit(node: Any) -> None:
        found[0] += isinstance(node, relay.Call) and getattr(node.op, "name", "") == name

    relay.analysis.post_order_visit(mod["main"], visit)
    return found[0]


@pytest.mark.parametrize(
    ("followed", "adds"),
    [
        (((5, (5,)), (2, (2,))), 1),
        (((5, (5,)), (2, (1,))), 1),  # written out for the layer's units
        (((5, ()), (2, ())), 1),
        (((5, (N, 5)), (2, (N, 2))), 1),
        (((5, (5,)), (2, (1, 2))), 2),  # of different ranks: what follows stays apart
    ],
    ids=str,
)
def test_dense_with_what_follows(followed: Any, adds: int) -> None:
    mod, inputs = program(*followed)
    made = T.CombineParallelDense(2, to_batch=False)(mod)
    assert (count(made, "nn.dense"), count(made, "add")) == (1, adds)
    for one, other in zip(run(made, inputs), run(mod, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5,), (N, 5), (1,)], ids=str)
@pytest.mark.parametrize(
    "how", [lambda: T.CombineParallelDense(2), lambda: T.CombineParallelOpBatch(
        "nn.dense", "nn.batch_matmul", 2)], ids=["dense", "any"],
)  # fmt: skip
def test_dense_as_a_batch(how: Callable[[], Any], shape: Any) -> None:
    mod, inputs = program((5, shape), (5, shape), (5, shape))
    made = how()(mod)
    names = ("nn.dense", "nn.batch_matmul", "add")
    assert [count(made, name) for name in names] == [0, 1, 1]
    for one, other in zip(run(made, inputs), run(mod, inputs), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_any_operator_by_another() -> None:
    """Of which the results stacked are the stacked operands' result."""
    x, y, z = (relay.var(name, shape=(2, 3)) for name in "xyz")
    body = relay.Tuple([relay.nn.relu(relay.subtract(x, y)), relay.nn.relu(relay.subtract(x, z))])
    mod = tvm_module(relay.Function([x, y, z], body))
    made = T.CombineParallelOpBatch("subtract", "subtract", 2)(mod)
    assert (count(made, "subtract"), count(made, "nn.relu")) == (1, 1)
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal((2, 3)).astype("f4") for name in "xyz"}
    for one, other in zip(run(made, inputs), run(mod, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
