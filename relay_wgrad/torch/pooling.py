"""Gradients of poolings, written otherwise than PyTorch does.

`relay_wgrad::max_pool2d_backward` and that of volumes need no places of the maxima: autograd keeps
one of 8 bytes for each, beside the operand, which is needed anyway.  A mean's gradient is divided
before it is spread over the elements, and not each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import library as torch_library

aten = torch.ops.aten
_ARGUMENTS = "int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode"
_library = torch_library.Library("relay_wgrad", "FRAGMENT")


def _found_again(forward: Any, backward: Any) -> Callable[..., torch.Tensor]:
    def run(grad: torch.Tensor, x: torch.Tensor, *window: Any) -> torch.Tensor:
        _, places = forward(x, *window)
        made: torch.Tensor = backward(grad, x, *window, places)
        return made

    return run


def _fake(grad: torch.Tensor, x: torch.Tensor, *window: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _defined(rank: int) -> tuple[Any, Any]:
    """(ATen's backward op, ours)"""
    name, whole = f"max_pool{rank}d_backward", f"max_pool{rank}d_with_indices"
    backward = getattr(aten, f"{whole}_backward").default
    _library.define(f"{name}(Tensor grad, Tensor x, {_ARGUMENTS}) -> Tensor")
    run = _found_again(getattr(aten, whole).default, backward)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch_library.register_fake(f"relay_wgrad::{name}", _fake, lib=_library)
    return backward, getattr(torch.ops.relay_wgrad, name).default


_OURS = dict(map(_defined, (2, 3)))


def without_places(graph: torch.fx.Graph) -> None:
    """Makes each pooling's backward op in a joint graph the one that needs no places."""
    for node in list(graph.nodes):
        if node.target in _OURS:
            operands: Sequence[Any] = node.args[:7]
            with graph.inserting_before(node):
                new = graph.call_function(
                    _OURS[node.target], (*operands[:3], operands[3] or operands[2], *operands[4:])
                )
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)


def divided_first(graph: torch.fx.Graph) -> None:
    """Makes each number's division of a spread tensor one before it is spread, in place."""
    for node in list(graph.nodes):
        if node.target is not aten.div.Scalar:
            continue
        spread, number = node.args
        if spread.target is not aten.expand.default or len(spread.users) != 1 or spread.kwargs:
            continue
        of, *sizes = spread.args
        with graph.inserting_before(node), of.meta["val"].fake_mode:
            part = graph.call_function(node.target, (of, number))
            part.meta = {**node.meta, "val": node.target(of.meta["val"], _values(number))}
            new = graph.call_function(spread.target, (part, *sizes))
            new.meta = {**node.meta, "val": spread.target(part.meta["val"], *_values(sizes))}
        node.replace_all_uses_with(new)
        graph.erase_node(node)
        graph.erase_node(spread)


def _values(given: Any) -> Any:
    """Arguments, with what is said of nodes in their place."""
    return torch.fx.node.map_arg(given, lambda node: node.meta["val"])
