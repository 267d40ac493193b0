"""Writes the `#[metadata]` section, node for node as TVM 0.19 does."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Collection
from typing import Any

import numpy as np

from ..ast import Constant, MetaAttrs
from ..boxed_values import BoxBool, Boxed, BoxFloat, BoxInt, unboxed
from ..errors import RelayTextError
from ..spans import Span
from ..types import AnyDim, SymDim, TensorType
from .attribute_kinds import FIELDS
from .metadata import CONSTANT, MAP, Table
from .metadata_sizes import SizeNodes, size_key
from .ndarray import to_base64

_VERSION = "0.19.0"
_NULL = 0


class MetaTable:
    """Which place in the metadata each object has.

    Objects that are still used keep the order of the module's own table; others come after them.
    """

    def __init__(self, table: Table, used: set[int], sizes: Collection[SymDim] = ()) -> None:
        self._objects: dict[str, list[Any]] = {}
        self._places: dict[int | SymDim, str] = {}
        for key, objects in table:
            for item in objects:
                if id(item) in used or (isinstance(item, SymDim) and item in sizes):
                    self._add(key, item)

    def reference(self, item: Any) -> str:
        """`meta[key][index]`."""
        found = self._places.get(_identity(item))
        if found is None:
            if isinstance(item, SymDim):
                key = size_key(item)
            else:
                key = item.type_key if isinstance(item, (MetaAttrs, Boxed)) else CONSTANT
            found = self._add(key, item)
        return found

    def _add(self, key: str, item: Any) -> str:
        objects = self._objects.setdefault(key, [])
        # The list also keeps the object alive, as long as its id is a key.
        objects.append(item)
        found = self._places[_identity(item)] = f"meta[{key}][{len(objects) - 1}]"
        return found

    def __bool__(self) -> bool:
        return bool(self._objects)

    def text(self) -> str:
        """The section; empty when nothing refers to it."""
        return _Writer().text(self._objects) if self._objects else ""


def _identity(item: Any) -> int | SymDim:
    """What tells one object from another: for sizes, what they are."""
    return item if isinstance(item, SymDim) else id(item)


class _Writer:
    """Nodes are numbered in the order in which a walk from the root first meets them."""

    def __init__(self) -> None:
        self._nodes: list[dict[str, Any]] = [{"type_key": ""}]
        self._arrays: list[str] = []
        self._sources: dict[str, int] = {}
        self._sizes = SizeNodes(self._node, self._string)
        self._device = _NULL
        self._known: dict[int, int] = {}  # objects that are written, by id: they stay alive

    def text(self, table: dict[str, list[Any]]) -> str:
        data: list[int] = []
        root = self._node("Map", keys=list(table), data=data)
        for objects in table.values():
            array: list[int] = []
            data.append(self._node("Array", data=array))
            array += [self._value(item) for item in objects]
        return "\n#[metadata]\n" + _json(root, self._nodes, self._arrays)

    def _node(self, key: str, **fields: Any) -> int:
        self._nodes.append({"type_key": key, **fields})
        return len(self._nodes) - 1

    def _object(self, item: MetaAttrs) -> int:
        key = item.type_key
        if key == MAP:
            return self._map(item)
        attrs: dict[str, str] = {}
        index = self._node(key, attrs=attrs)
        if key not in FIELDS or set(item) != set(FIELDS[key]):
            raise RelayTextError(f"attributes of type {key} can't be written to metadata")
        for name, kind in FIELDS[key].items():
            value = item[name]
            if kind == "object":
                attrs[name] = str(self._value(value))
            elif kind == "bool":
                attrs[name] = str(int(value))
            else:
                attrs[name] = str(value)
        return index

    def _map(self, item: MetaAttrs) -> int:
        if not item:
            return self._node(MAP)
        data: list[int] = []
        # A list of keys only where all are strings, which Boxed ones in pairs are not.
        if all(type(key) is str for key in item):
            index = self._node(MAP, keys=list(item), data=data)
            data += [self._value(value) for value in item.values()]
            return index
        index = self._node(MAP, data=data)
        for key, value in item.items():
            data += [self._value(key), self._value(value)]
        return index

    def _value(self, value: Any) -> int:
        """A value's node; an object that has one keeps it."""
        if not isinstance(value, (Boxed, MetaAttrs, np.integer)):
            return self._new(value)
        index = self._known.get(id(value))
        if index is None:
            index = self._new(value)
            self._known[id(value)] = index
        return index

    def _new(self, value: Any) -> int:
        if value is None:
            return _NULL
        if isinstance(value, Constant):
            return self._constant(value)
        if isinstance(value, MetaAttrs):
            return self._object(value)
        if isinstance(value, BoxBool):
            return self._node(value.type_key, repr_str="true" if value else "false")
        if isinstance(value, BoxInt):
            return self._node(value.type_key, repr_str=str(int(value)))
        if isinstance(value, BoxFloat):
            return self._node(value.type_key, repr_str=_float_text(float(value)))
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, SymDim):
            return self._sizes.index(value)
        if isinstance(value, AnyDim):
            return self._node("tir.Any", attrs={"dtype": "int32", "span": "0"})
        if isinstance(value, tuple):
            data: list[int] = []
            # TVM leaves an empty array's data out.
            index = self._node("Array", data=data) if value else self._node("Array")
            data += [self._value(item) for item in value]
            return index
        if isinstance(value, (int, np.int16, np.int64)):
            kind = type(unboxed(value))
            dtype = {bool: "bool", int: "int32"}.get(kind) or str(np.asarray(value).dtype)
            return self._node(
                "IntImm", attrs={"dtype": dtype, "span": "0", "value": str(int(value))}
            )
        raise RelayTextError(f"{type(value).__name__} can't be written to metadata")

    def _string(self, value: str) -> int:
        if not value:
            return self._node("runtime.String")
        if all(" " <= char <= "~" for char in value):
            return self._node("runtime.String", repr_str=str(value))
        raw = value.encode("utf-8")
        text = base64.b64encode(struct.pack("<Q", len(raw)) + raw).decode("ascii")
        return self._node("runtime.String", repr_b64=text)

    def _constant(self, item: Constant) -> int:
        attrs: dict[str, str] = {}
        index = self._node(CONSTANT, attrs=attrs)
        attrs["data"] = str(len(self._arrays))
        try:
            self._arrays.append(to_base64(item.data))
        except ValueError as error:
            raise RelayTextError(str(error)) from None
        if self._device == _NULL:
            # "Unconstrained", one object for all.
            device: dict[str, str] = {
                "device_type_int": "-1", "target": "0", "virtual_device_id": "-1",
            }  # fmt: skip
            self._device = self._node("VirtualDevice", attrs=device)
            device["memory_scope"] = str(self._string(""))
        attrs["virtual_device_"] = str(self._device)
        origin = item.span.origin if item.span else None
        attrs["span"] = str(self._span(origin) if origin else _NULL)
        checked = item.checked_type
        attrs["_checked_type_"] = str(
            self._tensor_type(checked) if isinstance(checked, TensorType) else _NULL
        )
        return index

    def _span(self, span: Span) -> int:
        attrs = {
            "line": str(span.line), "column": str(span.column),
            "end_line": str(span.end_line), "end_column": str(span.end_column),
        }  # fmt: skip
        index = self._node("Span", attrs=attrs)
        if span.source not in self._sources:
            self._sources[span.source] = self._node("SourceName", repr_str=span.source)
        attrs["source_name"] = str(self._sources[span.source])
        return index

    def _tensor_type(self, type_: TensorType) -> int:
        attrs = {"dtype": type_.dtype, "span": "0"}
        index = self._node("relay.TensorType", attrs=attrs)
        attrs["shape"] = str(self._value(type_.shape))
        return index


