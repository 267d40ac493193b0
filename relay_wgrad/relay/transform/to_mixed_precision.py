"""Programs in mixed precision: casts around operators, by `mixed_precision.conversion`.

What stays in the program's own precision has operands and result of the types that it had.  So has
every function but the one that is converted, and every branch.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..ast import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    IRModule,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)
from ..infer import fail, span_text
from ..iterative_walks import order
from ..make import call
from ..records import lookup
from ..rewrite import with_children
from ..types import TensorType, TupleType, Type
from .context import option
from .mixed_precision import (
    MIXED_PRECISION_ALWAYS,
    MIXED_PRECISION_FOLLOW,
    MIXED_PRECISION_NEVER,
    conversion,
)
from .passes import Pass, per_function
from .user_hooks import is_kernel

# The largest number of each, and the smallest above zero.
RANGES = {
    "float16": (65504.0, 6e-8),
    "bfloat16": (3.38e38, 1e-38),
    "float32": (3.4e38, 1e-45),
    "float64": (1.79e308, 5e-324),
}
KEEP = "relay.ToMixedPrecision.keep_orig_output_dtype"
# Attributes that are the dtype of what a call makes.
_CREATE = frozenset({"zeros", "ones", "full"})


def ToMixedPrecision(  # noqa: N802
    mixed_precision_type: str = "float16", missing_op_mode: int = 1
) -> Pass:
    """The program with convolutions and products in another precision, and what can follow them.

    missing_op_mode : for operators without a conversion rule: 0 refuses them, 1
        warns, 2 says nothing; they follow their operands.

    The context's option `relay.ToMixedPrecision.keep_orig_output_dtype` keeps results' types.

    Raises ValueError for another dtype or mode, and where 0 refuses.
    """
    dtype = str(mixed_precision_type)
    if dtype not in RANGES:
        raise ValueError(f"ToMixedPrecision: dtype must be one of {', '.join(RANGES)}, got {dtype}")
    if missing_op_mode not in (0, 1, 2):
        raise ValueError(
            f"ToMixedPrecision: missing_op_mode must be 0, 1 or 2, got {missing_op_mode!r}"
        )

    def change(function: Function, mod: IRModule, context: Any) -> Function:
        called = {
            node.name
            for other in mod.functions.values()
            for node in post_order(other)
            if isinstance(node, GlobalVar)
        }
        name = next(name for name, other in mod.functions.items() if other is function)
        keep = bool(option(KEEP)) or name in called
        return _Mixed(function, dtype, missing_op_mode).converted(keep)

    return per_function("ToMixedPrecision", 0, change)


class _Mixed:
    """`new` has the nodes that stand for old ones, `types` their types."""

    def __init__(self, function: Function, dtype: str, missing: int) -> None:
        self.function = function
        self.dtype = dtype
        self.missing = missing
        self.new: dict[Expr, Expr] = {}
        self.types: dict[Expr, Type] = {}
        self.casts: dict[tuple[Expr, str], Expr] = {}
        self.lets = {n.var: n for n in post_order(function) if isinstance(n, Let)}

    def converted(self, keep: bool) -> Function:
        old = self.function
        for node in order(old.body, self._below):
            self.new[node], self.types[node] = self._converted(node)
        body = self._original(old.body) if keep else self.new[old.body]
        return replace(old, body=body, ret_type=old.ret_type if keep else None)

    def _below(self, node: Expr) -> tuple[Expr, ...]:
        """A variable is after its value, whose type it has; functions keep theirs."""
        if isinstance(node, Let):
            return (node.value, node.var, node.body)
        if isinstance(node, Var) and node in self.lets:
            value = self.lets[node].value
            return () if isinstance(value, Function) else (value,)
        return () if is_kernel(node) else children(node)

    def _converted(self, node: Expr) -> tuple[Expr, Type]:
        ty: Any = node.checked_type
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, Let):
            var = self.new[node.var]
            assert isinstance(var, Var)
            out: Expr = replace(node, var=var, value=self.new[node.value], body=self.new[node.body])
            return out, self.types[node.body]
        if isinstance(node, Var) and node in self.lets:
            got = self.types.get(self.lets[node].value, ty)
            return (node, ty) if got == ty else (Var(node.name, got, span=node.span), got)
        if isinstance(node, Tuple):
            fields = tuple(self.types[f] for f in node.fields)
            return with_children(node, self.new), TupleType(fields)
        if isinstance(node, TupleGetItem):
            source = self.types[node.tuple_value]
            assert isinstance(source, TupleType)
            return with_children(node, self.new), source.fields[node.index]
        if isinstance(node, If):
            parts = {child: self._original(child) for child in children(node)}
            return with_children(node, parts), ty
        if isinstance(node, Function) and not is_kernel(node):
            return with_children(node, {**self.new, node.body: self._original(node.body)}), ty
        return node, ty

    def _call(self, node: Call) -> tuple[Expr, Type]:
        if isinstance(node.op, Op):
            lower = self._lower(node, node.op.name)
            if lower is not None:
                return lower
        parts = {arg: self._original(arg) for arg in node.args}
        assert node.checked_type is not None
        return with_children(node, {**parts, node.op: self.new[node.op]}), node.checked_type

    def _lower(self, node: Call, name: str) -> tuple[Expr, Type] | None:
        """A call in the lower precision; None if it is not to be."""
        found = conversion(node, self.dtype)
        if found is None:
            self._missed(node, name)
            found = (MIXED_PRECISION_FOLLOW, self.dtype, self.dtype)
        category, sums, result = found
        if category == MIXED_PRECISION_NEVER or not self._in_range(node):
            return None
        if category != MIXED_PRECISION_ALWAYS and not all(map(self._follows, node.args)):
            return None
        attrs = self._attributes(node, name, sums)
        args, types = [], []
        for arg in node.args:
            types.append(_floats_as(self.types[arg], self.dtype))
            args.append(self._cast(self.new[arg], self.types[arg], types[-1]))
        try:
            ty = lookup(name).infer(types, attrs)
        except (TypeError, ValueError):  # it has no such operands
            return None
        out: Expr = replace(node, args=tuple(args))
        if attrs is not node.attrs:
            out = replace(call(name, *args, **attrs), span=node.span)
        if sums == result:
            return out, ty
        return self._cast(out, ty, _floats_as(ty, result)), _floats_as(ty, result)

    def _missed(self, node: Call, name: str) -> None:
        message = f"ToMixedPrecision: nothing says how {name} is converted{span_text(node)}"
        if self.missing == 0:
            fail(node, message)
        if self.missing == 1:
            warnings.warn(f"{message}; it follows its operands", stacklevel=2)

    def _follows(self, arg: Expr) -> bool:
        """Whether an operand is in the lower precision, or becomes so without a loss of time."""
        if isinstance(self.new[arg], (Var, Constant)):
            return True
        return _floats_as(self.types[arg], self.dtype) == self.types[arg]

    def _in_range(self, node: Call) -> bool:
        """Whether the numbers that a call has in itself are some in the lower precision too."""
        most, least = RANGES[self.dtype]
        numbers = [v for v in node.attrs.values() if isinstance(v, float)]
        arrays = [a.data for a in node.args if isinstance(a, Constant)]
        for data in (np.asarray(numbers, "float64"), *arrays):
            if data.dtype.kind in "biu":
                continue
            wide = np.abs(np.asarray(data, "float64"))
            wide = wide[np.isfinite(wide)]
            if (wide > most).any():
                return False
        return not any(0 < abs(v) < least for v in numbers)

    def _attributes(self, node: Call, name: str, dtype: str) -> Mapping[str, Any]:
        key = "dtype" if name in _CREATE else "out_dtype"
        attrs = lookup(name).read(node.attrs)
        if key not in attrs or str(attrs[key] or dtype) not in RANGES:
            return node.attrs
        return {**attrs, key: dtype}

    # ---- casts -----------------------------------------------------------------------------------

    def _original(self, node: Expr) -> Expr:
        """What stands for a node, in the type that this has."""
        if node not in self.types or node.checked_type is None:
            return self.new.get(node, node)
        return self._cast(self.new[node], self.types[node], node.checked_type)

    def _cast(self, node: Expr, have: Type, want: Type) -> Expr:
        """A value in another type; made once, and a cast back is the value itself."""
        if have == want:
            return node
        if isinstance(have, TensorType):
            assert isinstance(want, TensorType)
            if have.dtype == want.dtype:  # sizes of which less is known
                return node
            if (node, want.dtype) not in self.casts:
                made = call("cast", node, dtype=want.dtype)
                self.casts[node, want.dtype] = made
                self.casts[made, have.dtype] = node
            return self.casts[node, want.dtype]
        if not isinstance(have, TupleType):
            return node
        assert isinstance(want, TupleType)
        fields = (
            node.fields
            if isinstance(node, Tuple)
            else [TupleGetItem(node, i) for i in range(len(have.fields))]
        )
        made_fields = map(self._cast, fields, have.fields, want.fields)
        return Tuple(tuple(made_fields))


def _floats_as(ty: Type, dtype: str) -> Type:
    """The type with this dtype for all floats."""
    if isinstance(ty, TensorType):
        return TensorType(ty.shape, dtype) if ty.dtype in RANGES else ty
    if isinstance(ty, TupleType):
        return TupleType(tuple(_floats_as(field, dtype) for field in ty.fields))
    return ty
