"""One node of an exported graph as its builder sees it: operands, settings, what PyTorch makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from tvm import relax

from ...dtypes import HALVES, numpy_dtype
from ...ir import constant
from ..context import Context, shape_of
from ..sizes import is_size, number, same
from ..weights import Array

Args = list[Any]
Builder = Callable[[Context, "Call"], Any]
# Settings that say where and how a tensor lies; `dtype` is in the result's type.
_PLACEMENT = {"device", "pin_memory", "layout", "memory_format", "dtype", "non_blocking", "copy",
              "cudnn_enabled", "cudnn_enable"}  # fmt: skip


class Noted(list):  # type: ignore[type-arg]
    """A list that notes which of its elements were read."""

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.read: set[int] = set()

    def __getitem__(self, index: Any) -> Any:
        self.read |= {*range(len(self))[index]} if isinstance(index, slice) else {index % len(self)}
        return super().__getitem__(index)


class NotedNames(dict):  # type: ignore[type-arg]
    """The same of a dictionary, for `get`."""

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """Notes the name."""
        self.read.add(name)
        return super().get(name, default)


@dataclass(frozen=True)
class Unset:
    """What `torch.empty` gives: a shape and a dtype, to be filled by a random op."""

    shape: tuple[int, ...]
    dtype: str


def _numbers(shape: Any) -> tuple[Any, ...]:
    return tuple(int(s) for s in shape)


@dataclass
class Call:
    """One node of the exported graph: its operands as expressions, by ATen's own order.

    `values` are PyTorch's own (fake) operands, `result` what it says of the result.
    """

    name: str
    args: Any
    kwargs: Any
    node: Any = None
    values: tuple[Any, ...] = ()
    result: Any = None
    sizes: Callable[[Any], tuple[Any, ...]] = _numbers  # PyTorch's to numbers and expressions

    def arg(self, index: int, default: Any = None) -> Any:
        """An argument, or the default where it was left out."""
        return self.args[index] if index < len(self.args) else default

    def setting(self, name: str, default: Any = None) -> Any:
        """A keyword's value, or the default where it was left out."""
        return self.kwargs.get(name, default)

    @property
    def first_result(self) -> Any:
        """The result, or the first of several that is there."""
        if not isinstance(self.result, (tuple, list)):
            return self.result
        return next((r for r in self.result if r is not None), None)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The (first) result's, by PyTorch."""
        return self.sizes(self.first_result.shape)

    @property
    def dtype(self) -> str:
        """The (first) result's, by PyTorch; "" where it is no tensor."""
        return dtype_name(self.first_result) if hasattr(self.first_result, "dtype") else ""

    def unread(self) -> list[str]:
        """Arguments that no builder has looked at and that are not their schema's defaults."""
        schema = getattr(getattr(self.node, "target", None), "_schema", None)
        declared = list(schema.arguments) if schema is not None else []
        found = []
        for i, value in enumerate(list.__iter__(self.args)):
            default = declared[i].default_value if i < len(declared) else None
            name = declared[i].name if i < len(declared) else f"argument {i}"
            known = i in self.args.read or name in _PLACEMENT
            if not known and not _same(value, default):
                found.append(f"{name}={_text(value)}")
        defaults = {a.name: a.default_value for a in declared}
        for name, value in self.kwargs.items():
            known = name in _PLACEMENT or name in self.kwargs.read
            if not known and not _same(value, defaults.get(name)):
                found.append(f"{name}={_text(value)}")
        return found


def ints(value: Any, count: int) -> list[int]:
    """A number for each axis, or the one for all of them."""
    values = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return values * count if len(values) == 1 else values


def check_elements(**operands: Any) -> None:
    """Raises ValueError for an operand without elements, whose layer PyTorch runs."""
    for name, operand in operands.items():
        if 0 in (shape := list(shape_of(operand))):
            raise ValueError(f"{name} has no elements: its shape is {shape}")


def _same(value: Any, default: Any) -> bool:
    return isinstance(value, (int, float, str, bool, list, tuple, type(None))) and value == default


def _text(value: Any) -> str:
    return "a tensor" if hasattr(value, "ty") else repr(value)


def dtype_name(value: Any) -> str:
    """Of a PyTorch tensor, as TVM and NumPy write it."""
    return str(value.dtype).removeprefix("torch.")


def promoted(call: Call, *indices: int) -> str:
    """The dtype in which PyTorch combines these operands."""
    torch = import_module("torch")
    values = [call.values[i] for i in indices]
    if len(values) == 1:
        return dtype_name(values[0])
    return str(torch.result_type(*values)).removeprefix("torch.")


def array(tensor: Any) -> Array:
    """A PyTorch tensor's values, of bfloat16 as ml_dtypes has them."""
    held = tensor.detach().cpu()
    name = dtype_name(held)
    wide = held.float() if name in HALVES else held
    return np.array(wide.numpy(force=True), numpy_dtype(name))


def as_dtype(ctx: Context, value: Any, dtype: str) -> Any:
    """A tensor, or a number, as a tensor of this dtype."""
    if isinstance(value, (bool, int, float)):
        return constant(value, dtype)
    if is_size(value):
        return number([value], dtype, ctx.emit)
    if not hasattr(value, "ty"):
        raise ValueError(f"expected a tensor or a number, got {type(value).__name__}")
    return value if str(value.ty.dtype) == dtype else ctx.emit(relax.op.astype(value, dtype))


def check_result(call: Call, built: Any) -> None:
    """Raises ValueError where a builder's result is not of the shape and dtype of PyTorch's."""
    if isinstance(call.result, (tuple, list)):
        pairs = list(zip(built, call.result, strict=False))
    else:
        pairs = [(built, call.result)]
    for made, said in pairs:
        if made is None or isinstance(made, Unset) or not hasattr(said, "shape"):
            continue
        got = (list(shape_of(made)), str(made.ty.dtype))
        expected = (list(call.sizes(said.shape)), dtype_name(said))
        fits = len(got[0]) == len(expected[0]) and all(map(same, got[0], expected[0]))
        if not fits or got[1] != expected[1]:
            raise ValueError(f"gives {expected[1]}{expected[0]}, was built as {got[1]}{got[0]}")
