"""What ONNX itself says of a node: how many operands, of which dtypes, attributes of which types.

A builder may rely on it: `check` runs before every node, whichever way it is imported.  Numbers of
operands and attributes are those of the file's opset; dtypes those of the newest one, as they have
only become more.  Floats are one here: the graph has one dtype for all of them.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import defs
from tvm import relax

from ...dtypes import FLOATS
from ..context import Value
from .names import op_of
from .node import Node

_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
_NAMES = {"float32": "float", "float64": "double", "object": "string"}  # of others: their own
_FLOATS = frozenset(
    kind.format(f"tensor({_NAMES.get(name, name)})")
    for name in FLOATS
    for kind in ("{}", "seq({})")
)


def check(node: Node, opset: int) -> None:
    """Raises ValueError for what ONNX does not allow of a node; an op it lacks is not checked."""
    proto = node.proto
    if not defs.has(op_of(proto)):
        return
    schema, newest = of_op(proto.op_type, opset), defs.get_schema(proto.op_type)
    _check_count("operand", schema.min_input, schema.max_input, len(proto.input))
    _check_count("result", 0, schema.max_output, len(proto.output))
    for index, operand in enumerate(node.operands):
        formal = _formal(schema, index)
        if operand is None:
            if formal.option != _OPTIONAL:
                raise ValueError(f"operand {index} ({formal.name}) is missing")
            continue
        dtype = _dtype(operand)
        allowed = _allowed(newest, index)
        if allowed and dtype not in allowed and not (dtype in _FLOATS and allowed & _FLOATS):
            raise ValueError(
                f"operand {index} ({formal.name}) is {dtype}, but must be one of"
                f" {', '.join(sorted(allowed))}"
            )
    _check_attributes(proto, schema, opset)


def of_op(name: str, opset: int) -> Any:
    """The schema of a known op at an opset; the newest where ONNX had no such op then."""
    opset = min(opset, defs.onnx_opset_version())
    return defs.get_schema(name, opset) if defs.has(name, opset) else defs.get_schema(name)


def _check_attributes(proto: onnx.NodeProto, schema: Any, opset: int) -> None:
    types = onnx.AttributeProto.AttributeType
    given: dict[str, onnx.AttributeProto] = {}
    for attribute in proto.attribute:
        name = attribute.name
        if name in given:
            raise ValueError(f"attribute {name!r:.80} is given twice")
        if name not in schema.attributes:
            # It may be another opset's, and mean something: Squeeze's axes are an operand since 13.
            known = ", ".join(sorted(schema.attributes)) or "none"
            raise ValueError(
                f"attribute {name!r:.80} is none of {proto.op_type}'s in opset {opset}, which"
                f" are: {known}"
            )
        given[name] = attribute
    for name, declared in schema.attributes.items():
        if name not in given:
            if declared.required:
                raise ValueError(f"{name} is missing")
            continue
        wanted = int(declared.type.value)
        if given[name].type != wanted:
            kinds = [types.Name(k).lower() for k in (wanted, given[name].type)]
            raise ValueError(f"attribute {name} must be of type {kinds[0]}, got {kinds[1]}")


def _check_count(what: str, least: int, most: int, given: int) -> None:
    if least <= given <= most:
        return
    limit = least if given < least else most
    words = "" if least == most else "at least " if given < least else "at most "
    raise ValueError(f"expected {words}{limit} {what}{'s' if limit != 1 else ''}, got {given}")


def _formal(schema: Any, index: int) -> Any:
    """The declared operand of an index: the last one may stand for any number."""
    return schema.inputs[min(index, len(schema.inputs) - 1)]


def _allowed(schema: Any, index: int) -> set[str]:
    formal = _formal(schema, index)
    for constraint in schema.type_constraints:
        if constraint.type_param_str == formal.type_str:
            return set(constraint.allowed_type_strs)
    return {formal.type_str}


def _dtype(value: Value) -> str:
    """A value's dtype, as ONNX writes it."""
    known = value.array if value.probes is None else value.probes[0]
    held = known if value.expr is None else value.expr.ty
    if isinstance(held, relax.TupleType):
        return f"seq({_named(held.fields[0])})"
    return _named(held)


def _named(held: Any) -> str:
    name = str(held.dtype) if held is not None else ""
    return f"tensor({_NAMES.get(name, name)})"
