"""A file that was exported for training, as it predicts: what an `Evaluator` computes of it.

Batch normalization takes its running statistics, dropout is the identity, and random numbers are
their means; in subgraphs and functions too.  What was for inference stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..graph import Distribution, mean_of


def predicting(model: onnx.ModelProto) -> str:
    """Puts a model into its inference form; gives what that changed, in words, "" for nothing.

    Raises ValueError for a random node whose dtype the file does not say.
    """
    return _Change(model).run()


class _Change:
    """One model on its way."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.changed: Counter[str] = Counter()
        self.bodies = [*_bodies(model.graph), *(b for f in model.functions for b in _bodies(f))]
        self.names = {n for body in self.bodies for node in body.node for n in node.output}
        self.names |= {t.name for t in model.graph.initializer}

    def run(self) -> str:
        before = self._used()
        for body in self.bodies:
            made = [new for node in body.node for new in self._node(node)]
            copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in made]
            del body.node[:]
            body.node.extend(copies)
        self._drop(before - self._used())
        return ", ".join(f"{count} {words}" for words, count in self.changed.items())

    def _node(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        found = None if rule is None else rule(self, node)
        if found is None:
            return [node]
        words, made = found
        self.changed[words] += 1
        return made

    def _used(self) -> set[str]:
        """What a node takes, or the graph gives."""
        taken = {name for body in self.bodies for node in body.node for name in node.input}
        return taken | {o.name for body in _bodies(self.model.graph) for o in body.output}

    def _drop(self, names: set[str]) -> None:
        """Leaves out constants that nothing takes any more."""
        graph = self.model.graph
        held = {tensor.name for tensor in graph.initializer} & names
        for field in (graph.initializer, graph.input):
            for entry in [e for e in field if e.name in held]:
                field.remove(entry)
        for node in [n for n in graph.node if n.op_type == "Constant" and n.output[0] in names]:
            graph.node.remove(node)

    def forget(self, names: Any) -> None:
        """Leaves out what is said of values that are no more."""
        for body in _bodies(self.model.graph):
            for info in [i for i in body.value_info if i.name in names]:
                body.value_info.remove(info)

    def filled(self, node: onnx.NodeProto, shape: list[onnx.NodeProto], mean: float) -> Any:
        """Nodes that give a tensor of a node's mean, of the shape that others give."""
        kind = _attributes(node).get("dtype") or self._type(node)
        value = np.asarray([mean], helper.tensor_dtype_to_np_dtype(kind))
        value = numpy_helper.from_array(value, "mean")
        return [
            *shape,
            helper.make_node("ConstantOfShape", shape[-1].output, node.output, value=value),
        ]

    def fresh(self, stem: str) -> str:
        """A name that no value has."""
        while stem in self.names:
            stem += "_"
        self.names.add(stem)
        return stem

    def _type(self, node: onnx.NodeProto) -> int:
        if not node.input:
            return int(onnx.TensorProto.FLOAT)
        graph = onnx.shape_inference.infer_shapes(self.model).graph
        types = {t.name: t.data_type for t in graph.initializer}
        for info in (*graph.input, *graph.value_info, *graph.output):
            types[info.name] = info.type.tensor_type.elem_type
        if not types.get(node.input[0]):
            raise ValueError(
                f"{node.op_type} {node.name or node.output[0]!r} has no dtype, which inference"
                " needs: mode='training' leaves it as it is"
            )
        return types[node.input[0]]


def _bodies(body: Any) -> Iterator[Any]:
    """A graph, or a function, and the graphs that its nodes hold."""
    yield body
    for node in body.node:
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _bodies(graph)


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


Made = tuple[str, list[onnx.NodeProto]] | None
"""(what a node was, in words, what it becomes); None where it stays."""


def _norm(change: _Change, node: onnx.NodeProto) -> Made:
    """By running statistics, which then are also what its other outputs are.

    Before opset 14 a node trains where it has these outputs.
    """
    more = [(i, name) for i, name in enumerate(node.output) if i and name]
    if not _attributes(node).get("training_mode", 0) and not more:
        return None
    change.forget([name for _, name in more])
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for attribute in [a for a in made.attribute if a.name == "training_mode"]:
        made.attribute.remove(attribute)
    del made.output[1:]
    same = [helper.make_node("Identity", [node.input[3 + (i - 1) % 2]], [n]) for i, n in more]
    return "BatchNormalization by running statistics", [made, *same]


def _dropout(change: _Change, node: onnx.NodeProto) -> Made:
    if len(node.input) < 3 or not node.input[2]:
        return None
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.input[2:]
    return "Dropout off", [made]


def _random(first: tuple[str, float], second: tuple[str, float], kind: str) -> Any:
    def rule(change: _Change, node: onnx.NodeProto) -> Made:
        given = _attributes(node)
        drawn: Distribution = (kind, given.get(*first), given.get(*second))
        size = change.fresh(f"{node.output[0]}_shape")
        if node.input:
            shape = helper.make_node("Shape", node.input, [size])
        else:
            value = numpy_helper.from_array(np.asarray(given["shape"], "int64"), "shape")
            shape = helper.make_node("Constant", [], [size], value=value)
        return f"{node.op_type} at its mean", change.filled(node, [shape], mean_of(drawn))

    return rule


def _bernoulli(change: _Change, node: onnx.NodeProto) -> Made:
    kind = _attributes(node).get("dtype")
    to = {} if kind is None else {"to": kind}
    made = helper.make_node("Cast" if to else "Identity", node.input, node.output, **to)
    return "Bernoulli at its mean", [made]


_NORMAL = _random(("mean", 0.0), ("scale", 1.0), "normal")
_UNIFORM = _random(("low", 0.0), ("high", 1.0), "uniform")
_RULES: dict[str, Callable[[_Change, onnx.NodeProto], Made]] = {
    "BatchNormalization": _norm,
    "Bernoulli": _bernoulli,
    "Dropout": _dropout,
    "RandomNormal": _NORMAL,
    "RandomNormalLike": _NORMAL,
    "RandomUniform": _UNIFORM,
    "RandomUniformLike": _UNIFORM,
}
