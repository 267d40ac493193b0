"""Gradients that enter a graph of AOTAutograd's, by results whose elements share places in memory.

AOTAutograd traces the gradient of a result with the result's strides, and copies what comes into
memory of such strides.  Of overlapping windows (`Tensor.unfold`, `as_strided`) that loses all but
the last gradient of each place; it looks for strides of 0 alone (PyTorch 2.13).
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch


def lie_apart(graph: torch.fx.Graph) -> contextlib.AbstractContextManager[Any]:
    """Within, gradients of a graph of Dynamo's are traced as dense where that is needed."""
    from torch._functorch import config

    results = [node.meta.get("example_value") for node in graph.output_node().all_input_nodes]
    if any(isinstance(x, torch.Tensor) and _overlaps(x) for x in results):
        made: Any = config.patch(guess_tangent_strides_as_outputs=False)
        return made
    return contextlib.nullcontext()


def _overlaps(x: torch.Tensor) -> bool:
    """Whether two elements may share a place.  Of symbolic sizes gradients are dense anyway."""
    if x.layout is not torch.strided or x.is_nested:
        return False
    sides = [*zip(x.stride(), x.shape, strict=True)]
    if not all(isinstance(number, int) for side in sides for number in side):
        return False
    reach = 0
    for stride, size in sorted(side for side in sides if side[1] > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False
