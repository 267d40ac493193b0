"""ONNX training graphs, written as ONNX Runtime's gradient builder writes them, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as fn
from onnx import TensorProto, helper, numpy_helper

MS = "com.microsoft"
TYPES = {"float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT,
         "int64": TensorProto.INT64, "bool": TensorProto.BOOL}  # fmt: skip
_EPSILON, _MOMENTUM = 2.0**-10, 0.75  # the same as float32, which attributes are


def ms(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain=MS, **attributes)


def plain(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attributes)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, np.ndarray],
    outputs: list[str],
    held: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "step",
        [helper.make_tensor_value_info(n, TYPES[str(a.dtype)], a.shape)
         for n, a in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in (held or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=opsets)


class Tape:
    """A network as it is written down: its forward nodes, the gradient's, and PyTorch's values.

    Each layer takes and gives names of tensors.  `finish` writes the gradient: the nodes of each
    layer, last one first, and sums where a tensor is read several times.  `dtype`: PyTorch's.
    """

    def __init__(
        self, images: Sequence[int], classes: int = 5, seed: int = 0, dtype: Any = torch.float64
    ) -> None:
        self.dtype = dtype
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.held = {"one": np.asarray(1.0), "zero": np.array([0])}
        self.inputs = {"x": self.rng.standard_normal(images),
                       "y": np.arange(images[0]) % classes}  # fmt: skip
        self.values = {
            "x": torch.tensor(self.inputs["x"], dtype=dtype), "y": torch.tensor(self.inputs["y"]),
        }  # fmt: skip
        self.trained: list[str] = []
        self.classes = classes
        self._backward: list[tuple[str, Callable[[str], dict[str, str]]]] = []
        self._count = 0

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.values[name].shape)

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _parameter(self, kind: str, value: np.ndarray) -> str:
        name = self._name(kind)
        self.inputs[name] = value
        self.values[name] = torch.tensor(value, dtype=self.dtype, requires_grad=True)
        self.trained.append(name)
        return name

    def _made(self, name: str, value: Any, backward: Callable[[str], dict[str, str]]) -> str:
        self.values[name] = value
        self._backward.append((name, backward))
        return name

    def conv(
        self, x: str, k: int, size: int = 3, *, stride: int = 1, dilation: int = 1, groups: int = 1,
        bias: bool = False,
    ) -> str:  # fmt: skip
        """Padded so that stride 1 keeps the size."""
        c, pad = self.shape(x)[1], dilation * (size // 2)
        scale = (c // groups * size * size) ** -0.5
        w = self._parameter("w", self.rng.standard_normal((k, c // groups, size, size)) * scale)
        b = [self._parameter("b", self.rng.standard_normal(k) / 4)] if bias else []
        given = {"strides": [stride] * 2, "pads": [pad] * 4, "dilations": [dilation] * 2,
                 "group": groups, "kernel_shape": [size] * 2}  # fmt: skip
        y = self._name("c")
        self.nodes.append(plain("Conv", [x, w, *b], [y], **given))
        held = self.values[b[0]] if b else None
        value = fn.conv2d(self.values[x], self.values[w], held, stride, pad, dilation, groups)

        def backward(dy: str) -> dict[str, str]:
            dx = "" if x == "x" else self._name("dx")
            grads = [dx, *(f"{p}_grad" for p in (w, *b))]
            self.nodes.append(ms("ConvGrad", [dy, x, w], grads, **given))
            return {x: dx} if dx else {}

        return self._made(y, value, backward)

    def norm(self, x: str) -> str:
        """By the batch's statistics."""
        c = self.shape(x)[1]
        g = self._parameter("g", 1 + self.rng.standard_normal(c) / 4)
        b = self._parameter("b", self.rng.standard_normal(c) / 4)
        y = self._name("n")
        self.held |= {f"{y}_m": np.zeros(c), f"{y}_v": np.ones(c)}
        results = [y, *(f"{y}_{end}" for end in ("m2", "v2", "mean", "rstd"))]
        self.nodes.append(ms("BatchNormInternal", [x, g, b, f"{y}_m", f"{y}_v"], results,
                             epsilon=_EPSILON, momentum=_MOMENTUM))  # fmt: skip
        value = fn.batch_norm(
            self.values[x], None, None, self.values[g], self.values[b], True, eps=_EPSILON
        )

        def backward(dy: str) -> dict[str, str]:
            dx = self._name("dx")
            self.nodes.append(ms("BatchNormalizationGrad", [dy, x, g, *results[3:]],
                                 [dx, f"{g}_grad", f"{b}_grad"], epsilon=_EPSILON))  # fmt: skip
            return {x: dx}

        return self._made(y, value, backward)

    def relu(self, x: str) -> str:
        y = self._name("r")
        self.nodes.append(plain("Relu", [x], [y]))

        def backward(dy: str) -> dict[str, str]:
            dx = self._name("dx")
            self.nodes.append(ms("ReluGrad", [dy, y], [dx]))
            return {x: dx}

        return self._made(y, fn.relu(self.values[x]), backward)

    def pool(self, x: str, kind: str, size: Sequence[int], stride: int = 1, pad: int = 0) -> str:
        """`kind`: Max or Average."""
        given = {"kernel_shape": [*size], "strides": [stride] * 2, "pads": [pad] * 4}
        y, value = self._name("p"), self.values[x]
        results = [y, f"{y}_places"] if kind == "Max" else [y]
        self.nodes.append(plain(f"{kind}Pool", [x], results, **given))
        if kind == "Max":
            made = fn.max_pool2d(value, [*size], stride, pad)
        else:
            made = fn.avg_pool2d(value, [*size], stride, pad, count_include_pad=False)

        def backward(dy: str) -> dict[str, str]:
            dx = self._name("dx")
            self.nodes.append(ms(f"{kind}PoolGrad", [dy, *results[1:]], [dx], **given))
            return {x: dx}

        return self._made(y, made, backward)

    def add(self, a: str, b: str) -> str:
        y = self._name("s")
        self.nodes.append(plain("Add", [a, b], [y]))
        return self._made(y, self.values[a] + self.values[b], lambda dy: {a: dy, b: dy})

    def concat(self, *parts: str) -> str:
        """Along the channels."""
        y, sizes = self._name("j"), self._name("sizes")
        self.held[sizes] = np.array([self.shape(part)[1] for part in parts])
        self.nodes.append(plain("Concat", [*parts], [y], axis=1))

        def backward(dy: str) -> dict[str, str]:
            grads = [self._name("dx") for _ in parts]
            self.nodes.append(plain("Split", [dy, sizes], grads, axis=1))
            return dict(zip(parts, grads, strict=True))

        return self._made(y, torch.cat([self.values[part] for part in parts], 1), backward)

    def finish(self, x: str) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """(the training graph: loss and gradients of means over the image, a layer and
        cross-entropy; what PyTorch's autograd has for each of its outputs)."""
        x = self.pool(x, "Average", self.shape(x)[2:])
        c = self.shape(x)[1]
        w = self._parameter("w", self.rng.standard_normal((self.classes, c)) * c**-0.5)
        b = self._parameter("b", self.rng.standard_normal(self.classes) / 4)
        self.nodes += [
            plain("Flatten", [x], ["f"]),
            plain("Gemm", ["f", w, b], ["z"], transB=1),
            plain("SoftmaxCrossEntropyLoss", ["z", "y"], ["loss", "logs"], reduction="mean"),
            ms("SoftmaxCrossEntropyLossGrad", ["one", "logs", "y"], ["dz"], reduction="mean"),
            plain("Gemm", ["dz", w], ["df"]),
            plain("Gemm", ["dz", "f"], [f"{w}_grad"], transA=1),
            plain("ReduceSum", ["dz", "zero"], [f"{b}_grad"], keepdims=0),
            plain("Shape", [x], ["x_shape"]),
            plain("Reshape", ["df", "x_shape"], ["dp"]),
        ]
        z = fn.linear(self.values[x].flatten(1), self.values[w], self.values[b])
        loss = fn.cross_entropy(z, self.values["y"])
        found: dict[str, list[str]] = {x: ["dp"]}
        for name, backward in reversed(self._backward):
            terms = found[name]
            dy = terms[0] if len(terms) == 1 else self._name("dy")
            if len(terms) > 1:
                self.nodes.append(plain("Sum", terms, [dy]))
            for operand, grad in backward(dy).items():
                found.setdefault(operand, []).append(grad)
        grads = torch.autograd.grad(loss, [self.values[p] for p in self.trained])
        outputs = ["loss", *(f"{p}_grad" for p in self.trained)]
        wanted = dict(zip(outputs, (loss.detach(), *grads), strict=True))
        model = model_of(self.nodes, self.inputs, outputs, self.held)
        return model, {n: v.numpy() for n, v in wanted.items()}
