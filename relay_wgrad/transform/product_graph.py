"""Matrix products in a function: what is before and after each that becomes part of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax
from tvm_ffi import structural_equal

from ..dtypes import HALVES
from ..graph.def_use import Graph
from ..graph.walk import Block
from ..ir import op_name
from ..layout_rules.in_layout import sizes_of
from ..problem import DTYPE_BYTES, ConvKind, ConvProblem
from .raising.index import Barrier

_COMPARISONS = ("relax.less", "relax.less_equal")


@dataclass(frozen=True)
class Operand:
    """A tensor, or its transpose, cast to a dtype if one is given."""

    tensor: relax.Expr
    turned: bool = False
    cast: str | None = None


@dataclass
class Product:
    """A product, and the bindings after it that become part of it.

    `last` : the last of these, `absorbed` : the others; `follow` : calls of one element each, with
    the variable before, that are written with the convolution's axes; `turned` : whether what
    `last` has is the transpose; `cast` : the dtype that it is cast to, if it is.
    """

    a: Operand
    b: Operand
    dtype: str
    last: relax.Var
    turned: bool = False
    cast: str | None = None
    follow: list[tuple[relax.Call, relax.Var]] = field(default_factory=list)
    absorbed: set[relax.Var] = field(default_factory=set)

    def normalize(self) -> None:
        """Without transposes but one that makes it an fprop or a wgrad, if there is one."""
        both = self.a.turned and self.b.turned
        if both or (self.turned and self.a.turned != self.b.turned):
            self.a, self.b = (replace(x, turned=not x.turned) for x in (self.b, self.a))
            self.turned = not self.turned

    def exchange(self) -> None:
        """An fprop as the transpose of that of its operands exchanged, (x wᵀ)ᵀ = w xᵀ."""
        self.a, self.b = replace(self.b, turned=False), replace(self.a, turned=True)
        self.turned = not self.turned

    @property
    def kind(self) -> ConvKind:
        if self.a.turned:
            return ConvKind.WGRAD
        return ConvKind.FPROP if self.b.turned else ConvKind.DGRAD

    @property
    def shape(self) -> list[Any]:
        """Of the result, without the transpose."""
        a, b = sizes(self.a.tensor), sizes(self.b.tensor)
        if self.kind is ConvKind.WGRAD:
            return [a[-1], b[-1]]
        return [*a[:-1], b[0] if self.b.turned else b[-1]]

    def problem(self) -> ConvProblem:
        """The convolution.  Barrier where its sizes are none."""
        a, b, dtype = sizes(self.a.tensor), sizes(self.b.tensor), self.operands
        n, channels = math.prod(a[:-1], start=1), a[-1]
        c, k = {
            ConvKind.FPROP: (channels, b[0]),
            ConvKind.DGRAD: (b[-1], channels),
            ConvKind.WGRAD: (b[-1], channels),
        }[self.kind]
        made = ConvProblem(
            self.kind, n, c, 1, 1, k, 1, 1, data_layout="NHWC", kernel_layout="OHWI",
            grad_layout="NHWC", data_dtype=dtype, weight_dtype=dtype, grad_dtype=dtype,
        )  # fmt: skip
        dtypes: Any = {f"{made.roles[2]}_dtype": self.dtype}
        try:
            return replace(made, **dtypes).check()
        except ValueError as error:
            raise Barrier(str(error)) from None

    @property
    def operands(self) -> str:
        """The operands' dtype."""
        return self.a.cast or str(self.a.tensor.ty.dtype)


