"""Layout changes left in the gradients of real architectures, and the pass's time by depth."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.relax import op

import relay_wgrad
from relay_wgrad.frontend import from_onnx
from relay_wgrad.transform import ConvertLayout, count_reasons, grad, layout_changes
from tests.support.layout_cases import Shapes, chain
from tests.support.layout_cases import module as module_of
from tests.support.relay.fixtures import layout_transforms
from tests.support.relay.networks import relay_network
from tests.support.timing import seconds

# name -> (input, weights, each with its gradient, the program's own transposes, flattening)
EXPECTED = {
    "squeezenet": {"input": 1, "parameter": 26, "result": 26},
    "resnet50": {"input": 1, "parameter": 53, "result": 53, "transpose": 2},
    "shufflenet": {"input": 1, "parameter": 49, "result": 49, "transpose": 34},
    "alexnet": {"input": 1, "parameter": 5, "result": 5, "transpose": 6, "reshape": 2},
}

# name -> (changes that Relay 0.19 left, ours, ours with converted parameters).  Relay's gradient
# and ours are with respect to every parameter, the image among them, and return the output too:
# hence the results beside weights' gradients.
RELAY: dict[str, tuple[int, dict[str, int], dict[str, int]]] = {
    "smallnet": (
        16, {"input": 1, "parameter": 2, "result": 2 + 2}, {"input": 1, "result": 2}
    ),
    "resnet8_cifar": (
        143,
        {"input": 1, "parameter": 10, "result": 10 + 1, "transpose": 2},
        {"input": 1, "result": 1, "transpose": 2},
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _registered() -> Any:
    relay_wgrad.register()


@pytest.mark.share(3)
@pytest.mark.parametrize("name", EXPECTED)
def test_boundary_only(name: str) -> None:
    graph = from_onnx(name)
    module = grad(graph.module, "main", wrt=graph.trainable)
    kept = {k: v for k, v in EXPECTED[name].items() if k not in ("parameter", "result")}
    assert_changes(module, EXPECTED[name], kept)


@pytest.mark.parametrize("name", RELAY)
def test_fewer_than_relay(name: str) -> None:
    relay, expected, kept = RELAY[name]
    assert layout_transforms(f"{name}_grad_nhwc") == relay
    assert sum(expected.values()) < relay
    assert_changes(grad(relay_network(name), "main"), expected, kept)


def assert_changes(module: tvm.IRModule, expected: dict[str, int], kept: dict[str, int]) -> None:
    """The changes left in an adjoint by reason, with parameters as they were and converted."""
    before = module["main_adjoint"]
    after = ConvertLayout("NHWC")(module)
    relax.analysis.well_formed(after)
    changes = layout_changes(after["main_adjoint"], before)
    assert dict(count_reasons(changes)) == expected
    assert all(change.allowed for change in changes)
    converted = ConvertLayout("NHWC", params="convert")(tvm.IRModule({"main_adjoint": before}))
    assert dict(count_reasons(layout_changes(converted["main_adjoint"], before))) == kept


@pytest.mark.longer("programs long enough to tell linear time")
def test_time_is_linear_in_depth() -> None:
    def cost(depth: int) -> float:
        module = grad(chain(depth), "main")
        convert = ConvertLayout("NHWC", functions=["main_adjoint"])
        return seconds(lambda: convert(module), 2)

    cost(10)
    short, long = cost(40), cost(160)
    assert long < 4 * short * 2.5  # quadratic would be 16 times


@pytest.mark.longer("programs long enough to tell linear time")
@pytest.mark.parametrize("named", [False, True])
def test_gradients_time_is_linear_in_parameters(named: bool) -> None:
    def cost(count: int) -> float:
        shapes: Shapes = {f"p{i}": (1,) for i in range(count)}

        def body(emit: Any, first: Any, *others: Any) -> Any:
            for other in others:
                first = emit(op.add(first, other))
            return op.sum(first)

        program = module_of(shapes, body)
        wrt = list(shapes) if named else None
        return seconds(lambda: grad(program, "main", wrt=wrt), 2)

    cost(10)
    short, long = cost(250), cost(1000)
    assert long < 4 * short * 2.5  # quadratic would be 16 times
