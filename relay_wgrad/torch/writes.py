"""What a compiled graph writes into its operands, done after it by few kernels for all of them.

AOTAutograd leaves such writes, a network's running statistics and counts of batches, in the forward
graph as `copy_` at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .several import CopyEach

aten = torch.ops.aten


class Writes(NamedTuple):
    """The places of operands: of those that get the last results, and of integers that grow."""

    copied: list[int]
    counted: list[int]
    steps: list[int]
    copy_each: CopyEach

    def done(self, inputs: Sequence[Any], found: list[Any], written: bool = False) -> list[Any]:
        """The results that are the caller's, when the others are written, which they may be."""
        end = len(found) - len(self.copied)
        if written:
            return found[:end]
        with torch.no_grad():
            if self.copied:
                self.copy_each([inputs[i] for i in self.copied], found[end:])
            if self.counted:
                torch._foreach_add_([inputs[i] for i in self.counted], self.steps)
        return found[:end]


def without_writes(graph: Any) -> tuple[Any, Writes]:
    """(a graph with what it copies into its operands as its last results, what it writes)."""
    writes = _writes(graph.graph)
    if not writes:
        return graph, Writes([], [], [], CopyEach())
    places = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    copied = torch.fx.Graph()
    of: dict[Any, Any] = {}
    copied.graph_copy(graph.graph, of)
    counts = [node for node in writes if _counts(node)]
    others = [node for node in writes if node not in counts]
    values = [of[node.args[1]] for node in others]
    for node in writes:  # what is written is the operand
        of[node].replace_all_uses_with(of[node.args[0]])
        copied.erase_node(of[node])
        of[node] = of[node.args[0]]
    for node in counts:
        copied.erase_node(of[node.args[1]])
    results = torch.fx.node.map_arg(graph.graph.output_node().args[0], lambda node: of[node])
    copied.output((*results, *values))
    counted, steps = [places[node.args[0]] for node in counts], [n.args[1].args[1] for n in counts]
    copied_to = [places[node.args[0]] for node in others]
    done = Writes(copied_to, counted, steps, CopyEach())
    return torch.fx.GraphModule(graph, copied), done


def keep_what_was_read(graph: torch.fx.Graph, outputs: int) -> None:
    """The backward pass reads of an operand what it was before the forward graph writes into it.

    outputs : how many results are the caller's; the others are kept for the backward pass.
    """
    end, writes = graph.output_node(), _writes(graph)
    given, kept = end.args[0][:outputs], end.args[0][outputs:]
    for node in dict.fromkeys(write.args[0] for write in writes if not _counts(write)):
        readers = [
            x for x in node.users if x is not end and not (x in writes and x.args[0] is node)
        ]
        if not readers and node not in kept:
            continue
        with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
            copied = graph.call_function(aten.clone.default, (node,))
        copied.meta = dict(node.meta)
        for reader in readers:
            reader.replace_input_with(node, copied)
        kept = [copied if result is node else result for result in kept]
    end.args = ((*given, *kept),)


def _writes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """Where a graph writes into its operands, in its order."""
    found = graph.find_nodes(op="call_function", target=aten.copy_.default)
    return [node for node in found if node.args[0].op == "placeholder"]


def _counts(write: torch.fx.Node) -> bool:
    """Whether a write adds a number to an integer that nothing else reads."""
    operand, value = write.args[:2]
    assert isinstance(operand, torch.fx.Node)
    return (
        isinstance(value, torch.fx.Node)
        and value.target is aten.add.Tensor
        and value.args[0] is operand
        and type(value.args[1]) is int
        and not value.kwargs
        and set(operand.users) == {value, write}
        and set(value.users) == {write}
        and not write.users
        and operand.meta["val"].dtype == torch.int64
    )
