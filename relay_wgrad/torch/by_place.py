"""Elements that a joint graph takes by their places in memory, where that is a view of a shape.

PyTorch's global average pooling of images that lie channels last gives its result other strides,
and the gradient of that is written into zeros by places: all of them, in their order.  What names
places is checked for each operand before it (`relay_wgrad.frontend.torch.retracing`), and refused
where an operator need not give the order that its shape function says.
"""

from __future__ import annotations

import math
from typing import Any

import torch

aten = torch.ops.aten
_MADE = (aten.new_zeros.default, aten.zeros.default, aten.full.default, aten.mean.dim)
"""Whose results lie as PyTorch's shape functions say."""


def as_views(graph: torch.fx.Graph) -> None:
    """Writes `as_strided` and `as_strided_scatter` of whole tensors as views, in place."""
    known: set[Any] = set()  # nodes that lie as is said of them
    for node in list(graph.nodes):
        if node.target in _MADE:
            known.add(node)
        elif node.target is aten.as_strided.default and _is_whole(node, node.args[1:], known):
            known.add(_view(graph, node, node.args[0]))
        elif node.target is aten.as_strided_scatter.default:
            source = node.args[1]
            same = node.meta["val"].dtype == source.meta["val"].dtype
            if same and _is_whole(node, node.args[2:], known):
                with graph.inserting_before(node):
                    dense = graph.call_function(
                        aten.clone.default, (source,), {"memory_format": torch.contiguous_format}
                    )
                dense.meta = dict(source.meta)
                known.add(_view(graph, node, dense))


def without_copies(graph: torch.fx.Graph) -> None:
    """Takes a copy's operand in its place: nothing is written in place in a joint graph but its
    operands at the end, so that a copy differs in its memory alone, which counts where it is given
    or is an operand's.  Autograd keeps one of what `silu_` and its like write over."""
    given = {*graph.output_node().all_input_nodes}
    for node in list(graph.nodes):
        if node.target is not aten.clone.default or node in given:
            continue
        of = node.args[0]
        order = node.kwargs.get("memory_format")
        if of.op == "placeholder" or of in given or order not in (None, torch.preserve_format):
            continue
        node.replace_all_uses_with(of)
        graph.erase_node(node)


def _is_whole(node: Any, given: Any, known: set[Any]) -> bool:
    """Whether sizes, strides and perhaps a first place are those of all elements of a node's first
    operand, in their order."""
    sizes, strides, *offset = given
    if node.args[0] not in known or any(offset) or node.kwargs:
        return False
    value = node.args[0].meta["val"]
    if not all(isinstance(n, int) for n in (*sizes, *strides, *value.shape, *value.stride())):
        return False
    expected = math.prod(sizes)
    if expected != value.numel() or not value.is_contiguous():
        return False
    for size, stride in zip(sizes, strides, strict=True):
        expected //= max(size, 1)
        if size != 1 and stride != expected:
            return False
    return True


def _view(graph: torch.fx.Graph, node: Any, of: Any) -> Any:
    """A view of `of` in the place of a node."""
    with graph.inserting_before(node):
        new = graph.call_function(aten.view.default, (of, [*node.meta["val"].shape]))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
    return new
