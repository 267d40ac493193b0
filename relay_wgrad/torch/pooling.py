"""`relay_wgrad::max_pool2d_backward` and that of volumes: gradients without the maxima's places.

Autograd keeps a place of 8 bytes for each maximum, beside the operand, which is needed anyway.
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
