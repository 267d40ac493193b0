"""Which matrix products of a module go to cuBLAS, and how they are written then.

Transpositions of operands and results are strides of the call where they leave the matrices evenly
apart, and so are parts of a tensor, q, k and v of one, and those repeated along a batch's axes.
What is between is not computed, unless something else needs it.  A float32 result of half operands
that is only rounded is half.  Rows of a result that softmax alone reads are whole packs of 16
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import relax

from relay_wgrad import keys
from relay_wgrad.dtypes import HALVES
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import bound, normal, rebuilt, substitute, without_unused
from relay_wgrad.graph.walk import Block, bindings_of, functions_in
from relay_wgrad.ir import is_closed, op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.layout_rules.table import PERMUTE, RESHAPES

from ..codegen.lowering import DirectEntry, Symbols, with_source
from ..softmax import SOFTMAX
from ..softmax.call import padded
from .call import BatchedProductsCall, Matrices, check
from .codegen import BATCHED_PRODUCTS
from .strides import matrices, repeated, whole
from .views import origins, undone

# The last variable, which a call may write for a product; those between; where it has the product's
# matrices, None where sizes are not known; how many elements its rows are filled up with.
_Result = tuple[relax.Var, list[relax.Var], "Matrices | None", int]
MATMUL, CAST, PACKED = "relax.matmul", "relax.astype", "relax.call_dps_packed"


def with_tf32(mod: tvm.IRModule, allowed: bool) -> tvm.IRModule:
    """The module, which says whether float32 products may round operands to tf32; silent it says
    that they may not."""
    return mod.with_attr(keys.TF32, allowed) if allowed or tf32_of(mod) else mod


def tf32_of(mod: tvm.IRModule) -> bool:
    return bool(mod.attrs and keys.TF32 in mod.attrs and mod.attrs[keys.TF32])


def lower_batched_products(
    mod: tvm.IRModule, arch: int
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with the matrix products that `check` takes as calls of generated functions.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it; cuBLAS has kernels for each.

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each product in program order.
    """
    out, symbols, entries = mod.clone(), Symbols(BATCHED_PRODUCTS), list[DirectEntry]()
    for var, func in functions_in(mod, by_name=True):
        if is_closed(func) or all(op_name(b.value) != MATMUL for b in bindings_of(func)):
            continue
        found = list(products_of(func, tf32_of(mod)))
        for one in found:
            symbol = "" if one.reason else symbols.of(one.call)
            node = str(one.product.name)
            entries.append(DirectEntry(str(var.name_hint), node, "matmul", symbol, one.reason))
        taken = {one.last: one for one in found if not one.reason}
        if taken:
            out.update_func(var, without_unused(rebuilt(func, _rewrite(taken, symbols))))
    return with_source(out, symbols, arch), tuple(entries)


@dataclass
class Found:
    """A product: the record without a symbol, and what is read and written.

    product : the variable of `relax.matmul`; last : the one that the call gives, made of it alone
    by way of `between`.  type : that variable's, which may have longer rows than it had.
    reason : why it stays.
    """

    product: relax.Var
    call: Any = None
    args: list[Any] = field(default_factory=list)
    last: Any = None
    between: list[relax.Var] = field(default_factory=list)
    type: Any = None
    reason: str = ""


def products_of(func: relax.Function, tf32: bool = False) -> Iterator[Found]:
    """The products of a function in program order, and what becomes of each."""
    view = Graph(func)
    calls = [(b.var, b.value) for b in view.bindings if view.call(b.var, MATMUL) is not None]
    results = {var: _result(view, var, call) for var, call in calls}
    gone = {var for _, between, *_ in results.values() for var in between}
    for var, call in calls:
        yield _read(view, var, call, results[var], gone, tf32)


def _rewrite(
    taken: dict[relax.Var, Found], symbols: Symbols
) -> Callable[[Block], list[relax.Binding]]:
    """Of each block its bindings with the calls, each where the last variable is bound."""
    gone = {var for one in taken.values() for var in (one.product, *one.between)} - set(taken)

    longer: dict[relax.Var, Any] = {}  # a variable -> another, whose rows are filled up

    def bindings(block: Block) -> list[relax.Binding]:
        made = []
        for binding in block.bindings:
            one = taken.get(binding.var)
            if one is None:
                made += [] if binding.var in gone else [_with(longer, binding)]
                continue
            called = normal(relax.call_dps_packed(symbols.of(one.call), one.args, one.type))
            if one.call.filled:
                longer[one.last] = relax.DataflowVar(f"{one.last.name}_filled", called.ty)
            var = longer.get(one.last, one.last)
            made.append(relax.VarBinding(var, called, binding.span))
        return made

    return bindings


def _with(longer: dict[relax.Var, Any], binding: Any) -> relax.Binding:
    value = substitute(binding.value, longer) if longer else binding.value
    return binding if value.same_as(binding.value) else bound(binding, normal(value))


# ---- one product ---------------------------------------------------------------------------------


