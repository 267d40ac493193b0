"""The `#[metadata]` section: the objects that the program's text refers to as `meta[key][index]`.

It is TVM's graph of serialized nodes, in JSON.  A node's attributes are all strings, an object's
fields are the indices of nodes, and only the type tells an index from a number: `attribute_kinds`
has the attribute types that can be read.  Node 0 is null.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..ast import Constant, MetaAttrs
from ..boxed_values import (
    BoxBool,
    BoxFloat,
    BoxInt,
    MetaArray,
    MetaString,
    SharedArray,
    SharedInt,
    SharedString,
    unboxed,
)
from ..dims import ANY, AnyDim, SymDim
from ..errors import Complaint
from ..spans import Span
from ..types import DTYPES, TensorType
from .attribute_kinds import BOOL, FIELDS, FLOAT, INT, OBJECT
from .literals import integer
from .metadata_sizes import SIZE_KEYS, read_size
from .ndarray import from_base64

CONSTANT = "relay.Constant"
MAP = "Map"
_LENGTH = struct.Struct("<Q")  # of a string, before it
_INDEX = re.compile(r"\d{1,9}")
_FLOAT = re.compile(r"-?(?:\d{1,20}(?:\.\d{1,20})?(?:e[+-]\d{1,3})?|inf|nan)")
_DEEPEST = 50  # arrays within arrays
_LARGEST = 1_000_000  # values of one object, counted as often as they are shared

Table = tuple[tuple[str, tuple[Any, ...]], ...]


class _BadError(ValueError):
    """What is wrong with the section; it has no place in the text but the section's."""


