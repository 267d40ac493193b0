"""What an exported graph computes of constants alone, computed by PyTorch on import.

Masks and tables of places are made of `arange` and buffers by dozens of ops that have no other use;
none of them needs a row of its own.  Random ops, parameters and statistics that training changes
are never constants.
"""

from __future__ import annotations

import operator
from typing import Any

from .names import op_of

_BYTES = 64 << 20  # of a result, at most: what is larger stays to be computed in every step
_PYTORCH = ("aten", "prims")
# Their values are nobody's.
_UNSET = (
    "empty.memory_format", "empty.names", "empty_like.default", "empty_permuted.default",
    "empty_strided.default", "new_empty.default", "new_empty_strided.default",
)  # fmt: skip
_OF_SHAPE = (
    "full_like.default", "new_full.default", "new_ones.default", "new_zeros.default",
    "ones_like.default", "zeros_like.default",
)  # fmt: skip


class Known:
    """Nodes whose values are known, by PyTorch's tensors."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.values: dict[Any, Any] = {}
        self.most = _BYTES

    def takes(self, node: Any) -> bool:
        """Whether a node's value is known now."""
        like = []
        if op_of(node) in _OF_SHAPE:
            like = [n for n in node.all_input_nodes[:1] if n not in self.values and _is_known(n)]
        if any(n not in self.values and n not in like for n in node.all_input_nodes):
            return False
        if node.target is operator.getitem:
            source, index = node.args
            self.values[node] = self.values[source][index]
            return True
        if not self._is_plain(node):
            return False
        shapes = {n: _like(self.torch, n) for n in like}
        args, kwargs = self.torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda n: shapes[n] if n in shapes else self.values[n]
        )
        if "device" in kwargs:  # of a graph that was traced for another
            kwargs = {**kwargs, "device": "cpu"}
        with self.torch.no_grad():
            value = node.target(*args, **kwargs)
        self.values[node] = value
        return True

    def _is_plain(self, node: Any) -> bool:
        """Whether the op gives the same each time, and not too much."""
        target = node.target
        # Who knows what an operator of others reads besides its operands?
        if getattr(target, "namespace", "") not in _PYTORCH or target._schema.is_mutable:
            return False
        if op_of(target) in _UNSET:
            return False
        if self.torch.Tag.nondeterministic_seeded in target.tags:
            return False
        made = node.meta.get("val")
        results = made if isinstance(made, (list, tuple)) else [made]
        if not all(isinstance(r, self.torch.Tensor) for r in results):
            return False
        return sum(r.numel() * r.element_size() for r in results) <= self.most


def _is_known(node: Any) -> bool:
    """Whether a node's sizes are numbers."""
    return all(isinstance(size, int) for size in getattr(node.meta.get("val"), "shape", ()))


def _like(torch: Any, node: Any) -> Any:
    """A tensor of a node's shape and dtype, one element in memory."""
    made = node.meta["val"]
    return torch.zeros((), dtype=made.dtype).expand(tuple(made.shape))
