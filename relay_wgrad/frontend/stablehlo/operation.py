"""One operation of a program as its builder sees it, and what builders share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax

from ..context import Context
from .reader import integers
from .tensors import Shape, Tensor, of_expr

op = relax.op


@dataclass
class Step:
    """One operation: its operands, what it says of itself, the type of each result."""

    name: str
    node: str
    operation: Any
    operands: list[Tensor]
    results: list[tuple[Shape, str]]

    @property
    def shape(self) -> Shape:
        """The first result's."""
        return self.results[0][0]

    @property
    def dtype(self) -> str:
        """The first result's."""
        return self.results[0][1]

    def has(self, name: str) -> bool:
        return name in self.operation.attributes

    def attribute(self, name: str) -> Any:
        """Raises ValueError where it is missing."""
        if not self.has(name):
            raise ValueError(f"attribute {name!r} is missing")
        return self.operation.attributes[name]

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Numbers in order; the default where they are left out."""
        if default is not None and not self.has(name):
            return list(default)
        return integers(self.attribute(name))


Builder = Callable[[Context, Step], Tensor | Sequence[Tensor]]


def emitted_as_is(ctx: Context, made: Any) -> Tensor:
    """An expression of its own shape, emitted."""
    return of_expr(ctx.emit(made))


def cast(ctx: Context, x: Any, dtype: str) -> Any:
    return x if str(x.ty.dtype) == dtype else ctx.emit(op.astype(x, dtype))