def decode(text: str, offset: int, place: Span) -> Table:
    """The table of the section that begins at `offset`.  Raises Complaint."""
    begin = offset + len("#[metadata]")
    try:
        graph = json.loads(text[begin:], parse_int=integer)
        return _Reader(graph, place).table()
    except json.JSONDecodeError as error:
        raise Complaint(begin + error.pos, f"bad metadata: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise Complaint(offset, f"bad metadata: {error}") from None


class _Reader:
    def __init__(self, graph: Any, place: Span) -> None:
        if not isinstance(graph, dict):
            raise _BadError("not a JSON object")
        self._nodes = _typed(graph, "nodes", list)
        self._arrays = _typed(graph, "b64ndarrays", list) if "b64ndarrays" in graph else []
        self._root = _typed(graph, "root", int)
        self._place = place
        self._done: dict[int, tuple[Any, int]] = {}  # index -> (value, its size)
        self._users = _users(self._nodes)

    def table(self) -> Table:
        root = self._node(self._root)
        if root.get("type_key") != "Map":
            raise _BadError("its root is no Map")
        keys, data = _typed(root, "keys", list), _typed(root, "data", list)
        if len(keys) != len(data) or len(set(map(str, keys))) != len(keys):
            raise _BadError("its root's keys and data don't pair")
        table = []
        for key, index in zip(keys, data, strict=True):
            if not isinstance(key, str):
                raise _BadError(f"{_short(key)} is no key")
            array = self._node(index)
            if array.get("type_key") != "Array":
                raise _BadError(f"meta[{key}] is no Array")
            table.append((key, tuple(self._object(key, i) for i in _list(array))))
        return tuple(table)

    def _object(self, key: str, index: Any) -> Any:
        node = self._node(index)
        if node.get("type_key") != key:
            raise _BadError(f"meta[{key}] holds a {_short(node.get('type_key'))}")
        value = self._value(index, 0)[0]
        if key not in _TOP:
            return value
        # What the text refers to is one object, whatever else refers to it.
        value = _TOP[key](unboxed(value))
        self._done[int(index)] = value, self._done[int(index)][1]
        return value

    def _node(self, index: Any) -> dict[str, Any]:
        if isinstance(index, str):
            index = _int(index)
        if type(index) is not int or not 0 <= index < len(self._nodes):
            raise _BadError(f"there is no node {_short(index)}")
        node = self._nodes[index]
        if not isinstance(node, dict):
            raise _BadError(f"node {index} is no object")
        return node

    def _value(self, index: Any, depth: int) -> tuple[Any, int]:
        """A node's value and how many values it holds."""
        if depth > _DEEPEST:
            raise _BadError(f"nodes nest deeper than {_DEEPEST}, or in a circle")
        node = self._node(index)
        index = int(index)
        if index not in self._done:
            key = _typed(node, "type_key", str)
            if key in FIELDS:
                self._done[index] = self._attrs(key, node, depth), 1
            elif key in _READERS:
                value, size = _READERS[key](self, node, depth)
                if self._users.get(index, 0) > 1:
                    value = _shared(value)
                self._done[index] = value, size
            else:
                raise _BadError(f"objects of type {_short(key)} can't be read")
        return self._done[index]

    def _attrs(self, key: str, node: dict[str, Any], depth: int) -> MetaAttrs:
        written = _typed(node, "attrs", dict)
        if set(written) != set(FIELDS[key]):
            raise _BadError(f"{key} has the fields {', '.join(FIELDS[key])}")
        fields = {}
        for name, kind in FIELDS[key].items():
            text = _typed(written, name, str)
            if kind == OBJECT:
                fields[name] = _plain(self._value(text, depth + 1)[0])
            elif kind == BOOL:
                fields[name] = _bool(text)
            elif kind == INT:
                fields[name] = _int(text)
            elif kind == FLOAT:
                fields[name] = _float(text)
            else:
                fields[name] = text
        return MetaAttrs(key, fields)

    def _null(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        return None, 1

    def _string(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        return _repr(node), 1

    def _box_int(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        value = _int(_repr(node))
        if not -(2**63) <= value < 2**63:
            raise _BadError(f"{value} is out of int64's range")
        return BoxInt(value), 1

    def _box_bool(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        text = _repr(node)
        if text not in ("true", "false"):
            raise _BadError(f"{_short(text)} is neither true nor false")
        return BoxBool(text == "true"), 1

    def _box_float(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        return BoxFloat(_float(_repr(node))), 1

    def _float_imm(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        attrs = _typed(node, "attrs", dict)
        value, dtype = _float(attrs.get("value")), attrs.get("dtype")
        if dtype not in ("float32", "float64"):
            raise _BadError(f"a FloatImm of dtype {_short(dtype)}")
        return (value if dtype == "float32" else np.float64(value)), 1

    def _map(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        """Of strings by "keys", of other keys in pairs with their values."""
        data = _list(node)
        if "keys" in node:
            keys = _typed(node, "keys", list)
            if not all(isinstance(key, str) for key in keys):
                raise _BadError("a Map's keys are strings")
        else:
            keys = [self._value(index, depth + 1)[0] for index in data[::2]]
            data = data[1::2]
            if not all(isinstance(key, (str, int, float)) for key in keys):
                raise _BadError("a Map's keys are strings or numbers")
        if len(keys) != len(data) or len(set(keys)) != len(keys):
            raise _BadError("a Map's keys and data don't pair")
        values = [self._value(index, depth + 1) for index in data]
        size = 1 + sum(size for _, size in values)
        if size > _LARGEST:
            raise _BadError(f"a Map of more than {_LARGEST} values")
        fields = {key: _plain(value, True) for key, (value, _) in zip(keys, values, strict=True)}
        return MetaAttrs(MAP, fields), size

    def _any(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        return ANY, 1

    def _array(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        values = [self._value(index, depth + 1) for index in _list(node)]
        size = 1 + sum(size for _, size in values)
        if size > _LARGEST:
            raise _BadError(f"an array of more than {_LARGEST} values")
        return tuple(value for value, _ in values), size

    def _int_imm(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        attrs = _typed(node, "attrs", dict)
        value, dtype = _int(attrs.get("value")), attrs.get("dtype")
        if dtype == "bool":
            return _bool(str(value)), 1
        kinds: dict[Any, type[Any]] = {"int16": np.int16, "int32": np.int32, "int64": np.int64}
        if dtype not in kinds:
            raise _BadError(f"an IntImm of dtype {_short(dtype)}")
        info = np.iinfo(kinds[dtype])
        if not info.min <= value <= info.max:
            raise _BadError(f"{value} is out of {dtype}'s range")
        return (value if dtype == "int32" else kinds[dtype](value)), 1

    def _constant(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        attrs = _typed(node, "attrs", dict)
        index = _int(attrs.get("data"))
        if not 0 <= index < len(self._arrays) or not isinstance(self._arrays[index], str):
            raise _BadError(f"there is no array {index}")
        data = from_base64(self._arrays[index])
        checked = self._value(attrs.get("_checked_type_", "0"), depth + 1)[0]
        if checked is not None:
            if not isinstance(checked, TensorType):
                raise _BadError("a constant's type is a tensor's")
            if checked.shape != data.shape or checked.dtype != _dtype(data):
                raise _BadError(
                    f"a constant of {_dtype(data)}{list(data.shape)} with another's type"
                )
        origin = self._value(attrs.get("span", "0"), depth + 1)[0]
        if origin is not None and not isinstance(origin, Span):
            raise _BadError("a constant's span is no Span")
        place = self._place
        span = Span(
            place.source, place.line, place.end_line, place.column, place.end_column, origin
        )
        return Constant(data, span, checked), 1

    def _tensor_type(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        attrs = _typed(node, "attrs", dict)
        shape, dtype = self._value(attrs.get("shape"), depth + 1)[0], attrs.get("dtype")
        if not isinstance(shape, tuple) or not all(
            isinstance(dim, (AnyDim, SymDim))
            or (not isinstance(dim, bool) and isinstance(dim, (int, np.int64)))
            for dim in shape
        ):
            raise _BadError("a tensor type's shape is an array of integers")
        if dtype not in DTYPES:
            raise _BadError(f"unknown dtype {_short(dtype)}")
        return TensorType(shape, dtype), 1

    def _size(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        attrs = _typed(node, "attrs", dict)
        read = read_size(node["type_key"], attrs, lambda i: self._value(i, depth + 1)[0])
        return read, 1

    def _span(self, node: dict[str, Any], depth: int) -> tuple[Any, int]:
        attrs = _typed(node, "attrs", dict)
        source = self._value(attrs.get("source_name"), depth + 1)[0]
        if not isinstance(source, str):
            raise _BadError("a span without its source's name")
        names = ("line", "end_line", "column", "end_column")
        line, end_line, column, end_column = (_int(attrs.get(name)) for name in names)
        return Span(source, line, end_line, column, end_column), 1


_READERS: dict[str, Callable[[_Reader, dict[str, Any], int], tuple[Any, int]]] = {
    "": _Reader._null,
    "runtime.String": _Reader._string,
    "runtime.BoxInt": _Reader._box_int,
    "runtime.BoxBool": _Reader._box_bool,
    "runtime.BoxFloat": _Reader._box_float,
    "Map": _Reader._map,
    "SourceName": _Reader._string,
    "Array": _Reader._array,
    "IntImm": _Reader._int_imm,
    "FloatImm": _Reader._float_imm,
    "tir.Any": _Reader._any,
    "relay.Constant": _Reader._constant,
    "relay.TensorType": _Reader._tensor_type,
    "Span": _Reader._span,
    **dict.fromkeys(SIZE_KEYS, _Reader._size),
}


_TOP: dict[str, Callable[[Any], Any]] = {"runtime.String": MetaString, "Array": MetaArray}
_SHARED: dict[type[Any], Callable[[Any], Any]] = {
    int: SharedInt,
    str: SharedString,
    tuple: SharedArray,
}


def _shared(value: Any) -> Any:
    """A value that several refer to; numpy's numbers and objects are told apart as they are."""
    make = _SHARED.get(type(value))
    return make(value) if make is not None else value


def _users(nodes: list[Any]) -> Counter[int]:
    """How often each node is referred to, as far as the types tell."""
    found: Counter[int] = Counter()
    for node in nodes:
        if not isinstance(node, dict):
            continue
        data, attrs = node.get("data"), node.get("attrs")
        found.update(i for i in data if type(i) is int) if isinstance(data, list) else None
        fields = FIELDS.get(str(node.get("type_key")), {})
        if isinstance(attrs, dict):
            texts = [attrs.get(name) for name, kind in fields.items() if kind == OBJECT]
            found.update(int(t) for t in texts if isinstance(t, str) and _INDEX.fullmatch(t))
    return found


def _repr(node: dict[str, Any]) -> str:
    """A node's own text; in base64, with its length before it, where it can't be printed."""
    if "repr_b64" not in node:
        return _typed(node, "repr_str", str) if "repr_str" in node else ""
    try:
        raw = base64.b64decode(_typed(node, "repr_b64", str), validate=True)
        (size,) = _LENGTH.unpack_from(raw)
        text = raw[_LENGTH.size :].decode("utf-8")
    except (ValueError, struct.error) as error:
        raise _BadError(f"a string that is not base64 of UTF-8: {error}") from None
    if size != len(raw) - _LENGTH.size:
        raise _BadError(f"a string of {size} bytes, with {len(raw) - _LENGTH.size} there")
    return text


def _plain(value: Any, objects: bool = False) -> Any:
    """An attribute's value: a number, a string, nothing, or tuples of these; maps if `objects`."""
    for item in value if isinstance(value, tuple) else ():
        _plain(item, objects)
    refused = (Constant, TensorType, Span) if objects else (Constant, TensorType, Span, MetaAttrs)
    if isinstance(value, refused):
        raise _BadError(f"a {type(value).__name__} can't be an attribute's value")
    return value


def _typed(node: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = node.get(name)
    if type(value) is not kind:
        raise _BadError(f"{name} is {_short(value)}, not of JSON's type {kind.__name__}")
    return value


def _list(node: dict[str, Any]) -> list[Any]:
    # TVM leaves an empty array's data out.
    return _typed(node, "data", list) if "data" in node else []


def _int(text: Any) -> int:
    if not isinstance(text, str):
        raise _BadError(f"{_short(text)} is no integer's text")
    try:
        return integer(text)
    except ValueError:
        raise _BadError(f"{_short(text)} is no integer") from None


def _float(text: Any) -> float:
    if not isinstance(text, str) or not _FLOAT.fullmatch(text):
        raise _BadError(f"{_short(text)} is no number")
    return float(text)


def _bool(text: str) -> bool:
    if text not in ("0", "1"):
        raise _BadError(f"{_short(text)} is neither 0 nor 1")
    return text == "1"


def _dtype(data: np.ndarray[Any, Any]) -> str:
    return str(data.dtype)


def _short(value: Any) -> str:
    # A decoded value can be large and deep; its kind is enough then.
    if isinstance(value, str):
        return repr(value[:40])
    return repr(value) if isinstance(value, (int, float, type(None))) else type(value).__name__
