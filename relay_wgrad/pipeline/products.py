"""Matrix products on a CPU by the kernels that convolutions have.

Upstream's loops for a product read one operand a whole row apart from term to term, and keep no
sum in a register: 5 to 60 times as slow as a library's.  A product is a convolution of one pixel
and one tap (`transform.raise_product`), whose kernels pack what is far apart.  Transposes of
operands and of the result become part of it, so that none is written to memory.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tvm
from tvm import relax

from .. import keys
from ..graph.rebuild import bound, rebuilt
from ..problem import DTYPE_BYTES, ConvKind, ConvProblem
from ..registry import is_registered
from ..transform.raise_product import raise_products
from .targets import llvm_target

# What is worth packing for: rows that share what is packed, and products in all.  With fewer rows
# an operand is read about once in either form, but upstream converts a half type's for each term.
# A weight's gradient is as large as the weight, and packs its few rows alone.
_ROWS = {ConvKind.FPROP: 8, ConvKind.DGRAD: 8, ConvKind.WGRAD: 2}
_PRODUCTS = 1 << 15
_FEW = 128  # rows, with which the result is still smaller than the weight
_OPEN = 32  # what an open number of rows, which is a batch's, is taken for


def cpu_products() -> tvm.transform.Pass:
    """Products of matrices, where they are large enough, as calls of kernels for the target.

    Leaves a module alone where the current target is none or no CPU, and before
    `relay_wgrad.register()`.  Batches of products with no sum over them stay.
    """

    @tvm.transform.module_pass(opt_level=0, name="relay_wgrad.cpu_products")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        if llvm_target() is None or not is_registered():
            return mod
        raised, entries = raise_products(mod, refusal, is_exchanged)
        names: dict[str, set[str]] = {}
        for entry in entries:
            if entry.convolution:
                names.setdefault(entry.function, set()).add(entry.convolution)
        if not names:
            return mod
        writer = _Writer(raised)
        for function, convolutions in names.items():
            writer.write(function, convolutions)
        return writer.module()

    return run


def is_exchanged(problem: ConvProblem) -> bool:
    """Whether a product x wᵀ is to be (w xᵀ)ᵀ: what is packed is the filters, so x's few rows and
    not a weight that is read once; the result's transpose is small then."""
    rows, columns, inputs = problem.n, problem.k, problem.c
    known = all(isinstance(size, int) for size in (rows, columns, inputs))
    return known and 2 * rows <= columns and rows <= min(inputs, _FEW)


def refusal(problem: ConvProblem) -> str:
    """Why a product stays as it is; "" where it does not."""
    if not (isinstance(problem.c, int) and isinstance(problem.k, int)):
        return "sizes other than the number of rows are symbolic"
    rows = problem.n if isinstance(problem.n, int) else _OPEN
    least = _ROWS[problem.kind]
    if rows < least and DTYPE_BYTES[problem.data_dtype] > 2:
        return f"{rows} rows, of which {least} are worth packing for"
    if rows * problem.c * problem.k < _PRODUCTS:
        return (
            f"{rows * problem.c * problem.k} products, of which {_PRODUCTS} are worth packing for"
        )
    return ""


class _Writer:
    """Writes calls of kernels in place of some convolutions."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod, self._builder = mod, relax.BlockBuilder(mod)
        self._left: dict[str, tvm.ir.GlobalVar] = {}  # kernels that say they are a convolution's

    def write(self, function: str, names: Collection[str]) -> None:
        """In a function, in place of the convolutions whose variables have these names."""

        def bindings(block: relax.BindingBlock) -> list[relax.Binding]:
            return [
                bound(b, self._kernel(b.value)) if str(b.var.name) in names else b
                for b in block.bindings
            ]

        var = self._mod.get_global_var(function)
        self._builder.update_func(var, rebuilt(self._mod[var], bindings))

    def _kernel(self, call: relax.Call) -> relax.Expr:
        """The call of a kernel that does not say so: reports are of a network's convolutions."""
        made = call.op.get_attr("FLegalize")(self._builder, call)
        convolution = made.args[0]
        self._left[str(convolution.name_hint)] = convolution
        func = self._builder.get()[convolution]
        func = func.without_attr(keys.PROBLEM).without_attr(keys.OP)
        product = self._builder.add_func(func, "product")
        return self._builder.normalize(
            relax.call_tir(product, list(made.args[1].fields), out_ty=call.ty)
        )

    def module(self) -> tvm.IRModule:
        """The module, with what has been written."""
        out = self._builder.get()
        there = {str(var.name_hint) for var in self._mod.get_global_vars()}
        for name, var in self._left.items():
            if name not in there:
                del out[var]
        return out
