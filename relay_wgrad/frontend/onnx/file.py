"""An ONNX file as a message whose graph can be walked: what is in it is checked, not believed.

Errors are one sentence with the file and the reason.  Data in other files are read from the model's
own folder and what is below it only, never through a link, and only as many bytes as a tensor has.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper

_KNOWN = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
NUMBERS = _KNOWN - {TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128}
"""Types of elements that an input may have."""

_LONGEST_NAME = 500
_MOST_NAMES = 8  # of a cycle, in an error


def read(path: Path) -> onnx.ModelProto:
    """The model in a file, with the data that it keeps in others.

    Raises FileNotFoundError for data that are not there, another OSError for a file that cannot be
    read; ValueError for what is no ONNX model, and for data in a place that is not read.
    """
    text = str(path)
    try:
        with open(path, "rb") as file:
            proto = onnx.ModelProto.FromString(file.read())
    except (DecodeError, IsADirectoryError) as error:
        raise ValueError(f"{text!r} is not an ONNX model: {error}") from error
    if not proto.graph.node or not proto.opset_import:
        # Some byte strings decode to an empty message.
        raise ValueError(f"{text!r} is not an ONNX model: it has no graph")
    for what, tensor in _tensors(proto):
        if tensor.data_location == TensorProto.EXTERNAL:
            _check_tensor(repr(text), what, tensor)
            _fill(path, what, tensor)
    return proto


def check(origin: str, proto: onnx.ModelProto) -> None:
    """Raises ValueError for a graph that is none: `origin` is what the message begins with.

    Its tensors have sizes and dtypes, each value is made once and before it is used, there is an
    output.
    """
    for what, tensor in _tensors(proto):
        _check_tensor(origin, what, tensor)
        if tensor.data_location == TensorProto.EXTERNAL:
            raise ValueError(
                f"{origin}: {what} has its data in another file: give the model's path, or read it"
                " with onnx.load"
            )
    graph = proto.graph
    for name in _names(graph):  # bytes where it is no UTF-8
        if isinstance(name, bytes) or len(name) > _LONGEST_NAME or not name.isprintable():
            raise ValueError(
                f"{origin}: names must be printable, of at most {_LONGEST_NAME} characters; got"
                f" {name!r:.80} of {len(name)}"
            )
    if graph.sparse_initializer:
        raise ValueError(f"{origin}: sparse initializers are not supported")
    if not graph.output:
        raise ValueError(f"{origin}: the model has no outputs")
    _once(origin, "initializers", [t.name for t in graph.initializer])
    _once(origin, "inputs", [i.name for i in graph.input])
    _once(origin, "outputs", [o.name for o in graph.output])
    given = {t.name for t in graph.initializer} | {i.name for i in graph.input}
    _once(origin, "values", [*given, *(n for node in graph.node for n in node.output if n)])
    _sorted(origin, graph, given)


def _names(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    """Of nodes and values: they become part of errors, of one line each."""
    for info in (*graph.initializer, *graph.input, *graph.output):
        yield info.name
    for node in graph.node:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _once(origin: str, kind: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1 or not name:
            what = (
                f"{count} {kind} are named {name!r:.80}"
                if name
                else f"one of its {kind} has no name"
            )
            raise ValueError(f"{origin}: {what}")


def _sorted(origin: str, graph: onnx.GraphProto, given: set[str]) -> None:
    """Raises ValueError for nodes in a cycle, and for one that comes before what it takes."""
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    early = next(
        ((i, x) for i, n in enumerate(graph.node) for x in n.input if makers.get(x, -1) >= i), None
    )
    if early is None:
        return
    if cycle := _cycle(graph, makers):
        names = [_label(graph.node[i]) for i in cycle]
        more = [f"… {len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
        path = " → ".join([*names[:_MOST_NAMES], *more, names[0]])
        raise ValueError(f"{origin}: its nodes form a cycle: {path}")
    index, name = early
    raise ValueError(
        f"{origin}: {_label(graph.node[index])} takes {name!r:.80} before"
        f" {_label(graph.node[makers[name]])} makes it: nodes must be in order"
    )


def _cycle(graph: onnx.GraphProto, makers: dict[str, int]) -> list[int]:
    """Nodes of which each makes what the next one takes, and the last what the first; or none."""
    takes = [[makers[x] for x in node.input if x in makers] for node in graph.node]
    state = [0] * len(takes)  # 1: on the way, 2: done
    for root in range(len(takes)):
        way, todo = [], [(root, iter(takes[root]))] if not state[root] else []
        if todo:
            state[root] = 1
            way = [root]
        while todo:
            node, rest = todo[-1]
            following = next(rest, None)
            if following is None:
                state[node] = 2
                todo.pop()
                way.pop()
            elif state[following] == 1:
                return way[way.index(following) :][::-1]
            elif not state[following]:
                state[following] = 1
                todo.append((following, iter(takes[following])))
                way.append(following)
    return []


def _label(node: onnx.NodeProto) -> str:
    name = node.name or next(iter(node.output), "")
    return f"{node.op_type:.40} {name!r:.80}"


def _tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """(what it is, tensor) of everything in the file, subgraphs and functions too."""
    yield from _of_graph(proto.graph)
    for function in proto.functions:
        for node in function.node:
            yield from _of_node(node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[tuple[str, TensorProto]]:
    for tensor in graph.initializer:
        yield f"initializer {tensor.name!r:.80}", tensor
    for sparse in graph.sparse_initializer:
        yield f"sparse initializer {sparse.values.name!r:.80}", sparse.values
        yield f"sparse initializer {sparse.values.name!r:.80}", sparse.indices
    for node in graph.node:
        yield from _of_node(node)


def _of_node(node: onnx.NodeProto) -> Iterator[tuple[str, TensorProto]]:
    for attribute in node.attribute:
        what = f"{_label(node)}, attribute {attribute.name!r:.80}"
        tensors = [attribute.t] if attribute.HasField("t") else []
        for tensor in (*tensors, *attribute.tensors):
            yield what, tensor
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            yield from _of_graph(graph)


def _check_tensor(origin: str, what: str, tensor: TensorProto) -> None:
    if any(size < 0 for size in tensor.dims):
        raise ValueError(f"{origin}: {what} has a negative size: {list(tensor.dims)!s:.80}")
    if tensor.data_type not in _KNOWN:
        raise ValueError(f"{origin}: {what} is of no known type ({tensor.data_type})")


# ---- data in other files ---------------------------------------------------------------------


def _fill(model: Path, what: str, tensor: TensorProto) -> None:
    """Reads a tensor's data from another file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    begin = f"{str(model)!r}: {what} has its data in {location!r:.200}"
    path = _data_file(begin, model.parent, location)
    numbers = {}
    for key, default in (("offset", "0"), ("length", "")):
        value = entries.get(key, default)
        if value and not (value.isascii() and value.isdecimal() and len(value) < 19):
            raise ValueError(f"{begin} with {key} {value!r:.80}, which is no number of bytes")
        numbers[key] = int(value) if value else None
    # O_NONBLOCK: a pipe must not be waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    info = os.fstat(descriptor)
    if not stat.S_ISREG(info.st_mode):
        os.close(descriptor)
        raise ValueError(f"{begin}, which is no file")
    with open(descriptor, "rb") as file:
        offset = numbers["offset"] or 0
        length = info.st_size - offset if numbers["length"] is None else numbers["length"]
        if length < 0 or offset + length > info.st_size:
            raise ValueError(
                f"{begin}: {max(length, 0)} bytes from byte {offset} on, but the file has"
                f" {info.st_size}"
            )
        if (size := size_of(tensor)) is None or size != length:
            shape = list(tensor.dims)
            wanted = "no fixed size" if size is None else f"{size} bytes"
            raise ValueError(f"{begin}: {length} bytes, but its shape {shape!s:.80} has {wanted}")
        file.seek(offset)
        data = file.read(length)
    tensor.raw_data = data
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.DEFAULT


