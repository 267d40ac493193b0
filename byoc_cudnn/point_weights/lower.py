"""Which weight gradients of one pixel go together, and how they are written then.

They are taken back from the libraries that a partition gave them to, where a module has `LEAST` of
them: a library has a kernel for each.  A bias' gradient, the sums of the same tensor over rows, is
made along.  The call stands where the last of its operands is there; one whose result is needed
for an operand has a call of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import (
    rebuilt,
    variable_of,
    with_bindings,
    with_functions,
    without_unused,
)
from relay_wgrad.graph.walk import Block, bindings_of, functions_in
from relay_wgrad.ir import is_closed, op_name
from relay_wgrad.keys import SYMBOL
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.ops.algebra import WGRADS
from relay_wgrad.ops.call_problem import problem_of
from relay_wgrad.problem import ConvKind, ConvProblem

from ..codegen.lowering import DirectEntry, Symbols, lower_together, written
from ..split.composite import called_composite, composite_in, conv_in, inline
from .call import PointWeightsCall, Product, check
from .codegen import POINT_WEIGHTS

_CAST, _COLLAPSE, _SUM = "relax.astype", "relax.collapse_sum_to", "relax.sum"
LEAST = 8  # for which a launch for all is worth taking them from a library
_OPS = frozenset(WGRADS.values())
Expr = Any


def product_of(problem: ConvProblem) -> Product | None:
    """What a convolution is as such a product; None for another one."""
    sizes = (*problem.spatial, *problem.taps, *problem.pixels)
    dtypes = {problem.data_dtype, problem.weight_dtype, problem.grad_dtype}
    plain = all(size == 1 for size in sizes) and not any(problem.padding)
    if problem.kind is not ConvKind.WGRAD or not plain or problem.groups != 1:
        return None
    if len(dtypes) != 1 or not all(isinstance(n, int) for n in (problem.n, problem.k, problem.c)):
        return None
    product = Product(int(problem.n), int(problem.k), int(problem.c))
    call = PointWeightsCall(POINT_WEIGHTS.codegen, dtypes.pop(), (product,))
    return product if check(call) else None


def point_symbols(mod: tvm.IRModule) -> frozenset[str]:
    """Functions of libraries in a partitioned module that `without_point_weights` takes back, by
    their symbols."""
    return frozenset(str(mod[var].attrs[SYMBOL]) for var in _taken(mod))


def without_point_weights(mod: tvm.IRModule) -> tvm.IRModule:
    """A partitioned module with such gradients as operators again, where they are many; to run
    before code is generated."""
    made = _taken(mod)
    if not made:
        return mod
    out = with_functions(mod, lambda _, func: func if is_closed(func) else _inlined(func, made))
    for var in made:
        del out[var]
    return out


def _taken(mod: tvm.IRModule) -> dict[tvm.ir.GlobalVar, relax.Function]:
    """The composites of such gradients, by the functions that are called; none where calls are
    few."""
    inner = {var: composite_in(func) for var, func in mod.functions_items()}
    made = {var: func for var, func in inner.items() if func is not None and _is_taken(func)}
    count = 0
    for _, func in functions_in(mod):
        if not is_closed(func):
            count += sum(called_composite(b, made) is not None for b in bindings_of(func))
    return made if count >= LEAST else {}


def _is_taken(inner: relax.Function) -> bool:
    """Whether a composite is such a gradient alone."""
    return len(bindings_of(inner)) == 1 and product_of(problem_of(conv_in(inner))) is not None


def _inlined(func: relax.Function, made: Mapping[tvm.ir.GlobalVar, Any]) -> relax.Function:
    def rewrite(block: Block) -> list[relax.Binding]:
        found: list[relax.Binding] = []
        for binding in block.bindings:
            inner = called_composite(binding, made)
            found += [binding] if inner is None else inline(inner, binding, variable_of(block))
        return found

    return rebuilt(func, rewrite)


def lower_point_weights(
    mod: tvm.IRModule, arch: int
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with weight gradients of one pixel, and of their biases, as few calls.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each call that was made.
    """
    return lower_together(mod, POINT_WEIGHTS, "point_weights", _together, arch)


