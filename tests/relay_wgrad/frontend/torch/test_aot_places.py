"""`from_aot`: elements by their places in the memory of views."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from relay_wgrad.frontend import from_aot
from tests.support.torch.aot import apart, ran

pytestmark = pytest.mark.usefixtures("registered")

aten = torch.ops.aten
X = torch.arange(3.0, dtype=torch.float64)


def traced(function: Any, *given: Any) -> Any:
    return make_fx(function, tracing_mode="fake")(*given)


def _places(seed: int) -> tuple[Any, bool]:
    """(elements of a view by sizes, strides and offset in its memory; whether the view, which lies
    dense in some order, has them all)."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 4) for _ in range(3)]
    order, axis = rng.sample(range(3), 3), rng.randrange(3)
    taken = rng.randrange(sizes[order[axis]]) if rng.random() < 0.5 else None
    wanted = [rng.randint(1, 3) for _ in range(rng.randint(0, 2))]
    strides = [rng.randint(0, 4) for _ in wanted]
    last = sum((n - 1) * s for n, s in zip(wanted, strides, strict=True))
    offset = rng.randint(0, max(0, math.prod(sizes) - 1 - last))

    def view(x: Any) -> Any:
        base = (x.flatten()[: math.prod(sizes)].reshape(sizes) * 1).permute(order)
        return base if taken is None else base.select(axis, taken)

    def function(x: Any) -> Any:
        return aten.as_strided(view(x), wanted, strides, offset)

    found = view(torch.zeros(64))
    axes = sorted(range(found.dim()), key=lambda a: -found.stride(a))
    begin = found.storage_offset()
    has = begin <= offset and offset + last < begin + found.numel()
    inside = last + offset < math.prod(sizes)  # else PyTorch refuses it
    return function if inside else None, has and found.permute(axes).is_contiguous()


def test_places_in_views() -> None:
    """Of views in any order of axes, and of parts, by the offset in the whole's memory: right, or
    refused where the view does not have the elements."""
    x = torch.arange(64, dtype=torch.float64)
    cases = [case for case in map(_places, range(20)) if case[0] is not None]
    for function, has in cases:
        if not has:
            with pytest.raises(ValueError, match=r"a view, does not have|with gaps"):
                from_aot(traced(function, x), [x])
    taken = [function for function, has in cases if has]
    assert len(cases) > len(taken) > 5
    graph = traced(lambda x: [function(x) for function in taken], x)
    assert apart(ran(from_aot(graph, [x]), [x]), graph(x)) == 0
    graph = traced(lambda x: aten.as_strided(x, [2], [3], 1), x)
    with pytest.raises(ValueError, match="depends on its operand's memory order"):
        _with_offset(graph, x)


def _with_offset(graph: Any, x: Any) -> Any:
    """As for an argument that is a view from its memory's fifth element on."""
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            with node.meta["val"].fake_mode:
                node.meta["val"] = torch.empty(68, dtype=x.dtype)[4:]
    return from_aot(graph, [x])


def test_what_does_not_lie_as_shape_functions_say() -> None:
    """A roll of a channels-last tensor has its order, and to PyTorch's shape functions none."""
    x = torch.arange(100.0).reshape(2, 5, 2, 5).contiguous(memory_format=torch.channels_last)

    def behind(step: Any) -> Any:
        return lambda x: torch.as_strided(step(torch.roll(x, -1, 0)), (5, 10), (4, 1), 0)

    for step in (lambda y: y, lambda y: y[1:], lambda y: y * 2):
        graph = traced(behind(step), x)
        with pytest.raises(ValueError, match=r"by their places in memory behind roll"):
            from_aot(graph, [x])
        torch._dynamo.reset()
        with pytest.warns(UserWarning, match="PyTorch runs this: .*behind roll"):
            made = torch.compile(behind(step), backend="relay_wgrad")(x)
        assert torch.equal(made, behind(step)(x))


def test_random_numbers_of_devices_that_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of several GPUs none is started, and nothing warned of, for tensors of a CPU."""
    started = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: started.append(1) or 4)
    for shown in (lambda x: x * 2, lambda x: torch.as_strided(x * 2, (2,), (1,), 0)):
        graph = traced(shown, X)
        started.clear()
        from_aot(graph, [X])
        assert not started


def test_a_placeholder_of_such_a_name() -> None:
    graph = traced(lambda as_strided, as_strided_scatter: as_strided + as_strided_scatter, *[X] * 2)
    nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
    for node, name in zip(nodes, ("as_strided", "as_strided_scatter"), strict=True):
        node.name = name
        node.target = name
    graph.recompile()
    assert apart(ran(from_aot(graph, [X, X]), [X, X]), [2 * X]) == 0
