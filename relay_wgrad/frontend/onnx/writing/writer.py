"""The ONNX graph as far as it is written, and what rows ask of a call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from tvm import relax

from ....layouts import permutation
from ....relation import as_size

OPSET, IR_VERSION = 20, 9  # those of ONNX 1.15 of 2023, which every runtime of today has
_SHARED = 64  # bytes up to which equal constants are one

Names = Any
"""The name of a tensor, or a list of `Names` for a tuple."""
Row = Callable[["Writer", relax.Call, list[Names]], Names]
"""Writes a call, whose operands have these names (None for what is no tensor: a shape, a number),
and gives the names of its result."""


def sizes(expr: Any) -> tuple[int, ...]:
    """A tensor's shape in numbers.  Raises ValueError where it is open or unknown."""
    return shape_of(expr.ty)


def shape_of(ty: Any) -> tuple[int, ...]:
    """`sizes` of a type."""
    shape = getattr(ty, "shape", None)
    found = [as_size(v) for v in shape.values] if isinstance(shape, relax.ShapeExpr) else None
    if found is None or not all(isinstance(v, int) for v in found):
        raise ValueError(f"sizes must be numbers, got {ty}: of an open batch, export `of_batch(n)`")
    return tuple(map(int, found))


def dtype(expr: Any) -> str:
    """A tensor's dtype."""
    return str(expr.ty.dtype)


def elem_type(name: str) -> int:
    """ONNX's number of a dtype.  Raises ValueError for one that it lacks."""
    if name == "bfloat16":
        return int(onnx.TensorProto.BFLOAT16)
    try:
        return int(helper.np_dtype_to_tensor_dtype(np.dtype(name)))
    except (TypeError, ValueError, KeyError):
        raise ValueError(f"ONNX has no dtype {name}") from None


class Writer:
    """Nodes and initializers, each result with a name of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self._names: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.stem = "t"
        """What the next results are called after."""

    def name(self, stem: str) -> str:
        """`stem`, or where that is taken with a number."""
        result, count = stem, 1
        while result in self._names:
            result, count = f"{stem}_{count}", count + 1
        self._names.add(result)
        return result

    def nodes_of(self, op: str, inputs: Sequence[str], count: int, **attributes: Any) -> list[str]:
        """One node with so many results."""
        made = [self.name(self.stem) for _ in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), made, name=made[0], **attributes))
        return made

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """One node with one result."""
        return self.nodes_of(op, inputs, 1, **attributes)[0]

    def constant(self, value: Any, kind: str) -> str:
        """An initializer; small ones that are equal are one."""
        elem_type(kind)
        if kind == "bfloat16":
            raise ValueError("constants of bfloat16 are not supported")
        array = np.ascontiguousarray(np.asarray(value, kind))
        array = array.reshape(np.shape(value))  # of no axes too
        key = (kind, array.shape, array.tobytes()) if array.nbytes <= _SHARED else None
        if key is not None and key in self._constants:
            return self._constants[key]
        name = self.name("c")
        self.initializers.append(numpy_helper.from_array(array, name))
        if key is not None:
            self._constants[key] = name
        return name

    def ints(self, values: Sequence[int]) -> str:
        """A constant of int64."""
        return self.constant(list(values), "int64")

    # ---- what many rows need -----------------------------------------------------------------

    def reshape(self, x: str, shape: Sequence[int]) -> str:
        """Elements in the same order."""
        zero = {"allowzero": 1} if 0 in shape else {}
        return self.node("Reshape", x, self.ints(shape), **zero)

    def transpose(self, x: str, axes: Sequence[int]) -> str:
        """Nothing where the order stays."""
        if list(axes) == sorted(axes):
            return x
        return self.node("Transpose", x, perm=list(axes))

    def to_layout(self, x: str, src: str, dst: str) -> str:
        return self.transpose(x, permutation(src, dst))

    def filled(self, shape: Sequence[int], value: float, kind: str) -> str:
        """A tensor of one number."""
        scalar = self.constant(np.asarray(value), kind)
        return self.node("Expand", scalar, self.ints(shape)) if len(shape) else scalar

    def pad(self, x: str, before: Sequence[int], after: Sequence[int], fill: str = "") -> str:
        """Each axis longer by constants, by default zeros."""
        if not any(before) and not any(after):
            return x
        operands = [x, self.ints([*before, *after]), *([fill] if fill else [])]
        return self.node("Pad", *operands)

    def crop(self, x: str, begin: Sequence[int], size: Sequence[int], first: int) -> str:
        """Of axes from `first` on, as many elements."""
        ends = [b + s for b, s in zip(begin, size, strict=True)]
        axes = range(first, first + len(size))
        return self.node("Slice", x, self.ints(begin), self.ints(ends), self.ints(axes))


def count(shape: Sequence[int]) -> int:
    """Elements."""
    return math.prod(shape)
