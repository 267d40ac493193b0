"""The attributes of a call, a function or a module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Attrs(Mapping[str, Any]):
    """Read-only attributes: as a mapping what the program writes, by name (`attrs.strides`) all.

    An attribute of an operator that the program leaves out has the operator's default, by name.
    """

    __slots__ = ("_fields", "_op")

    def __init__(self, fields: Mapping[str, Any], op: str | None = None) -> None:
        self._fields = dict(fields)
        self._op = op

    def __getitem__(self, name: str) -> Any:
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._fields:
            return self._fields[name]
        if self._op is not None:
            from .records import lookup  # the table of operators is above the tree

            complete = lookup(self._op).read(self._fields)
            if name in complete:
                return complete[name]
        raise AttributeError(f"{self._op or 'this'} has no attribute {name}")

    def get_int(self, name: str) -> int:
        """An attribute as an integer."""
        return int(getattr(self, name))

    def get_str(self, name: str) -> str:
        """An attribute as a string."""
        return str(getattr(self, name))

    def get_int_tuple(self, name: str) -> tuple[int, ...]:
        """An attribute as a tuple of integers."""
        return tuple(int(value) for value in getattr(self, name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._fields})"


def read_only(attrs: Mapping[str, Any] | None, op: str | None = None) -> Attrs:
    """What a node holds of the attributes that it is given; `op` is the operator that it calls."""
    if isinstance(attrs, MetaAttrs) or (type(attrs) is Attrs and attrs._op == op):
        return attrs
    return Attrs(attrs or {}, op)


class MetaAttrs(Attrs):
    """Attributes that the text keeps in its `#[metadata]`: fields by name, and Relay's type key.

    Relay prints a call's attributes so when they aren't of the type that the operator declares.
    """

    __slots__ = ("type_key",)

    def __init__(self, type_key: str, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        self.type_key = type_key

    # A place in the metadata belongs to one object, so objects are told apart by identity.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __repr__(self) -> str:
        return f"MetaAttrs({self.type_key}, {self._fields})"
