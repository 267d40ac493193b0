"""Steps of a long short-term memory, one after the other, on the same input."""

from __future__ import annotations

from ..ast import Expr, Function
from ..expr import var
from ..op import tensor
from .init import Workload, create_workload
from .layers import closed, dense_add_bias


def lstm_cell(
    data: Expr, hidden: Expr, cell: Expr, num_hidden: int, name: str
) -> tuple[Expr, Expr]:
    """One step: the next hidden values, and the next of the cell."""
    gates = tensor.add(
        dense_add_bias(data, units=4 * num_hidden, name=f"{name}_i2h"),
        dense_add_bias(hidden, units=4 * num_hidden, name=f"{name}_h2h"),
    )
    parts = tensor.split(gates, 4, axis=1)
    enter, forget, leave = (tensor.sigmoid(parts[i]) for i in (0, 1, 3))
    cell = tensor.add(tensor.multiply(forget, cell), tensor.multiply(enter, tensor.tanh(parts[2])))
    return tensor.multiply(leave, tensor.tanh(cell)), cell


def get_net(
    iterations: int, num_hidden: int, batch_size: int = 1, dtype: str = "float32"
) -> Function:
    """The function of `data`, from states of zeros; each step has weights of its own."""
    shape = (batch_size, num_hidden)
    data = var("data", shape=shape, dtype=dtype)
    hidden: Expr = tensor.zeros(shape, dtype)
    cell: Expr = tensor.zeros(shape, dtype)
    for i in range(iterations):
        hidden, cell = lstm_cell(data, hidden, cell, num_hidden, f"lstm{i}")
    return closed(hidden)


def get_workload(
    iterations: int, num_hidden: int, batch_size: int = 1, dtype: str = "float32"
) -> Workload:
    """The module and its parameters."""
    return create_workload(get_net(iterations, num_hidden, batch_size, dtype))


__all__ = ["get_net", "get_workload", "lstm_cell"]
