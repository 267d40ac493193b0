"""`raise_products`: matrix products become convolutions of one pixel, which libraries take.

With images of one pixel and filters of one tap, channels last, the trilinear form of
`relay_wgrad.problem` is T(x, w, y) = sum over n,k,c of y[n, k] x[n, c] w[k, c].  Its three partial
derivatives are a fully connected layer and its two gradients:

    y  = x wᵀ    fprop(x, w)          dw = yᵀ x    wgrad(y, x)
    dx = y w     dgrad(y, w)

So a product A B is an fprop where B is what a transpose makes, a wgrad where A is, a dgrad where
neither is; where both are, it is the transpose of the dgrad of B's and A's sources.  Tensors get
axes of one element, nothing is moved: transposes of operands are looked through, also beneath a
cast, and one that follows the product exchanges its operands, (A B)ᵀ = Bᵀ Aᵀ.

What may follow a convolution (a bias, a sum, ReLU, ReLU's gradient) is written with its axes too,
so that a library can take it along.  A half-precision product that is summed in float32 and then
rounded to half is one of half-precision result: the family's sums are float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tvm
from tvm import relax

from ..attrs import ConvAttrs
from ..graph.def_use import Graph
from ..graph.rebuild import Names, Writer, rebuilt, without_unused
from ..graph.walk import bindings_of, functions_in
from ..ir import is_taken, op_name
from ..layout_rules.in_layout import sizes_of
from ..ops.algebra import WGRAD_NAME, dgrad_call, fprop_call, get_op, wgrad_call
from ..problem import ConvKind, ConvProblem
from .product_graph import Product, Products, same, sizes
from .raising.index import Barrier
from .surface import check_relax_module

MATMUL = "relax.matmul"
Accept = Callable[[ConvProblem], str]
_ATTRS = ConvAttrs(data_layout="NHWC", kernel_layout="OHWI", grad_layout="NHWC")


@dataclass(frozen=True)
class ProductEntry:
    """One matrix product.

    `function` and `node` : names of its function and variable; `convolution` : the name of the
    variable that has the convolution's result, `problem` : `ConvProblem.repro()` of it; "" both
    where the product stays, and then `reason` says why.
    """

    function: str
    node: str
    convolution: str = ""
    problem: str = ""
    reason: str = ""


def raise_products(
    mod: tvm.IRModule,
    accept: Accept = lambda problem: "",
    exchange: Callable[[ConvProblem], bool] = lambda problem: False,
) -> tuple[tvm.IRModule, list[ProductEntry]]:
    """The module with its matrix products as convolutions, and an entry for each product.

    Parameters
    ----------
    mod : any module; functions that a backend has taken stay.
    accept : asked of each convolution before it is made; a reason why not, or "".
    exchange : asked of each fprop of two matrices before: whether it is wanted as the transpose of
        that of its operands exchanged, (x wᵀ)ᵀ = w xᵀ, where w's rows are the images.

    Raises
    ------
    TypeError : for what is no module.
    RuntimeError : before `relay_wgrad.register()`.
    """
    check_relax_module("raise_products", mod)
    get_op(WGRAD_NAME)
    out, entries = mod, []
    for gv, func in functions_in(mod, by_name=True):
        if is_taken(func) or all(op_name(b.value) != MATMUL for b in bindings_of(func)):
            continue
        work = _Function(str(gv.name_hint), func, accept, exchange)
        result = work.run()
        entries += work.entries
        if result is not func:
            out = mod.clone() if out is mod else out
            out.update_func(gv, result)
    return out, entries


# ---- one function ------------------------------------------------------------------------------


class _Function:
    """The products of a function, those in its branches included."""

    def __init__(
        self, name: str, func: relax.Function, accept: Accept,
        exchange: Callable[[ConvProblem], bool],
    ) -> None:  # fmt: skip
        self.name, self.func, self.accept, self.exchange = name, func, accept, exchange
        self.entries: list[ProductEntry] = []
        self.names, self.graph = Names(func), Graph(func)

    def run(self) -> relax.Function:
        """The function; itself where nothing was raised."""
        made = rebuilt(self.func, lambda block: _Block(self, block).bindings())
        raised = any(entry.problem for entry in self.entries)
        return without_unused(made) if raised else self.func


class _Block:
    """One block, written anew."""

    def __init__(self, owner: _Function, block: Any) -> None:
        self.owner, self.block = owner, block
        self.products = Products(owner.graph, block, owner.exchange)
        self.unique, self.writer = owner.names.unique, Writer(block)

    def bindings(self) -> list[relax.Binding]:
        """The new ones; a product stands where the last of what it has absorbed stood."""
        products: dict[relax.Var, tuple[Product, str]] = {}
        for var, value in self.products.value.items():
            if op_name(value) != MATMUL:
                continue
            node = (self.owner.name, str(var.name))
            try:
                found = self.products.read(var, value)
                problem = found.problem()
                if refusal := self.owner.accept(problem):
                    raise Barrier(refusal)
            except Barrier as why:
                self.owner.entries.append(ProductEntry(*node, reason=str(why)))
                continue
            name = self.unique(f"{var.name}_product")
            self.owner.entries.append(ProductEntry(*node, name, problem.repro()))
            products[found.last] = found, name
            self.products.claim(found)
        for binding in self.block.bindings:
            if binding.var in products:
                self._write(binding.var, *products[binding.var])
            elif binding.var not in self.products.claimed:
                self.writer.bindings.append(binding)
        return self.writer.bindings

    def _once(self, source: relax.Expr, what: Any, value: Callable[[], relax.Expr]) -> relax.Expr:
        """Made of a variable once in a block."""
        if not isinstance(source, relax.Var):
            return self.writer.emit(self.unique("operand"), value())
        name = partial(self.unique, f"{source.name}_operand")
        return self.writer.emit_once((source, what), name, value)

    def _image(self, tensor: relax.Expr, cast: str | None = None) -> relax.Expr:
        """A tensor as images or filters of one pixel."""
        if cast is not None:
            source = tensor
            tensor = self._once(source, cast, lambda: relax.op.astype(source, cast))
        *rows, columns = sizes(tensor)
        shape = [math.prod(rows, start=1), 1, 1, columns]
        return self._once(tensor, "image", lambda: relax.op.reshape(tensor, shape))

    def _write(self, var: relax.Var, found: Product, name: str) -> None:
        a, b = (self._image(x.tensor, x.cast) for x in (found.a, found.b))
        attrs = replace(_ATTRS, out_dtype=None if found.dtype == found.operands else found.dtype)
        shape = [math.prod(found.shape[:-1], start=1), 1, 1, found.shape[-1]]
        if found.kind is ConvKind.FPROP:
            call = fprop_call(a, b, attrs)
        elif found.kind is ConvKind.DGRAD:
            call = dgrad_call(a, b, relax.ShapeExpr(shape), attrs)
        else:
            call = wgrad_call(a, b, replace(attrs, kernel_size=(1, 1)))
        result = self.writer.emit(name, call)
        for call, before in found.follow:
            new = [result if before.same_as(x) else self._beside(x, found) for x in call.args]
            made = relax.Call(call.op, new, call.attrs, call.ty_args)
            result = self.writer.emit(self.unique(f"{name}_and"), made)
        last = relax.op.reshape(result, found.shape)
        if found.cast is not None:
            last = relax.op.astype(
                self.writer.emit(self.unique(f"{name}_rounded"), last), found.cast
            )
        if found.turned:
            last = relax.op.permute_dims(self.writer.emit(self.unique(f"{name}_matrix"), last))
        self.writer.bind(var, last)

    def _beside(self, operand: relax.Expr, found: Product) -> relax.Expr:
        """Another operand of what follows, with the convolution's axes."""
        value: Any = self.products.value.get(operand) if isinstance(operand, relax.Var) else None
        if operand in found.absorbed:
            image = self._image(value.args[0])
            compared = relax.Call(value.op, [image, value.args[1]], value.attrs, value.ty_args)
            return self.writer.emit(self.unique(f"{operand.name}_image"), compared)
        whole = same(sizes_of(operand.ty), found.shape) and len(found.shape) > 1
        return self._image(operand) if whole else operand
