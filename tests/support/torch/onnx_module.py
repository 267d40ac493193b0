"""An ONNX network as a PyTorch module: shares no code with the package's importer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as fn
from onnx import helper, numpy_helper

from relay_wgrad.frontend.onnx.model_source import load

Attributes = dict[str, Any]


def _around(attr: Attributes) -> tuple[int, ...]:
    """Padding in the order of `fn.pad`."""
    top, left, bottom, right = attr.get("pads", [0] * 4)
    return left, right, top, bottom


def _conv(attr: Attributes, x: Any, *weights: Any) -> Any:
    pads = attr.get("pads", [0] * 4)
    even = pads[:2] == pads[2:]
    return fn.conv2d(
        x if even else fn.pad(x, _around(attr)),
        *weights,
        stride=attr["strides"],
        padding=tuple(pads[:2]) if even else 0,
        groups=attr.get("group", 1),
    )


def _max_pool(attr: Attributes, x: Any) -> Any:
    padded = fn.pad(x, _around(attr), value=-np.inf)
    return fn.max_pool2d(padded, attr["kernel_shape"], attr["strides"])


def _average_pool(attr: Attributes, x: Any) -> Any:
    """ONNX leaves out the padding from the count; of a network at a smaller size than its file's,
    what averaged the whole image still does, as in the front end."""
    top, left, bottom, right = attr.get("pads", [0] * 4)
    padded = (x.shape[2] + top + bottom, x.shape[3] + left + right)
    if any(k > n for k, n in zip(attr["kernel_shape"], padded, strict=True)):
        return x.mean((2, 3), keepdim=True)

    def pool(values: Any) -> Any:
        return fn.avg_pool2d(fn.pad(values, _around(attr)), attr["kernel_shape"], attr["strides"])

    return pool(x) if not any(_around(attr)) else pool(x) / pool(torch.ones_like(x[:1, :1]))


def _unsqueeze(attr: Attributes, x: Any) -> Any:
    for axis in sorted(attr["axes"]):
        x = x.unsqueeze(axis)
    return x


def _batched(x: Any, shape: list[int]) -> list[int]:
    """A file's shape, in which the file's own batch stands first unless it is a weight's, and its
    own pixels last where it splits channels."""
    if x.numel() == math.prod(shape):
        return shape
    return [x.shape[0], *(shape[1:] if len(shape) < 4 else [*shape[1:-2], *x.shape[-2:]])]


OPS: dict[str, Callable[..., Any]] = {
    "Add": lambda attr, a, b: a + b,
    "AveragePool": _average_pool,
    "Concat": lambda attr, *parts: torch.cat(parts, attr["axis"]),
    "Conv": _conv,
    "Dropout": lambda attr, x: x,
    "Gemm": lambda attr, a, b, c: a @ (b.T if attr.get("transB") else b) + c,
    "GlobalAveragePool": lambda attr, x: x.mean((2, 3), keepdim=True),
    "LRN": lambda attr, x: fn.local_response_norm(
        x, attr["size"], attr.get("alpha", 1e-4), attr.get("beta", 0.75), attr.get("bias", 1.0)
    ),
    "MaxPool": _max_pool,
    "Mul": lambda attr, a, b: a * b,
    "Relu": lambda attr, x: fn.relu(x),
    "Reshape": lambda attr, x, shape: x.reshape(_batched(x, shape)),
    "Sum": lambda attr, *terms: sum(terms[1:], terms[0]),
    "Transpose": lambda attr, x: x.permute(attr["perm"]),
    "Unsqueeze": _unsqueeze,
}


class Node(NamedTuple):
    """A node of a file in Python's own types, through which `torch.compile` sees."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: Attributes


def _plain(attributes: Any) -> Attributes:
    values = {a.name: helper.get_attribute_value(a) for a in attributes}
    return {n: v if isinstance(v, (int, float, bytes)) else list(v) for n, v in values.items()}


class OnnxNetwork:
    """A file's nodes up to the softmax, on PyTorch's tensors.

    data : the name of the input in the file; `shapes` are constants that `Reshape` takes.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any]) -> None:
        graph = load(name)[1].graph
        fixed = {t.name for t in graph.initializer} | set(parameters)
        (self.data,) = (i.name for i in graph.input if i.name not in fixed)
        self.shapes = {
            t.name: numpy_helper.to_array(t).tolist()
            for t in graph.initializer
            if t.name not in parameters and len(t.dims) == 1
        }
        self.nodes = [
            Node(item.op_type, tuple(item.input), item.output[0], _plain(item.attribute))
            for item in graph.node
            if item.op_type != "ConstantOfShape"
        ]

    def logits(self, given: Mapping[str, Any], norm: Callable[..., Any]) -> Any:
        """Of (data, parameters and statistics by their names in the file).

        `norm` is called with the names of a batch normalization's operands, their values, and its
        epsilon.
        """
        env: dict[str, Any] = {**self.shapes, **given}
        last: Any = None
        for kind, inputs, output, attr in self.nodes:
            if kind == "Softmax":
                break
            args = [env[i] for i in inputs if i in env]
            if kind == "BatchNormalization":
                last = norm(list(inputs), args, attr.get("epsilon", 1e-5))
            else:
                last = OPS[kind](attr, *args)
            env[output] = last
        return last.flatten(1)


class OnnxModule(torch.nn.Module):
    """A bundled network with trained parameters of a graph, for a loop of PyTorch's."""

    def __init__(self, name: str, graph: Any) -> None:
        super().__init__()
        self.names = {file: f"p{i}" for i, file in enumerate(graph.onnx_names.values())}
        for ours, file in graph.onnx_names.items():
            value = torch.tensor(graph.params[ours])
            if ours in graph.trainable:
                self.register_parameter(self.names[file], torch.nn.Parameter(value))
            else:
                self.register_buffer(self.names[file], value)
        self.network = OnnxNetwork(name, self.names)

    def forward(self, x: Any) -> Any:
        """Logits of a batch of images."""
        given = {file: getattr(self, own) for file, own in self.names.items()}
        return self.network.logits({**given, self.network.data: x}, self._norm)

    def _norm(self, names: list[str], args: list[Any], epsilon: float) -> Any:
        x, gamma, beta, mean, var = args
        return fn.batch_norm(x, mean, var, gamma, beta, self.training, 0.1, epsilon)
