"""Functions in Dynamo's graph as ops of ours, before PyTorch's tracing takes them apart."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch


class Whole(NamedTuple):
    """What a function becomes: an op of the function's input and the rest, or its first result."""

    op: Any
    rest: tuple[Any, ...]
    is_first: bool = False


Writer = Callable[[Mapping[str, Any], Any, Any], "Whole | str"]
"""Of a function's arguments by name, and of what PyTorch says of its input and its result: what it
becomes, or why it stays as it is, which is "" where that need not be told."""


def made_whole(graph: torch.fx.Graph, writers: Mapping[Any, Writer]) -> list[str]:
    """Makes each call of these functions one op, in place; of each that is left as it is, why."""
    left = []
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in writers:
            continue
        bound = inspect.signature(node.target).bind(*node.args, **node.kwargs)
        bound.apply_defaults()
        given = bound.arguments
        said, made = (n.meta.get("example_value") for n in (given["input"], node))
        found = writers[node.target](given, said, made)
        if isinstance(found, Whole):
            _write(graph, node, given["input"], found)
        elif found:
            left.append(f"{node.name} is not one operator: {found}")
    return left


def _write(graph: torch.fx.Graph, node: Any, x: Any, found: Whole) -> None:
    said, made = (n.meta["example_value"] for n in (x, node))
    with graph.inserting_before(node):
        if said.dtype != made.dtype:  # autocast's, which does not know our op
            x = graph.call_method("to", (x, made.dtype))
        new = graph.call_function(found.op, (x, *found.rest))
        if found.is_first:
            new = graph.call_function(operator.getitem, (new, 0))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
