"""How a device keeps parameters and their state: some with their axes in another order.

A GPU's convolutions read OHWI.  A network's own OIHW would be turned in each step, and gradients
back; so weights are kept turned, and turned back for who reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import tvm

from ..frontend import TrainingGraph
from ..transform import converted_params, converted_results
from ..transform.depth_forms import Wanted
from .step import ADJOINT, converted

Axes = Mapping[str, tuple[int, ...]]


def kept_in_layout(
    module: tvm.IRModule, layout: str | None, graph: TrainingGraph, *, blocks: Wanted = False
) -> tuple[tvm.IRModule, Axes]:
    """`converted`, but that parameters come, and gradients go, as kernels want them.

    Returns the module and, by the names of such parameters, which axes of the network's they have.
    There are none where a parameter's gradient, or what renews it, would not be like itself.
    """
    if layout in (None, "NCHW"):
        return module, {}
    made = converted(module, layout, blocks=blocks, params="convert")
    axes, results = converted_params(made[ADJOINT]), converted_results(made[ADJOINT])
    gradients = {(1, i): axes[name] for i, name in enumerate(graph.trainable) if name in axes}
    renewed = set(axes).intersection(graph.updates.values())
    if results != gradients or renewed:
        return converted(module, layout, blocks=blocks), {}
    return made, axes


class Kept:
    """Tensors as they are kept, and as the network has them.

    axes : of `kept_in_layout`.
    of_state : the parameter that each of the optimizer's tensors is of, "" for none.
    """

    def __init__(self, axes: Axes, of_state: Sequence[str], device: Any) -> None:
        self._axes, self._of_state, self._device = axes, of_state, device

    def put(self, name: str, value: Any, instead: Any = None) -> Any:
        """A parameter's value, or one of its state's, on the device.

        instead : the tensor whose place it takes, as it is kept: a captured step copies as many
            bytes there as the value has.  Raises ValueError for another shape or dtype.
        """
        if instead is not None:
            self._same(name, value, instead)
        if name in self._axes:
            array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
            value = np.ascontiguousarray(array.transpose(self._axes[name]))
        return tvm.runtime.tensor(value, self._device)

    def _same(self, name: str, value: Any, instead: Any) -> None:
        order = np.argsort(self._axes.get(name, range(len(instead.shape))))
        wanted = [int(instead.shape[axis]) for axis in order], str(instead.dtype)
        given = value if hasattr(value, "dtype") else np.asarray(value)
        found = [int(n) for n in given.shape], str(given.dtype)
        if found != wanted:
            raise ValueError(
                f"{name or 'the state'!r} is {wanted[1]}{wanted[0]}, got {found[1]}{found[0]}"
            )

    def read(self, name: str, tensor: Any) -> Any:
        """A tensor as the network has it: itself, or else a copy."""
        if name not in self._axes:
            return tensor
        array = tensor.numpy().transpose(np.argsort(self._axes[name]))
        return tvm.runtime.tensor(np.ascontiguousarray(array), self._device)

    def put_state(self, values: Sequence[Any], instead: Sequence[Any]) -> list[Any]:
        """An optimizer's state on the device, in place of another.  Raises as `put` does."""
        rows = zip(self._of_state, values, instead, strict=True)
        return [self.put(*row) for row in rows]

    def read_state(self, tensors: Sequence[Any]) -> list[Any]:
        """An optimizer's state as for the network's parameters."""
        pairs = zip(self._of_state, tensors, strict=True)
        return [self.read(name, tensor) for name, tensor in pairs]


class Tensors(MutableMapping[str, Any]):
    """Tensors by fixed names; what is put in goes to the device.

    Raises ValueError for a value of another shape or dtype than the tensor's.
    """

    def __init__(self, names: Iterable[str], values: Sequence[Any], kept: Kept) -> None:
        self._at = {name: index for index, name in enumerate(names)}
        self.all = values  # as the compiled function takes and gives them
        self._kept = kept

    def __getitem__(self, name: str) -> Any:
        return self._kept.read(name, self.all[self._at[name]])

    def __setitem__(self, name: str, value: Any) -> None:
        changed, at = list(self.all), self._at[name]
        changed[at] = self._kept.put(name, value, changed[at])
        self.all = changed

    def taken(self, values: Mapping[str, Any]) -> list[Any]:
        """Values for all of them, on the device, where they are put by setting `all`."""
        pairs = zip(self, self.all, strict=True)
        return [self._kept.put(name, values[name], tensor) for name, tensor in pairs]

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"{name!r}: a network's parameters stay")

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)