def _float_text(value: float) -> str:
    """Six digits, as C++'s streams print; more where six read back as another number."""
    for digits in (6, 17):
        text = f"{value:.{digits}g}"
        if value != value or float(text) == value:
            break
    return text


def _json(root: int, nodes: list[dict[str, Any]], arrays: list[str]) -> str:
    # The layout of dmlc's writer: a blank after each comma at a line's end.
    lines = ["{", f'  "root": {root}, ', '  "nodes": [']
    for i, node in enumerate(nodes):
        fields = [f'      "{name}": {_field(value)}' for name, value in node.items()]
        lines += ["    {", ", \n".join(fields), "    }" + (", " if i < len(nodes) - 1 else "")]
    lines.append("  ], ")
    held = ", \n".join(f'    "{array}"' for array in arrays)
    lines.append(f'  "b64ndarrays": [\n{held}\n  ], ' if arrays else '  "b64ndarrays": [], ')
    lines += [f'  "attrs": {{"tvm_version": "{_VERSION}"}}', "}"]
    return "\n".join(lines)


def _field(value: Any) -> str:
    if isinstance(value, dict):
        held = ", \n".join(f'        "{k}": {json.dumps(value[k])}' for k in sorted(value))
        return f"{{\n{held}\n      }}"
    if isinstance(value, list) and value and isinstance(value[0], str):
        held = ", \n".join(f"        {json.dumps(key)}" for key in value)
        return f"[\n{held}\n      ]"
    return json.dumps(value)
