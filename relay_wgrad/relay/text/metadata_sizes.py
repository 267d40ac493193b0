"""Symbolic sizes in the metadata: TVM's nodes of variables and of integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from ..dims import SymDim, is_size_var, size_var

_BINARY = {
    f"tir.{kind.__name__}": kind
    for kind in (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)
}
_VARIABLES: dict[str, Callable[[str, str], Any]] = {"tir.SizeVar": size_var, "tir.Var": tirx.Var}
SIZE_KEYS = (*_VARIABLES, *_BINARY)
_DTYPES = ("int32", "int64")


def size_key(dim: SymDim) -> str:
    """The type key of a size's node; ValueError for one that has no text."""
    expr = dim.expr
    if isinstance(expr, tirx.Var):
        return "tir.SizeVar" if is_size_var(expr) else "tir.Var"
    key = f"tir.{type(expr).__name__}"
    if key not in _BINARY:
        raise ValueError(f"the size {dim} can't be written to metadata")
    return key


def read_size(key: str, attrs: dict[str, Any], value: Callable[[Any], Any]) -> SymDim:
    """The size of a node; `value` reads the node of an index.  Raises ValueError."""
    dtype = attrs.get("dtype")
    if dtype not in _DTYPES:
        raise ValueError(f"a size of dtype {str(dtype)[:40]}")
    if key in _VARIABLES:
        name = value(attrs.get("name"))
        if not isinstance(name, str):
            raise ValueError("a variable's name is a string")
        return SymDim(_VARIABLES[key](str(name), str(dtype)))
    a, b = (_operand(value(attrs.get(name)), str(dtype)) for name in "ab")
    # Not simplified: the text is to come back as it is.
    return SymDim(_BINARY[key](a, b))


def _operand(value: Any, dtype: str) -> Any:
    if isinstance(value, SymDim) and str(value.expr.ty.dtype) == dtype:
        return value.expr
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"a size is no sum or product with {str(value)[:40]}")
    return tirx.const(int(value), dtype)


class SizeNodes:
    """Writes sizes as nodes; `node` adds one and gives its index, `string` one of a string."""

    def __init__(self, node: Callable[..., int], string: Callable[[str], int]) -> None:
        self._node, self._string = node, string
        self._variables: dict[Any, int] = {}

    def index(self, dim: SymDim) -> int:
        """The index of a size's node.  Raises ValueError for a size without a text."""
        return self._expr(dim.expr)

    def _expr(self, expr: Any) -> int:
        dtype = str(expr.ty.dtype)
        if isinstance(expr, tirx.IntImm):
            attrs = {"dtype": dtype, "span": "0", "value": str(int(expr.value))}
            return self._node("IntImm", attrs=attrs)
        if isinstance(expr, tirx.Var) and expr in self._variables:
            return self._variables[expr]
        attrs = {"dtype": dtype, "span": "0"}
        index = self._node(size_key(SymDim(expr)), attrs=attrs)
        if isinstance(expr, tirx.Var):
            self._variables[expr] = index
            attrs["name"] = str(self._string(str(expr.name)))
            attrs["type_annotation"] = str(self._node("PrimType", attrs={"dtype": dtype}))
        else:
            for name in "ab":
                attrs[name] = str(self._expr(getattr(expr, name)))
        return index