class Products:
    """The products of a block.  What is looked through and what follows stands in it, so all is in
    scope.

    exchange : whether an fprop is wanted with its operands exchanged.
    """

    def __init__(
        self, graph: Graph, block: Block,
        exchange: Callable[[ConvProblem], bool] = lambda problem: False,
    ) -> None:  # fmt: skip
        self.graph, self.exchange = graph, exchange
        self.value = {b.var: graph.value[b.var] for b in block.bindings if b.var in graph.value}
        self.claimed: set[relax.Var] = set()  # what products have become part of

    def claim(self, product: Product) -> None:
        """What is a product's is no other's from now on."""
        self.claimed |= {*product.absorbed, product.last}

    def read(self, var: relax.Var, call: relax.Call) -> Product:
        """A product with what comes before and after it; Barrier with the reason where it stays."""
        a, b = call.args
        shapes = [sizes_of(x.ty) for x in (a, b)]
        dtypes = [str(x.ty.dtype) for x in (a, b, call)]
        if any(shape is None for shape in shapes):
            raise Barrier(f"unknown shapes: {a.ty} and {b.ty}")
        if any(dtype not in DTYPE_BYTES for dtype in dtypes) or dtypes[0] != dtypes[1]:
            raise Barrier(f"dtypes {dtypes[0]} and {dtypes[1]} to {dtypes[2]}")
        axes = [len(shape or ()) for shape in shapes]
        if min(axes) < 2:
            raise Barrier(f"an operand of {min(axes)} axes")
        if axes[1] > 2:
            found = self._summed(a, b, Product(Operand(a), Operand(b), dtypes[2], var))
        else:
            source = self._source(a) if axes[0] == 2 else Operand(a)
            found = Product(source, self._source(b), dtypes[2], var)
        while (user := self._only_user(found.last)) is not None:
            value = self.value[user]
            if _is_transpose(value):
                found.turned = not found.turned
            elif _is_cast(value, "float32") and found.cast is None:
                found.cast = "float32"
            elif not isinstance(value, relax.Var) and not self._rounds(value, found):
                break
            self._absorb(found, user)
        found.normalize()
        matrices = all(len(sizes(x.tensor)) == 2 for x in (found.a, found.b))
        if matrices and found.kind is ConvKind.FPROP and self.exchange(found.problem()):
            found.exchange()
        if not found.turned and found.cast is None and found.kind is not ConvKind.WGRAD:
            self._take_along(found)
        return found

    def _summed(self, a: relax.Expr, b: relax.Expr, found: Product) -> Product:
        """A sum over all images of products aᵀ b: the gradient of a layer on several axes."""
        value = self.value_of(a)
        swapped = op_name(value) == "relax.permute_dims" and value.attrs.axes is not None
        *outer, rows, columns = range(a.ty.ndim)
        if swapped and [int(n) % a.ty.ndim for n in value.attrs.axes] == [*outer, columns, rows]:
            source = value.args[0]
            alike = same(sizes(source)[:-1], sizes(b)[:-1])
            while alike and (user := self._only_user(found.last)) is not None:
                value = self.value[user]
                total = _is_total(value)
                if not (total or isinstance(value, relax.Var) or self._rounds(value, found)):
                    break
                self._absorb(found, user)
                if total:
                    found.a = Operand(source, turned=True)
                    return found
        raise Barrier("a product for each image, and no sum of them")

    @staticmethod
    def _rounds(value: relax.Expr, found: Product) -> bool:
        """Whether a float32 sum of half-precision products is rounded; it is half then."""
        half = found.operands
        wide = found.dtype == "float32" and found.cast is None
        if half not in HALVES or not wide or not _is_cast(value, half):
            return False
        found.dtype = half
        return True

    def value_of(self, expr: relax.Expr) -> Any:
        """What a variable of this block stands for, if no product has it."""
        while isinstance(expr, relax.Var) and expr not in self.claimed:
            value = self.value.get(expr)
            if not isinstance(value, relax.Var):
                return value
            expr = value
        return None

    def _only_user(self, var: relax.Var) -> relax.Var | None:
        user = self.graph.sole_use(var)
        free = user is not None and user.var in self.value and user.var not in self.claimed
        return user.var if free else None

    @staticmethod
    def _absorb(found: Product, user: relax.Var) -> None:
        found.absorbed.add(found.last)
        found.last = user

    def _source(self, expr: relax.Expr) -> Operand:
        """What a matrix is made of by transposes, and a cast of one."""
        value = self.value_of(expr)
        if value is not None and _is_transpose(value):
            source = self._source(value.args[0])
            return replace(source, turned=not source.turned)
        if op_name(value) == "relax.astype":
            source = self._source(value.args[0])
            if source.turned and source.cast is None:
                return replace(source, cast=str(value.ty.dtype))
        return Operand(expr)

    def _take_along(self, found: Product) -> None:
        """What a library may take along with a convolution."""
        while (user := self._only_user(found.last)) is not None:
            value = self.value[user]
            inner = self._comparison(value, found)
            bias = op_name(value) == "relax.add" and self._addend(value, found) is not None
            if inner is None and not bias and op_name(value) != "relax.nn.relu":
                break
            found.follow.append((value, found.last))
            found.absorbed |= {inner} if inner is not None else set()
            self._absorb(found, user)

    def _addend(self, call: relax.Call, found: Product) -> relax.Expr | None:
        """What is added to a product: of its shape, or a value for each column."""
        (addend,) = (arg for arg in call.args if not found.last.same_as(arg))
        shape = sizes_of(addend.ty)
        columns = shape in ([found.shape[-1]], [1, found.shape[-1]])
        return addend if columns or same(shape, found.shape) else None

    def _comparison(self, call: relax.Call, found: Product) -> relax.Var | None:
        """The comparison of what has the product's shape with a number that selects from it."""
        if op_name(call) != "relax.where" or not found.last.same_as(call.args[2]):
            return None
        chosen = call.args[0]
        compared: Any = self.value.get(chosen) if isinstance(chosen, relax.Var) else None
        if op_name(compared) not in _COMPARISONS or self._only_user(chosen) is None:
            return None
        numbers = (compared.args[1], call.args[1])
        scalar = all(isinstance(x, tvm.ir.Constant) and x.ty.ndim == 0 for x in numbers)
        return chosen if scalar and same(sizes_of(compared.args[0].ty), found.shape) else None


def sizes(tensor: relax.Expr) -> list[Any]:
    """A tensor's sizes, which are known."""
    found = sizes_of(tensor.ty)
    assert found is not None
    return found


def same(a: list[Any] | None, b: list[Any]) -> bool:
    if a is None or len(a) != len(b):
        return False
    return all(
        x == y if isinstance(x, int) or isinstance(y, int) else bool(structural_equal(x, y))
        for x, y in zip(a, b, strict=True)
    )


def _is_transpose(value: relax.Expr) -> bool:
    """Whether a call exchanges the two axes of a matrix."""
    if op_name(value) != "relax.permute_dims" or value.ty.ndim != 2:
        return False
    axes = value.attrs.axes
    return axes is None or [int(axis) % 2 for axis in axes] == [1, 0]


def _is_total(value: relax.Expr) -> bool:
    """Whether a call sums matrices over all axes before their two."""
    if op_name(value) == "relax.collapse_sum_to":
        return value.ty.ndim == 2 and same(sizes(value), sizes(value.args[0])[-2:])
    if op_name(value) != "relax.sum" or value.attrs.axis is None or value.attrs.keepdims:
        return False
    ndim = value.args[0].ty.ndim
    return sorted(int(n) % ndim for n in value.attrs.axis) == list(range(ndim - 2))


def _is_cast(value: relax.Expr, dtype: str) -> bool:
    return op_name(value) == "relax.astype" and str(value.ty.dtype) == dtype
