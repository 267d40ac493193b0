"""Initial values of parameters, by the endings of their names."""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np
import tvm

from ..ast import Function, IRModule
from ..infer import infer_module
from ..types import TensorType

Array = np.ndarray[Any, Any]
# A typed module and the values of its parameters.
Workload = tuple[IRModule, dict[str, Any]]
# What the parameters of a normalization and biases begin with, by the end of the name.
_FILLED = {"bias": 0.0, "gamma": 1.0, "beta": 0.0, "mean": 0.0, "var": 1.0}


class Initializer:
    """Writes initial values into an array; subclasses say which into a weight."""

    def __call__(self, desc: str, arr: Array) -> None:
        """Fills `arr`; `desc` is the parameter's name.

        Raises ValueError for a name that says nothing.
        """
        for end, value in _FILLED.items():
            if desc.endswith(end):
                arr[:] = value
                return
        if not desc.endswith("weight"):
            ends = ", ".join(("weight", *_FILLED))
            raise ValueError(f"a parameter's name must end with {ends}, got {desc!r}")
        self.weight(desc, arr)

    def weight(self, name: str, arr: Array) -> None:
        """Fills a weight."""
        raise NotImplementedError


class Xavier(Initializer):
    """Uniform in ±sqrt(magnitude / factor).

    `factor` is the mean of fan-in and fan-out ("avg"), or one of them ("in", "out"); for a weight
    with "depthwise" in its name it is the kernel's size.
    """

    def __init__(
        self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3
    ) -> None:
        if rnd_type != "uniform":
            raise ValueError(f"Xavier: rnd_type must be 'uniform', got {rnd_type!r}")
        factors: dict[str, Callable[[float, float], float]] = {
            "avg": lambda i, o: (i + o) / 2,
            "in": lambda i, o: i,
            "out": lambda i, o: o,
        }
        if factor_type not in factors:
            raise ValueError(f"Xavier: factor_type must be avg, in or out, got {factor_type!r}")
        self._factor = factors[factor_type]
        self.magnitude = float(magnitude)

    def weight(self, name: str, arr: Array) -> None:
        """Fills a weight of two or more axes, the first two of which are (out, in)."""
        if arr.ndim < 2:
            raise ValueError(f"Xavier: {name} must have two axes or more, got shape {arr.shape}")
        area = prod(arr.shape[2:])
        factor = self._factor(arr.shape[1] * area, arr.shape[0] * area)
        if "depthwise" in name:
            factor = area
        scale = sqrt(self.magnitude / factor)
        # The global generator, which `create_workload` seeds: so values are those of Relay.
        arr[:] = np.random.uniform(-scale, scale, size=arr.shape)  # noqa: NPY002


class Constant(Initializer):
    """One over the number of elements."""

    def weight(self, name: str, arr: Array) -> None:
        """Fills a weight."""
        arr[:] = 1 / arr.size


def create_workload(
    net: Function, initializer: Initializer | None = None, seed: int = 0
) -> Workload:
    """(a module with the types of all nodes, values of all parameters but `data`, as TVM's arrays).

    Weights may be variables without types.  The values depend on the seed alone; the state of
    NumPy's global generator is left as it was.

    Raises
    ------
    TypeError, ValueError : for a violated type relation, and a parameter whose name says nothing.
    """
    mod = infer_module(IRModule.from_expr(net))
    fill = initializer or Xavier()
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    params: dict[str, Any] = {}
    try:
        for param in mod["main"].params:
            if param.name == "data":
                continue
            if not isinstance(param.checked_type, TensorType):
                raise TypeError(f"create_workload: %{param.name} must be a tensor")
            array = np.zeros(param.checked_type.concrete_shape, param.checked_type.dtype)
            fill(param.name, array)
            params[param.name] = tvm.runtime.tensor(array)
    finally:
        np.random.set_state(state)  # noqa: NPY002
    return mod, params
