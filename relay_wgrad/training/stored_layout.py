"""How a device keeps parameters and their state: some with their axes in another order.

A GPU's convolutions read OHWI.  A network's own OIHW would be turned in each step, and gradients
back; so weights are kept turned, and turned back for who reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..frontend import TrainingGraph
from ..graph.rebuild import substitute
from ..graph.walk import bindings_of
from ..transform import converted_params, converted_results
from ..transform.depth_forms import Wanted
from .step import ADJOINT, converted

Axes = Mapping[str, tuple[int, ...]]


def kept_in_layout(
    module: tvm.IRModule,
    layout: str | None,
    graph: TrainingGraph,
    *,
    blocks: Wanted = False,
    axes: Axes | None = None,
) -> tuple[tvm.IRModule, Axes]:
    """`converted`, but that parameters come, and gradients go, as kernels want them.

    Returns the module and, by the names of such parameters, which axes of the network's they have.
    There are none where a parameter's gradient, or what renews it, would not be like itself.

    axes : that parameters have already, as of another number of images: so they come and their
        gradients go, and are turned in the step where this one would have them otherwise.
    """
    made, found = _in_layout(module, layout, graph, blocks)
    if axes is None or axes == found:
        return made, found
    return converted(_with_axes(module, graph, axes), layout, blocks=blocks), axes


def _in_layout(
    module: tvm.IRModule, layout: str | None, graph: TrainingGraph, blocks: Wanted
) -> tuple[tvm.IRModule, Axes]:
    if layout in (None, "NCHW"):
        return module, {}
    made = converted(module, layout, blocks=blocks, params="convert")
    axes, results = converted_params(made[ADJOINT]), converted_results(made[ADJOINT])
    gradients = {(1, i): axes[name] for i, name in enumerate(graph.trainable) if name in axes}
    renewed = set(axes).intersection(graph.updates.values())
    if results != gradients or renewed:
        return converted(module, layout, blocks=blocks), {}
    return made, axes


def _with_axes(module: tvm.IRModule, graph: TrainingGraph, axes: Axes) -> tvm.IRModule:
    """The step with parameters in other axes; each is turned on its way in, its gradient back."""
    func = module[ADJOINT]
    params = [relax.Var(v.name, _permuted_type(v.ty, axes.get(v.name))) for v in func.params]
    values: dict[relax.Var, Any] = {}
    bb = relax.BlockBuilder()
    with bb.function(ADJOINT, params):
        with bb.dataflow():
            for old, new in zip(func.params, params, strict=True):
                values[old] = new
                if old.name in axes:
                    back = [int(a) for a in np.argsort(axes[old.name])]
                    values[old] = bb.emit(relax.op.permute_dims(new, back))
            for binding in bindings_of(func):
                value = substitute(binding.value, values)
                values[binding.var] = bb.emit(value, name_hint=binding.var.name)
            outputs, gradients = (
                [substitute(item, values) for item in part.fields] for part in func.body.body.fields
            )
            for i, name in enumerate(graph.trainable):
                if name in axes:
                    gradients[i] = bb.emit(relax.op.permute_dims(gradients[i], list(axes[name])))
            outputs, gradients = (
                [bb.emit_output(item) for item in part] for part in (outputs, gradients)
            )
        bb.emit_func_output(relax.Tuple([relax.Tuple(outputs), relax.Tuple(gradients)]))
    out = module.clone()
    del out[ADJOINT]  # its GlobalVar has the old type
    out[ADJOINT] = bb.get()[ADJOINT].with_attrs(dict(func.attrs.items()))
    return out


def _permuted_type(ty: relax.TensorType, axes: Sequence[int] | None) -> relax.TensorType:
    return ty if axes is None else relax.TensorType([ty.shape.values[a] for a in axes], ty.dtype)


class StoredLayout:
    """Tensors as they are kept, and as the network has them.

    axes : of `kept_in_layout`.
    of_state : the parameter that each of the optimizer's tensors is of, "" for none.
    """

    def __init__(self, axes: Axes, of_state: Sequence[str], device: Any) -> None:
        self.axes: Axes = axes
        self._of_state, self._device = of_state, device

    def put(self, name: str, value: Any, instead: Any = None) -> Any:
        """A parameter's value, or one of its state's, on the device.

        instead : the tensor whose place it takes, as it is kept: a captured step copies as many
            bytes there as the value has.  Raises ValueError for another shape or dtype.
        """
        if instead is not None:
            self._same(name, value, instead)
        if name in self.axes:
            array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
            value = np.ascontiguousarray(array.transpose(self.axes[name]))
        return tvm.runtime.tensor(value, self._device)

    def turned(
        self, axes: Axes, names: Iterable[str], values: Sequence[Any], state: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Parameters by name and an optimizer's state in these axes, as they are kept from now on.

        Raises ValueError where they are not as the network has them so far.
        """
        if self.axes:
            raise ValueError(f"parameters have axes {dict(self.axes)}, and cannot get {dict(axes)}")
        new = StoredLayout(axes, self._of_state, self._device)

        def of(name: str, tensor: Any) -> Any:
            return new.put(name, tensor) if name in axes else tensor

        pairs = (zip(names, values, strict=True), zip(self._of_state, state, strict=True))
        turned, turned_state = ([of(*pair) for pair in some] for some in pairs)
        self.axes = axes  # where there was memory for all of them
        return turned, turned_state

    def _same(self, name: str, value: Any, instead: Any) -> None:
        order = np.argsort(self.axes.get(name, range(len(instead.shape))))
        wanted = [int(instead.shape[axis]) for axis in order], str(instead.dtype)
        given = value if hasattr(value, "dtype") else np.asarray(value)
        found = [int(n) for n in given.shape], str(given.dtype)
        if found != wanted:
            raise ValueError(
                f"{name or 'the state'!r} is {wanted[1]}{wanted[0]}, got {found[1]}{found[0]}"
            )

    def read(self, name: str, tensor: Any) -> Any:
        """A tensor as the network has it: itself, or else a copy."""
        if name not in self.axes:
            return tensor
        array = tensor.numpy().transpose(np.argsort(self.axes[name]))
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

    def __init__(self, names: Iterable[str], values: Sequence[Any], kept: StoredLayout) -> None:
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
