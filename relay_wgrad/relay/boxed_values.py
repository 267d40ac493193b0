"""Values of attributes that are objects in Relay's metadata: numbers, strings and lists in boxes.

Each is a number, a string or a tuple, and also one object: a place in the metadata belongs to it,
and what refers to it twice is printed so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.tirx import IntImm


class Boxed:
    """What the metadata holds as an object of its own; Relay's name of its type is `type_key`."""

    __slots__ = ()
    type_key = ""

    @property
    def unboxed(self) -> Any:
        """The value without its box."""
        raise NotImplementedError


class BoxInt(int, Boxed):
    """An integer; `meta[runtime.BoxInt][0]` in the text."""

    type_key = "runtime.BoxInt"

    @property
    def unboxed(self) -> int:
        return int(self)


class BoxBool(int, Boxed):
    """A bool, 0 or 1."""

    type_key = "runtime.BoxBool"

    @property
    def unboxed(self) -> bool:
        return bool(self)


class BoxFloat(float, Boxed):
    """A float."""

    type_key = "runtime.BoxFloat"

    @property
    def unboxed(self) -> float:
        return float(self)


class MetaString(str, Boxed):
    """A string that the metadata holds."""

    type_key = "runtime.String"

    @property
    def unboxed(self) -> str:
        return str(self)


class MetaArray(tuple[Any, ...], Boxed):
    """A list that the metadata holds."""

    type_key = "Array"

    @property
    def unboxed(self) -> tuple[Any, ...]:
        return tuple(self)


class SharedInt(int, Boxed):
    """An IntImm to which the metadata refers more than once."""

    type_key = "IntImm"

    @property
    def unboxed(self) -> int:
        return int(self)


class Size(int, Boxed):
    """A size of a tensor's type: an int that also has it as `value`, as Relay's sizes have."""

    __slots__ = ()
    type_key = "IntImm"

    @property
    def unboxed(self) -> int:
        return int(self)

    value = unboxed


class SharedString(MetaString):
    """A string within another object, to which the metadata refers more than once."""


class SharedArray(MetaArray):
    """A list within another object, to which the metadata refers more than once."""


# Printed where they stand, as what they are.
SHARED = (SharedInt, SharedString, SharedArray, Size)


_NODES = (IntImm,)


def unboxed(value: Any) -> Any:
    """A value without a box around it."""
    return value.unboxed if isinstance(value, Boxed) else value


def without_nodes(attrs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Attributes with integers where TVM's nodes of them stand (`IntImm`)."""
    if not any(isinstance(value, _NODES) for value in attrs.values()):
        return attrs
    return {k: int(v) if isinstance(v, _NODES) else v for k, v in attrs.items()}


def by_reference(value: Any) -> bool:
    """Whether the text has `meta[…][…]` for an attribute's value, not the value itself."""
    return isinstance(value, Boxed) and not isinstance(value, SHARED)