def _read(
    view: Graph, var: relax.Var, call: relax.Call, result: _Result, gone: Collection[relax.Var],
    tf32: bool,
) -> Found:  # fmt: skip
    shapes = [sizes_of(x.ty) for x in (*call.args, call)]
    dtype, other = (str(x.ty.dtype) for x in call.args)
    last, between, of_c, filled = result
    if any(shape is None for shape in shapes):
        return Found(var, reason=f"unknown shapes: {call.args[0].ty} and {call.args[1].ty}")
    a, b, c = (shape or [] for shape in shapes)
    if other != dtype:
        return Found(var, reason=f"dtypes {dtype} and {other}")
    if min(len(a), len(b)) < 2:
        return Found(var, reason="an operand of one axis")
    count, sizes = _count(c[:-2]), (c[-2], c[-1], a[-1])
    if count is None or of_c is None or not all(isinstance(size, int) for size in sizes):
        return Found(var, reason=f"sizes that are known when it runs: {a} and {b}")
    read = [_operand(view, arg, var, c[:-2], gone) for arg in call.args]
    if read[0] is None or read[1] is None:
        return Found(var, reason=f"matrices of {a} and {b} that are not evenly apart")
    (of_a, first), (of_b, second) = read[0], read[1]
    made = BatchedProductsCall(
        "", dtype, str(last.ty.dtype), count, *sizes, (of_a, of_b, of_c),
        tf32 and dtype == "float32", filled,
    )  # fmt: skip
    decision = check(replace(made, symbol=BATCHED_PRODUCTS.codegen))
    ty = _longer(last.ty, filled)
    return Found(var, made, [first, second], last, between, ty, decision.reason)


def _count(outer: Sequence[Any]) -> int | None:
    """How many matrices: a number, 0 where only the first axis has none, else None."""
    count = 1
    for size in outer[1:]:
        if not isinstance(size, int):
            return None
        count *= size
    if not outer or isinstance(outer[0], int):
        return count * (outer[0] if outer else 1)
    return 0


def _operand(
    view: Graph, arg: Any, user: relax.Var, outer: Sequence[Any], gone: Collection[relax.Var]
) -> tuple[Matrices, Any] | None:
    """Where an operand's matrices are in a tensor of which it is a view, and that tensor: of those
    that have them evenly apart the one that was there first."""
    found = None
    for axes, first, at in origins(view, arg, user, gone):
        if axes is not None:
            spread = repeated(axes, [*outer, *(size for size, _ in axes[-2:])])
            places = matrices(spread, first)
            found = found if places is None else (places, at)
    return found


def _result(view: Graph, var: relax.Var, call: relax.Call) -> _Result:
    places = _places(var.ty, [])
    best: _Result = (var, [], places, 0)
    at, passed, steps = var, list[relax.Var](), list[tuple[relax.Call, Any]]()
    narrow = str(call.args[0].ty.dtype)
    wide = narrow in HALVES and str(var.ty.dtype) == "float32"
    while places is not None and (user := view.sole_use(at)) is not None:
        value = view.call(user.var, PERMUTE, CAST, *RESHAPES)
        rounds = op_name(value) == CAST
        if value is None or (rounds and not (wide and str(value.ty.dtype) == narrow)):
            break
        passed, wide = [*passed, at], wide and not rounds
        steps += [] if rounds else [(value, sizes_of(at.ty))]
        at = user.var
        found = _places(at.ty, steps)
        if found is not None and op_name(value) not in RESHAPES:
            best = (at, passed, found, 0)
    filled = _filled(view, at) if best[0] is at else 0
    longer = _places(at.ty, steps, filled) if filled else None
    return best if longer is None else (at, passed, longer, filled)


def _filled(view: Graph, var: relax.Var) -> int:
    """With how many elements a tensor's rows are filled up, of which softmax reads what it has."""
    use, sizes = view.sole_use(var), sizes_of(var.ty)
    called = None if use is None else view.call(use.var, PACKED)
    if called is None or sizes is None or not isinstance(var, relax.DataflowVar):
        return 0
    if not str(called.args[0].global_symbol).startswith(SOFTMAX.codegen):
        return 0
    if not called.args[1].fields[0].same_as(var) or not all(isinstance(n, int) for n in sizes):
        return 0
    return padded(sizes[-1], str(var.ty.dtype)) - int(sizes[-1])


def _longer(ty: Any, filled: int) -> Any:
    """A tensor's type with longer rows."""
    if not filled:
        return ty
    *outer, last = sizes_of(ty) or []
    return relax.TensorType([*outer, last + filled], str(ty.dtype))


def _places(ty: Any, steps: Sequence[tuple[relax.Call, Any]], filled: int = 0) -> Matrices | None:
    """Where a tensor has the matrices of the one that it was made of by these steps, each with its
    operand's sizes; its rows are filled up with some elements."""
    sizes = sizes_of(_longer(ty, filled))
    axes = whole(sizes) if sizes else None
    if axes and filled:
        axes[-1] = (axes[-1][0] - filled, axes[-1][1])
    for step, before in reversed(steps):
        axes = axes and undone(axes, step, before)
    return matrices(axes) if axes and len(axes) > 1 else None
