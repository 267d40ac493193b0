"""`relay_wgrad::max_pool2d_backward`: the gradient of max pooling, without the maxima's places.

Autograd keeps a place of 8 bytes for each maximum, beside the operand, which is needed anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import library as torch_library

_ARGUMENTS = "int[] kernel, int[] stride, int[] padding, int[] dilation, bool ceil_mode"
_library = torch_library.Library("relay_wgrad", "FRAGMENT")
_library.define(f"max_pool2d_backward(Tensor grad, Tensor x, {_ARGUMENTS}) -> Tensor")


def _found_again(grad: torch.Tensor, x: torch.Tensor, *window: Any) -> torch.Tensor:
    aten = torch.ops.aten
    _, places = aten.max_pool2d_with_indices(x, *window)
    return aten.max_pool2d_with_indices_backward(grad, x, *window, places)


def _fake(grad: torch.Tensor, x: torch.Tensor, *window: Any) -> torch.Tensor:
    return torch.empty_like(x)


_library.impl("max_pool2d_backward", _found_again, "CompositeExplicitAutograd")
torch_library.register_fake("relay_wgrad::max_pool2d_backward", _fake, lib=_library)


def without_places(graph: torch.fx.Graph) -> None:
    """Makes each pooling's backward op in a joint graph the one that needs no places."""
    for node in list(graph.nodes):
        if node.target is torch.ops.aten.max_pool2d_with_indices_backward.default:
            operands: Sequence[Any] = node.args[:7]
            with graph.inserting_before(node):
                new = graph.call_function(
                    torch.ops.relay_wgrad.max_pool2d_backward.default,
                    (*operands[:3], operands[3] or operands[2], *operands[4:]),
                )
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