@dataclass(frozen=True)
class _Found:
    """One weight: what it is made of, its gradient and the bias', as variables."""

    product: Product
    dtype: str
    dy: relax.Var
    x: relax.Var
    dw: relax.Var
    db: relax.Var | None

    @property
    def results(self) -> list[relax.Var]:
        return [self.dw] if self.db is None else [self.dw, self.db]


def _together(func: relax.Function, symbols: Symbols) -> tuple[relax.Function, dict[str, str]]:
    view = Graph(func)
    found = [one for b in view.bindings if (one := _found(view, b.var)) is not None]
    names: dict[str, str] = {}
    bindings = list(view.bindings)
    for dtype in dict.fromkeys(one.dtype for one in found):
        for group in _groups(view, [one for one in found if one.dtype == dtype]):
            bindings = _with_call(view, bindings, group, symbols, names)
    return without_unused(with_bindings(func, bindings)) if names else func, names


def _groups(view: Graph, found: Sequence[_Found]) -> list[list[_Found]]:
    """Those that may be computed where all operands are there, and each other alone."""
    operands = {v for one in found for v in (one.dy, one.x)}
    alone = [one for one in found if operands & view.made_of(one.results)]
    late = [one for one in found if one not in alone]
    return [group for group in (late, *([one] for one in alone)) if group]


def _with_call(
    view: Graph, bindings: Sequence[Any], group: Sequence[_Found], symbols: Symbols,
    names: dict[str, str],
) -> list[Any]:  # fmt: skip
    """The bindings with a call for some weights behind the last of its operands, and behind it what
    is made of its results."""
    operands = {v for one in group for v in (one.dy, one.x)}
    results = {v for one in group for v in one.results}
    later = view.made_of(results)
    last = max((i for i, b in enumerate(bindings) if b.var in operands), default=-1)
    first = [b for b in bindings[: last + 1] if b.var not in results]
    return [
        *(b for b in first if b.var not in later), *_written(group, symbols, names),
        *(b for b in first if b.var in later),
        *(b for b in bindings[last + 1 :] if b.var not in results),
    ]  # fmt: skip


def _found(view: Graph, var: relax.Var) -> _Found | None:
    call = view.call(var, *_OPS)
    if call is None or not all(isinstance(arg, relax.Var) for arg in call.args):
        return None
    if any(sizes_of(arg.ty) is None for arg in call.args):
        return None
    problem = problem_of(call)
    product = product_of(problem)
    if product is None:
        return None
    dy, x = call.args
    db = _bias(view, dy, product)
    biased = Product(product.n, product.k, product.c, db is not None)
    return _Found(biased, problem.grad_dtype, dy, x, var, db)


def _bias(view: Graph, dy: relax.Var, product: Product) -> relax.Var | None:
    """The sums of a tensor over its rows, in float32; of several the first."""
    wide = [b.var for b in view.users_of(dy) if op_name(b.value) == _CAST]
    for binding in view.users_of(dy, *wide):
        value, var = binding.value, binding.var
        name = op_name(value)
        if name not in (_COLLAPSE, _SUM) or str(var.ty.dtype) != "float32":
            continue
        if str(value.args[0].ty.dtype) != "float32" or view.block[var] != view.block.get(dy, 0):
            continue
        if product.n > 1 and _is_over_rows(value, product):
            return var
    return None


def _is_over_rows(call: relax.Call, product: Product) -> bool:
    """Whether a sum is over a tensor's first axis, and others of length 1."""
    given, made = sizes_of(call.args[0].ty), sizes_of(call.ty)
    if given is None or made is None or math.prod(made) != product.k:
        return False
    if op_name(call) == _SUM:
        axes = call.attrs.axis
        over = range(len(given)) if axes is None else [int(axis) % len(given) for axis in axes]
        return 0 in over and all(given[axis] == 1 for axis in over if axis)
    return len(made) < len(given) or made[0] == 1


def _written(group: Sequence[_Found], symbols: Symbols, names: dict[str, str]) -> list[Any]:
    """A call for some weights, and bindings of its results."""
    call = PointWeightsCall("", group[0].dtype, tuple(one.product for one in group))
    symbol = symbols.of(call)
    results = [*(one.dw for one in group), *(db for one in group if (db := one.db) is not None)]
    args = [*(one.dy for one in group), *(one.x for one in group)]
    name = f"point_weights_{len(names)}"
    names[name] = symbol
    return written(symbol, args, results, name)
