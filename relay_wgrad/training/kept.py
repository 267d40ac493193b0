"""How a device keeps parameters and their state: some with their axes in another order.

A GPU's convolutions read OHWI.  A network's own OIHW would be turned in each step, and gradients
back; so weights are kept turned, and turned back for who reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm

from ..frontend import TrainingGraph
from ..transform import converted_params, converted_results
from .step import ADJOINT, converted

Axes = Mapping[str, tuple[int, ...]]


def kept_in_layout(
    module: tvm.IRModule, layout: str | None, graph: TrainingGraph, *, blocks: bool = False
) -> tuple[tvm.IRModule, Axes]:
    """`converted`, but that parameters come, and gradients go, as kernels want them.

    Returns the module and, by the names of such parameters, which axes of the network's they have.
    There are none where a parameter's gradient would not be like itself.
    """
    if layout in (None, "NCHW"):
        return module, {}
    made = converted(module, layout, blocks=blocks, params="convert")
    axes, results = converted_params(made[ADJOINT]), converted_results(made[ADJOINT])
    gradients = {(1, i): axes[name] for i, name in enumerate(graph.trainable) if name in axes}
    if results != gradients or len(gradients) != len(axes):
        return converted(module, layout, blocks=blocks), {}
    return made, axes


class Kept:
    """Tensors as they are kept, and as the network has them.

    axes : of `kept_in_layout`.  trainable : the names of parameters with state, in its order.
    """

    def __init__(self, axes: Axes, trainable: Sequence[str], device: Any) -> None:
        self._axes, self._trainable, self._device = axes, list(trainable), device

    def put(self, name: str, value: Any) -> Any:
        """A parameter's value, or one of its state's, on the device."""
        if name in self._axes:
            array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
            value = np.ascontiguousarray(array.transpose(self._axes[name]))
        return tvm.runtime.tensor(value, self._device)

    def read(self, name: str, tensor: Any) -> Any:
        """A tensor as the network has it: itself, or else a copy."""
        if name not in self._axes:
            return tensor
        array = tensor.numpy().transpose(np.argsort(self._axes[name]))
        return tvm.runtime.tensor(np.ascontiguousarray(array), self._device)

    def put_state(self, values: Sequence[Any]) -> list[Any]:
        """An optimizer's state on the device."""
        names = self._of_state(len(values))
        return [self.put(name, value) for name, value in zip(names, values, strict=True)]

    def read_state(self, tensors: Sequence[Any]) -> list[Any]:
        """An optimizer's state as for the network's parameters."""
        names = self._of_state(len(tensors))
        return [self.read(name, tensor) for name, tensor in zip(names, tensors, strict=True)]

    def _of_state(self, count: int) -> list[str]:
        """Whose each tensor is: scalars are nobody's, then there are some for each parameter."""
        each, scalars = divmod(count, len(self._trainable))
        return [""] * scalars + self._trainable * each