def _data_file(begin: str, folder: Path, location: str) -> Path:
    """The file at a location.  Raises as `read` does where it is none of the model's folder."""
    if not location or "\0" in location:
        raise ValueError(f"{begin}: no location of a file")
    if location.startswith(("/", "\\")) or location[1:2] == ":":
        raise ValueError(f"{begin}: the location must be within the model's folder, not absolute")
    parts = location.replace("\\", "/").split("/")
    if ".." in parts:
        raise ValueError(f"{begin}: the location is outside of the model's folder")
    path = folder
    try:
        for part in parts:
            path = path / part
            if path.is_symlink():
                raise ValueError(f"{begin}, which is a link: data are not read through links")
        missing = not path.exists()
    except OSError as error:  # such as a name that is too long
        raise ValueError(f"{begin}: {error.strerror}") from error
    if missing:
        raise FileNotFoundError(f"{begin}, which is missing")
    return path


def size_of(tensor: TensorProto) -> int | None:
    """The bytes of a tensor's data; None for strings, which have no fixed size."""
    if tensor.data_type == TensorProto.STRING:
        return None
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    bits = _NARROW.get(TensorProto.DataType.Name(tensor.data_type), 8 * dtype.itemsize)
    return (math.prod(tensor.dims) * bits + 7) // 8


_NARROW = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}  # several in a byte
