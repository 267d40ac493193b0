"""PyTorch's open batch, a dimension of `torch.export`, as the variable of a graph.

Its sizes are expressions of SymPy with a symbol for each dimension that was exported as dynamic.
One symbol is taken: that of the inputs' first axis.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from importlib import import_module
from typing import Any

from tvm import tirx

from ..sizes import NAME, Limits, simplified, variable

FIXED = "an example, or an export, of a fixed batch makes it a number"
_IMAGES = 5
_MANY = 1 << 40  # images: no bound, as torch.export has it
_REMEDY = "export it with a number there"
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": tirx.floordiv, "CleanDiv": tirx.floordiv, "Mod": tirx.floormod,
    "PythonMod": tirx.floormod,
}  # fmt: skip
_OF_MANY: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "Max": tirx.max, "Min": tirx.min,
}  # fmt: skip


def opened(torch: Any, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], Any, tuple[Any, ...]]:
    """(example inputs, which of their axes are the batch, inputs of one image), as
    `torch.export.export` takes them.

    The batch is the first tensor's first axis, and that of all tensors that have as many there.
    They get another number of images, of which, or of parts, torch.export makes no numbers as it
    does of 0 and 1.
    """
    shaped = [x for x in inputs if isinstance(x, torch.Tensor) and x.ndim]
    if not shaped:
        raise ValueError(f"batch={NAME!r}: the module's first input has no axis for the batch")
    count = shaped[0].shape[0]
    batched = [isinstance(x, torch.Tensor) and x.ndim > 0 and x.shape[0] == count for x in inputs]
    one = [x[:1].detach() if b else x for x, b in zip(inputs, batched, strict=True)]
    inputs = [torch.cat([x] * _IMAGES) if b else x for x, b in zip(one, batched, strict=True)]
    axes = torch.export.ShapesCollection()
    dim = torch.export.Dim(NAME)
    for x, b in zip(inputs, batched, strict=True):
        if b:
            axes[x] = {0: dim}
    return tuple(inputs), axes, tuple(one)


@contextlib.contextmanager
def even_parts(torch: Any) -> Iterator[None]:
    """Within: `chunk` and `split` into parts of one size become `split_with_sizes`.

    Of a symbolic size `torch.export` refuses the former: it counts the parts by a division that it
    does not simplify.
    """
    chunks = (torch.chunk, torch.Tensor.chunk)
    names = {"input": "x", "tensor": "x", "chunks": "by", "split_size": "by",
             "split_size_or_sections": "by", "dim": "dim"}  # fmt: skip

    def sizes(func: Any, x: Any, by: Any, dim: int = 0) -> list[Any]:
        """The parts' sizes; [] where they are none, or not of one size whatever the batch."""
        if not x.ndim or isinstance(by, (list, tuple)) or (isinstance(by, int) and by < 1):
            return []
        whole = x.shape[dim]
        if func not in chunks:
            return [by] * _times(whole, by)
        return [whole // by] * by if isinstance(by, int) and _expr(whole) % by == 0 else []

    class EvenParts(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in (*chunks, torch.split, torch.Tensor.split):
                given = dict(zip(("x", "by", "dim"), args, strict=False))
                given.update((names[key], value) for key, value in (kwargs or {}).items())
                if found := sizes(func, **given):
                    return torch.split_with_sizes(given["x"], found, given.get("dim", 0))
            return func(*args, **(kwargs or {}))

    with EvenParts():
        yield


def _expr(size: Any) -> Any:
    return size.node.expr if is_symbolic(size) else import_module("sympy").Integer(size)


def _times(whole: Any, part: Any) -> int:
    """How many parts a size has, 0 where that is no number."""
    ratio = _expr(whole) / _expr(part)
    return int(ratio) if ratio.is_Integer else 0


def violated(error: Exception) -> str:
    """What `torch.export` says of a program that is for some batches only, in one line."""
    first, *rest = str(error).strip().splitlines()
    reason = next((line.strip(" -") for line in rest if line.strip().startswith("-")), first)
    if "specialized it to be a constant" in reason:
        reason = (
            "it is for one number of images, as a loop over them and `len(x)` are, for which"
            " `x.shape[0]` stays open"
        )
    return f"{reason}; {FIXED}"


def is_symbolic(value: Any) -> bool:
    """Whether what a node gives is no tensor but a number of `torch.export`'s."""
    return hasattr(value, "node") and hasattr(value.node, "expr")


class Batch:
    """The open batch of a program.

    ranges : of its symbols; inputs : (name, shape) of each tensor that it is given.
    variable : of the function; None where the program has no open size.
    """

    def __init__(self, ranges: Mapping[Any, Any], inputs: Sequence[tuple[str, Any]]) -> None:
        self.variable: Any = None
        self.limits = Limits()
        found = [(name, shape, _symbol(name, shape)) for name, shape in inputs]
        open_ones = [(name, symbol) for name, _, symbol in found if symbol is not None]
        self._symbol = open_ones[0][1] if open_ones else None
        for name, symbol in open_ones:
            if symbol != self._symbol:
                raise ValueError(
                    f"argument {name!r} has a batch {symbol} beside {self._symbol}: only one size"
                    " may be open: export them with the same Dim"
                )
        if open_ones:
            self.variable = variable()
            known = ranges.get(self._symbol)
            if known is not None:
                least, most = max(_number(known.lower) or 1, 1), _number(known.upper)
                self.limits = Limits(least, most, "the range that it was exported with")

    def shape(self, sizes: Sequence[Any]) -> tuple[Any, ...]:
        """Sizes in numbers and expressions of the variable.

        Raises ValueError for what is none of the batch.
        """
        return tuple(self.size(size) for size in sizes)

    def size(self, value: Any) -> Any:
        """One of them."""
        return value if isinstance(value, int) else simplified(self._made(value.node.expr))

    def _made(self, expr: Any) -> Any:
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol and expr == self._symbol:
            return self.variable
        if expr.is_Pow and expr.exp.is_Integer and int(expr.exp) > 0:
            return math.prod([self._made(expr.base)] * int(expr.exp))
        operands = [self._made(e) for e in expr.args] if expr.args else []
        if expr.is_Mul:
            return math.prod(operands)
        many = _OF_MANY.get(type(expr).__name__)
        if many is not None:
            return reduce(many, operands)
        function = _FUNCTIONS.get(type(expr).__name__)
        if function is None:
            raise ValueError(f"a size of {expr} is not supported: {_REMEDY}")
        return function(*operands)


def _symbol(name: str, shape: Sequence[Any]) -> Any:
    """That of a tensor's first axis, None where it has a number.

    Raises ValueError for another axis that is open, and for an expression.
    """
    for axis, size in enumerate(shape):
        if not isinstance(size, int) and (axis or not size.node.expr.is_Symbol):
            raise ValueError(
                f"argument {name!r} has symbolic sizes {list(map(str, shape))}: only a batch, its"
                f" first axis, may be, and as a plain size; {_REMEDY}"
            )
    first = shape[0] if shape else 1
    return None if isinstance(first, int) else first.node.expr


def _number(bound: Any) -> int | None:
    """An end of a range; None for infinity."""
    is_number = isinstance(bound, int) or getattr(bound, "is_Integer", False)
    return int(bound) if is_number and int(bound) < _MANY else None
