"""An operator's attributes: what kind of value each may have, and its default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from tvm import DataType

from ..dims import Dim, as_dim
from ..types import DTYPES, OTHER_NAMES


class Required:
    """The default of an attribute that has none; there is one, `REQUIRED`."""

    def __repr__(self) -> str:
        return "required"


REQUIRED = Required()


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError("an integer")
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError("a number")
    return float(value)


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError("a number")
    return int(value) if isinstance(value, Integral) else float(value)


def _bool(value: Any) -> bool:
    # Metadata spells booleans 0 and 1.
    if not isinstance(value, (bool, Integral)) or int(value) not in (0, 1):
        raise TypeError("a bool")
    return bool(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a string")
    return str(value)


def _dtype(value: Any) -> str | None:
    # Metadata spells "that of the operands" as the empty string.
    if value is None or value == "":
        return None
    try:
        found = str(DataType(value))
    except (TypeError, ValueError):
        raise TypeError("the name of a dtype") from None
    if found not in DTYPES and found not in OTHER_NAMES:  # TVM reads `float99`
        raise TypeError("the name of a dtype")
    return OTHER_NAMES.get(found, found)


def _all(read: Callable[[Any], Any], what: str) -> Callable[[Any], tuple[Any, ...]]:
    """A list, each of its elements read."""

    def each(value: Any) -> tuple[Any, ...]:
        try:
            if not isinstance(value, str) and isinstance(value, Sequence):
                return tuple(map(read, value))
        except (TypeError, ValueError):
            pass
        raise TypeError(f"a list of {what}")

    return each


_ints, _floats = _all(_int, "integers"), _all(_float, "numbers")
_pairs = _all(_ints, "lists of integers")


def _sizes(value: Any) -> tuple[int, ...]:
    """A list of integers; Relay's Python API also takes one integer for all of them."""
    try:
        return (_int(value),)
    except TypeError:
        return _ints(value)


def _dims(value: Any) -> tuple[Dim, ...]:
    """Sizes, of which the run may know some: `te.var`."""
    try:
        return _sizes(value)
    except TypeError:
        return _all(as_dim, "integers")(value)


def _sections(value: Any) -> int | tuple[int, ...]:
    try:
        return _int(value)
    except TypeError:
        pass
    try:
        return _ints(value)
    except TypeError:
        raise TypeError("an integer or a list of integers") from None


# What an attribute may be; a question mark also admits None.
KINDS: dict[str, Callable[[Any], Any]] = {
    "int": _int,
    "float": _float,
    "number": _number,
    "bool": _bool,
    "str": _str,
    "dtype": _dtype,
    "ints": _ints,
    "sizes": _sizes,
    "dims": _dims,
    "floats": _floats,
    "pairs": _pairs,
    "sections": _sections,
}


@dataclass(frozen=True)
class Attr:
    """One attribute: its default, or `REQUIRED`; its kind, one of `KINDS`, with `?` if None is one.

    Relay's text leaves out an attribute that has its default, but for `always`.  `asked`: the
    default of the builder's argument, where Relay's builder has another.
    """

    name: str
    default: Any
    kind: str
    always: bool = False
    asked: Any = ...

    @property
    def printed_always(self) -> bool:
        """Whether Relay's text has it even at its default."""
        return self.always or self.default is REQUIRED

    def is_default(self, value: Any) -> bool:
        """Whether a value means what the attribute's default does."""
        if value is None or self.default is None:
            return value is self.default
        try:
            return bool(self.read("", value) == self.read("", self.default))
        except TypeError:
            return False

    def read(self, op: str, value: Any) -> Any:
        """The value as relations take it; TypeError naming op, attribute and value."""
        if value is None and (self.kind.endswith("?") or self.kind == "dtype"):
            return None
        try:
            return KINDS[self.kind.rstrip("?")](value)
        except TypeError as wanted:
            also = " or None" if self.kind.endswith("?") else ""
            raise TypeError(f"{op}: {self.name} must be {wanted}{also}, got {value!r}") from None
