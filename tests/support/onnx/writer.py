"""One description, two programs: an ONNX graph and the PyTorch function that it stands for.

A row of `op_cases` takes a `Writer`, writes nodes and returns a function of (the tensor
before, leaves by name); `Writer.then` runs it once, so that the next row knows shapes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

Leaves = dict[str, Any]
Step = Callable[[torch.Tensor, Leaves], torch.Tensor]
ELEM = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


class Writer:
    """The graph as far as it is written: `value` names the last tensor, `shape` is its."""

    def __init__(
        self, seed: int, *, dtype: str, opset: int, ties: bool = False, collide: bool = False,
        symbolic: bool = False, options: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.dtype, self.opset, self.ties, self.collide = dtype, opset, ties, collide
        self.options = {"bn": "train", "dropout": "off", **(options or {})}
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.leaves: dict[str, np.ndarray] = {}
        """Float initializers and constants, which may be parameters."""
        self.trained: set[str] = set()
        """Those that must be."""
        self.states: set[str] = set()
        self.draws = 0
        self.steps: list[Step] = []
        self.count = 0
        self.shape: tuple[int, ...] = (2, 4, 6, 5)
        self.given = self.shape
        self.symbolic = symbolic
        self.value = self.source = self.name("x")

    def name(self, stem: str = "t") -> str:
        """A name; where they collide, all are one identifier."""
        self.count += 1
        if self.collide:
            return "t" + "./:"[self.count % 3] * self.count + "t"
        return f"{stem}{self.count}"

    def draw(self, *shape: int, positive: bool = False) -> np.ndarray:
        """Numbers; halves with many that are equal where ties are wanted."""
        out = self.numbers.standard_normal(shape)
        if self.ties:
            out = self.numbers.integers(-4, 5, shape) / 2.0
        return (np.abs(out) + 0.5 if positive else out).astype(self.dtype)

    def stored(self, array: np.ndarray, initializer: bool | None = None) -> str:
        """A tensor of the file: an initializer, or what a Constant node makes."""
        name = self.name("c")
        if self.rng.random() < 0.5 if initializer is None else initializer:
            self.initializers[name] = array
        else:
            value = numpy_helper.from_array(np.asarray(array), name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=value))
        return name

    def ints(self, values: Sequence[int] | int) -> str:
        return self.stored(np.asarray(values, "int64"))

    def scalar(self, value: float) -> str:
        return self.stored(np.asarray(value, self.dtype))

    def weight(self, *shape: int, positive: bool = False, trained: bool = True) -> str:
        """A parameter: an initializer of one axis or more."""
        array = self.draw(*shape, positive=positive)
        name = self.stored(array, initializer=True)
        self.leaves[name] = array
        if trained:
            self.trained.add(name)
        return name

    def emit(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node, whose first result is the value."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        made = [self.name() for _ in range(outputs)]
        kept = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(op, list(inputs), made, name="node", **kept))
        self.value = made[0]
        return made if outputs > 1 else made[0]

    def then(self, step: Step) -> None:
        """Appends a row's PyTorch function."""
        with torch.no_grad():
            leaves: Leaves = {n: torch.tensor(a) for n, a in self.leaves.items()}
            leaves["draws"] = [None] * self.draws
            leaves["empty"] = True
            before = torch.ones(self.shape, dtype=getattr(torch, self.dtype))
            self.shape = tuple(step(before, leaves).shape)
        self.steps.append(step)

    def as_rank(self, rank: int) -> None:
        """A Reshape where the value has another number of axes."""
        if len(self.shape) == rank:
            return
        total = int(np.prod(self.shape))
        sizes = [1] * rank
        rest = total
        for i in range(rank - 1):
            sizes[i] = next(f for f in (2, 3, 4, 5, 1) if rest % f == 0)
            rest //= sizes[i]
        sizes[-1] = rest
        if rank == 0:
            raise LookupError("a scalar")
        self.emit("Reshape", self.value, self.ints(sizes))
        self.then(lambda x, p: x.reshape(sizes))

    def model(self) -> onnx.ModelProto:
        sizes: list[Any] = list(self.given)
        if self.symbolic:
            sizes[0] = "N"
        elem = ELEM[self.dtype]
        graph = helper.make_graph(
            self.nodes, "case", [helper.make_tensor_value_info(self.source, elem, sizes)],
            [helper.make_tensor_value_info(self.value, elem, None)],
            [numpy_helper.from_array(np.asarray(a), n) for n, a in self.initializers.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])

    def torch(self, x: torch.Tensor, leaves: Leaves) -> torch.Tensor:
        for step in self.steps:
            x = step(x, leaves)
        return x
