"""Operands and calls for the records of `ops.elementwise`: every front end's cases are of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from relay_wgrad.ops.elementwise import ALL, RECORDS, Elementwise

Tensor = torch.Tensor
# Whose result is exact where the operand is a multiple of one half.
EXACT = ("abs", "add", "multiply", "negative", "nn.relu", "subtract")


def within(record: Elementwise, x: Any, tanh: Callable[[Any], Any] = torch.tanh) -> Any:
    """Numbers between which a record is asked, smoothly made of any; `tanh` of x's library."""
    low = record.domain[0]
    if record.domain == ALL or low < -1:
        return x
    if low > 0:
        return abs(x) + (0.5 if low < 1 else low + 0.5)
    return 0.9 * tanh(x)


def by_pytorch(overload: str) -> Callable[..., Tensor]:
    """ATen's operator as a function."""
    name, _, kind = overload.partition(".")
    found: Callable[..., Tensor] = getattr(getattr(torch.ops.aten, name), kind)
    return found


def _case(record: Elementwise, overload: str) -> Callable[[Tensor], Tensor]:
    function, kind = by_pytorch(overload), overload.partition(".")[2]

    def other(y: Tensor) -> Any:
        if "Scalar" in kind and kind != "Scalar_Tensor":
            return 1.5
        return torch.sin(torch.arange(y.numel(), dtype=y.dtype) + 1).reshape(y.shape) + 1.2

    def of_truths(y: Tensor) -> Tensor:
        made = function(*(y > 0, y < 0.5)[: record.operands])
        return torch.where(made, y, 2 * y)

    def call(y: Tensor) -> Tensor:
        if record.takes == "b":
            return of_truths(y)
        if "b" in record.takes and "f" not in record.takes:
            bits = function(*((y * 5).long(), (y * 3).long())[: record.operands])
            return of_truths(y) + y * bits
        operands = [within(record, y)]
        if record.operands == 2:
            operands.append(other(y))
            if overload == "pow.Scalar":  # of a number to a tensor
                operands = [1.5, operands[0]]
            elif record.name == "power":
                operands[0] = operands[0].abs() + 0.5
        made = function(*operands)
        if record.gives == "bool":
            return torch.where(made, y, 2 * y)
        return made if record.slope == "smooth" else y * made

    return call


BY_PYTORCH: dict[str, Callable[[Tensor], Tensor]] = {
    overload: _case(record, overload)
    for record in RECORDS.values() for overload in record.torch.split()
}  # fmt: skip
"""ATen overload -> a function of images that it is tried by."""
