"""Which nodes of an ONNX graph the loss is of: from the output that is wanted back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import onnx

from .names import op_of


def output_name(name: str, proto: onnx.ModelProto, output: str | None) -> str:
    """The output that is asked for, or the only one.  Raises ValueError where that is none."""
    names = [o.name for o in proto.graph.output]
    if output is None and len(names) == 1:
        return names[0]
    if output not in names:
        problem = f"no output {output!r}" if output is not None else "several outputs"
        raise ValueError(f"{name} has {problem}: choose output= one of {', '.join(names)}")
    return cast(str, output)


def before_softmax(
    proto: onnx.ModelProto, wanted: str, opset: int, shape: tuple[int, ...] | None = None
) -> str:
    """The logits: the operand of a final (Log)Softmax of the classes, through Log and Identity.

    One is taken away, and LogSoftmax before it, which changes nothing; two Softmax are no one.
    shape : of the wanted tensor, where more is known than the file says.  Of pixels the classes are
        axis 1; before opset 13 Softmax goes over all axes from there on, and stays.
    """
    makers = {out: node for node in proto.graph.node for out in node.output}
    axes: tuple[int, ...] = (1, -1)
    outputs = {o.name: o.type.tensor_type.shape.dim for o in proto.graph.output}
    sizes = [d.dim_value for d in outputs[wanted]] if shape is None else list(shape)
    if math.prod(sizes[2:]) != 1:
        axes = (1, 1 - len(sizes)) if opset >= 13 else ()
    taken = False
    while (node := makers.get(wanted)) is not None:
        before = makers.get(node.input[0]) if node.input else None
        if op_of(node) == "Log" and before is not None and op_of(before) == "Softmax":
            if taken:
                break
            wanted = node.input[0]
            continue
        if op_of(node) in ("Softmax", "LogSoftmax"):
            axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
            if axis not in axes or (taken and op_of(node) == "Softmax"):
                break
            taken = True
        elif op_of(node) != "Identity":
            break
        wanted = node.input[0]
    return wanted


def needed(proto: onnx.ModelProto, wanted: str) -> list[onnx.NodeProto]:
    """The nodes on which a tensor depends, in the file's (topological) order."""
    found, kept = {wanted}, []
    for node in reversed(proto.graph.node):
        if found.intersection(node.output):
            found.update(node.input)
            kept.append(node)
    return kept[::-1]


def joined(nodes: Sequence[onnx.NodeProto], wanted: str) -> frozenset[str]:
    """What Concat takes and no other node, nor is the result."""
    found = {name for node in nodes if op_of(node) == "Concat" for name in node.input}
    others = {name for node in nodes if op_of(node) != "Concat" for name in node.input}
    return frozenset(found - others - {wanted})
