"""One ONNX node as its builder sees it, and tensors that a file holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx
from onnx import numpy_helper

from ..context import Value
from ..weights import Array


@dataclass
class Node:
    """One ONNX node with its operands and attributes."""

    proto: onnx.NodeProto
    operands: list[Value | None]
    attributes: dict[str, Any]

    @property
    def label(self) -> str:
        """`op node 'name'`; a node without a name goes by its first output's."""
        name = self.proto.name or next(iter(self.proto.output), "")
        return f"{self.proto.op_type:.40} node {name!r:.80}"

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, with bytes decoded and repeated values as a list."""
        return self.attributes.get(name, default)

    def has(self, index: int) -> bool:
        """Whether an optional operand was given."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> Value:
        """A required operand."""
        value = self.operands[index] if index < len(self.operands) else None
        if value is None:
            raise ValueError(f"operand {index} is missing")
        return value

    def static(self, index: int, what: str) -> Array:
        """An operand whose value must be known on import, such as a Reshape's target."""
        value = self.operand(index)
        if value.array is None:
            on = "the data" if value.probes is None else "the number of images"
            raise ValueError(f"{what} must be a constant, but {value.name!r} depends on {on}")
        return value.array

    def setting(self, name: str, index: int, default: Any = None) -> Any:
        """A setting that older opsets give as an attribute and newer ones as operand `index`."""
        if self.has(index):
            return self.static(index, name).tolist()
        return self.attr(name, default)

    def numbers(self, name: str, index: int, default: Any = None) -> Any:
        """A `setting` that is a vector.  Raises ValueError where the operand is none."""
        if self.has(index) and (given := self.static(index, name)).ndim != 1:
            raise ValueError(f"{name}={given.tolist()}: expected a vector")
        return self.setting(name, index, default)


def array_of(what: str, tensor: onnx.TensorProto) -> Array:
    """A tensor that the file holds.  Raises ValueError naming it where its data are missing."""
    try:
        return numpy_helper.to_array(tensor)
    except Exception as error:  # of any kind: the reader believes the file
        shape = list(tensor.dims)
        raise ValueError(f"{what} of shape {shape!s:.80} lacks data: {error}") from error


def initializer(proto: onnx.ModelProto, tensor: onnx.TensorProto) -> Array:
    """As `array_of`, naming the first node that takes it too."""
    try:
        return array_of(f"initializer {tensor.name!r}", tensor)
    except ValueError as error:
        users = (Node(n, [], {}).label for n in proto.graph.node if tensor.name in n.input)
        raise ValueError(f"{next(users, 'no node')}: {error}") from error.__cause__
