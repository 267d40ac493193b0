"""Which weights of a module are standardized together, and how that is written then.

A weight's filters are rows with statistics of their own: a group normalization of one group without
scale and shift, of a parameter that is only reshaped before.  What follows, a product with a gain,
another order of the filters' axes and a cast, is part of it, and so is all of that backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.match import number_of
from relay_wgrad.graph.rebuild import with_bindings, without_unused
from relay_wgrad.ir import beside, op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.layout_rules.table import permute_axes
from relay_wgrad.ops import batch_norm_train, batch_norm_train_backward
from relay_wgrad.ops.train_norm import GROUP_BACKWARD, GROUP_FORWARD

from ..cast_transpose.places import transposition
from ..codegen.lowering import DirectEntry, Symbols, lower_together, written
from .call import DTYPES, StandardizedCall, Weight
from .codegen import STANDARDIZED

CAST, PERMUTE, RESHAPE = "relax.astype", "relax.permute_dims", "relax.reshape"
PRODUCT, SUMS = "relax.multiply", ("relax.collapse_sum_to", "relax.sum")
Expr = Any


@dataclass(frozen=True)
class _Found:
    """One weight: operands and results as variables; `made` and its gradient have one dtype."""

    shape: Weight
    epsilon: float
    weight: relax.Var
    gain: Expr
    made: relax.Var
    dmade: relax.Var
    dweight: relax.Var
    dgain: Expr

    @property
    def kind(self) -> tuple[str, float]:
        """Weights of a kind go together."""
        return str(self.made.ty.dtype), self.epsilon


def lower_standardized(
    mod: tvm.IRModule, arch: int
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with its standardized weights, and their gradients, as few calls.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each call that was made.
    """
    return lower_together(mod, STANDARDIZED, "standardized", _together, arch)


def _together(func: relax.Function, symbols: Symbols) -> tuple[relax.Function, dict[str, str]]:
    view = Graph(func)
    found = [one for b in view.bindings if (one := _found(view, b.var)) is not None]
    kinds = {one.kind: [other for other in found if other.kind == one.kind] for one in found}
    bindings, names = list(view.bindings), dict[str, str]()
    for kind, group in kinds.items():
        bindings = _written(view, bindings, _in_time(view, group), kind, symbols, names)
    return without_unused(with_bindings(func, bindings)) if names else func, names


# ---- finding -------------------------------------------------------------------------------------


def _base(view: Graph, expr: Expr) -> Expr:
    """What an expression is but for reshapes."""
    while (call := view.call(view.resolved(expr), RESHAPE)) is not None:
        expr = call.args[0]
    return view.resolved(expr)


def _shapes(view: Graph, var: relax.Var) -> list[relax.Var]:
    """A variable and what it is reshaped to."""
    found = [var]
    for one in found:
        found += [
            b.var for b in view.users_of(one)
            if op_name(b.value) == RESHAPE or isinstance(b.value, relax.Var)
        ]  # fmt: skip
    return found


def _users(view: Graph, var: relax.Var) -> list[tuple[Any, relax.Var]]:
    """The bindings that use a variable in any shape, but for reshapes, and which shape."""
    shapes = _shapes(view, var)
    return [(b, one) for one in shapes for b in view.users_of(one) if b.var not in shapes]


def _field(view: Graph, call: relax.Var, index: int) -> relax.Var | None:
    """The variable of a call's result; None where there are several, or none."""
    found = [v for i, v in view.fields_of(call) if i == index]
    return found[0] if len(found) == 1 else None


def _found(view: Graph, forward: relax.Var) -> _Found | None:
    call = view.call(forward, GROUP_FORWARD)
    if call is None or forward in view.results:
        return None
    attrs, given = batch_norm_train.read(call), batch_norm_train.operands_by_name(call)
    sizes = sizes_of(call.args[0].ty)
    rows = sizes is not None and len(sizes) == 3 and sizes[1] == 1 and attrs.groups == 1
    if not rows or attrs.activation or "residual" in given or attrs.axis != 2:
        return None
    assert sizes is not None
    weight, y = _base(view, given["x"]), _field(view, forward, 0)
    good = weight in view.params and str(weight.ty.dtype) == "float32" and y is not None
    if not good or not _is(given["gamma"], 1.0) or not _is(given["beta"], 0.0):
        return None
    filters, row = sizes[0], sizes[2]
    if not isinstance(filters, int) or not isinstance(row, int) or row < 2:
        return None
    backward = _backward(view, forward, given["x"])
    if backward is None:
        return None
    users = _users(view, y)
    products = [(b, one) for b, one in users if op_name(b.value) == PRODUCT]
    dy = batch_norm_train_backward.operands_by_name(view.value[backward])["dy"]
    starts = list(dict.fromkeys(one for _, one in users))
    if not products and len(starts) == 1:
        return _completed(
            view, attrs.epsilon, weight, None, None, None, starts[0], dy, backward, filters, row
        )
    if len(products) != 2 or len(users) != 2:
        return None
    for (product, one), (gradient, other) in (products, products[::-1]):
        factor = _gain(view, beside(product.value, one), filters)
        if factor is None:
            continue
        gain, scale = factor
        d = view.call(_base(view, dy), PRODUCT)
        made = None if d is None else _other(view, d, beside(product.value, one))
        if made is None or not made.same_as(_base(view, beside(gradient.value, other))):
            continue
        dgain = _gain_gradient(view, gradient.var, filters, row, scale)
        if dgain is not None:
            return _completed(view, attrs.epsilon, weight, gain, scale, dgain, product.var, made,
                              backward, filters, row)  # fmt: skip
    return None


def _is(expr: Expr, value: float) -> bool:
    return isinstance(expr, tvm.ir.Constant) and bool((expr.value.numpy() == value).all())


def _backward(view: Graph, forward: relax.Var, x: Expr) -> relax.Var | None:
    """The call that alone takes the statistics, of the same rows."""
    statistics = [v for i, v in view.fields_of(forward) if i in (1, 2)]
    users = view.users_of(*statistics)
    if len(users) != 1 or op_name(users[0].value) != GROUP_BACKWARD or len(statistics) != 2:
        return None
    given = batch_norm_train_backward.operands_by_name(users[0].value)
    same = view.resolved(given["x"]).same_as(view.resolved(x)) and len(given) == 6
    told = [view.resolved(given[name]) for name in ("mean", "rstd")]
    right = [v for i in (1, 2) for k, v in view.fields_of(forward) if k == i]
    good = same and all(a.same_as(view.resolved(b)) for a, b in zip(told, right, strict=True))
    return users[0].var if good else None


def _other(view: Graph, call: relax.Call, gain: Expr) -> Expr:
    """But for shapes, the operand beside a gain; None where that is none."""
    bases = [_base(view, a) for a in call.args]
    wanted = _base(view, gain)
    others = [b for b in bases if not b.same_as(wanted)]
    return others[0] if len(others) == 1 else None


def _gain(view: Graph, expr: Expr, filters: int) -> tuple[relax.Var, float | None] | None:
    """(the parameter, what it is multiplied by, if it is) of a number for each filter, which are
    the second axis from the last; None where it is something else."""
    sizes = None if expr is None else sizes_of(expr.ty)
    if sizes is None or len(sizes) < 2 or sizes != [*[1] * (len(sizes) - 2), filters, 1]:
        return None
    base, scale = _base(view, expr), None
    product = view.call(base, PRODUCT)
    if product is not None:
        number = number_of(product.args[1])
        if number is None:
            return None
        base, scale = _base(view, product.args[0]), number
    good = base in view.params and str(base.ty.dtype) == "float32"
    return (base, scale) if good and _count(base) == filters else None


def _count(expr: Expr) -> int | None:
    sizes = sizes_of(expr.ty)
    whole = sizes is not None and all(isinstance(n, int) for n in sizes)
    return math.prod(sizes) if whole and sizes is not None else None


def _gain_gradient(
    view: Graph, product: relax.Var, filters: int, row: int, scale: float | None
) -> relax.Var | None:
    """What is made of the products of xhat and its gradient: their sums over rows, by a factor."""
    total = view.sole_use(product)
    if total is None or op_name(total.value) not in SUMS or _count(total.var) != filters:
        return None
    sizes = sizes_of(product.ty)
    if sizes is None or sizes != [*[1] * (len(sizes) - 2), filters, row]:
        return None
    last = _last(view, total.var)
    if scale is None:
        return last
    scaled = view.sole_use(last)
    if scaled is None or op_name(scaled.value) != PRODUCT:
        return None
    number = beside(scaled.value, last)
    return _last(view, scaled.var) if number is not None and number_of(number) == scale else None


def _last(view: Graph, var: relax.Var) -> relax.Var:
    """The last of a chain of reshapes."""
    while (user := view.sole_use(var)) is not None and op_name(user.value) == RESHAPE:
        var = user.var
    return var


def _completed(
    view: Graph, epsilon: float, weight: relax.Var, gain: Expr, scale: float | None, dgain: Expr,
    product: relax.Var, dproduct: Expr, backward: relax.Var, filters: int, row: int,
) -> _Found | None:  # fmt: skip
    """With the filters' axes in another order, and casts, on both sides."""
    dx = _field(view, backward, 0)
    if dx is None or any(view.users_of(v) for i, v in view.fields_of(backward) if i):
        return None
    made, turned = product, None
    while (user := view.sole_use(made)) is not None:
        name = op_name(user.value)
        if name == PERMUTE and turned is None:
            turned = user.value
        elif name not in (RESHAPE, CAST) or (name == CAST and _dtype(made) != "float32"):
            break
        made = user.var
    dmade, back = view.resolved(dproduct), None
    while (call := view.call(dmade, CAST, PERMUTE, RESHAPE)) is not None:
        name = op_name(call)
        if (name == PERMUTE and back is not None) or (name == CAST and _dtype(dmade) != "float32"):
            break
        back = call if name == PERMUTE else back
        dmade = view.resolved(call.args[0])
    order, inverse = _order(turned, filters, row), _order(back, filters, row)
    if order is None or inverse is None:
        return None
    if order != (inverse if inverse[1] == 1 else inverse[::-1]):
        return None
    dtype = _dtype(made)
    if dtype not in DTYPES or _dtype(dmade) != dtype or not isinstance(dmade, relax.Var):
        return None
    shape = Weight(filters, *order, 1.0 if scale is None else scale, gain is not None)
    return _Found(shape, epsilon, weight, gain, made, dmade, _last(view, dx), dgain)


def _dtype(expr: Expr) -> str:
    return str(expr.ty.dtype)


def _order(permuted: relax.Call | None, filters: int, row: int) -> tuple[int, int] | None:
    """(rows, columns) that a permutation turns within each filter; of none (row, 1)."""
    if permuted is None:
        return row, 1
    sizes = sizes_of(permuted.args[0].ty)
    if sizes is None or not all(isinstance(n, int) for n in sizes):
        return None
    move = transposition(sizes, list(permute_axes(permuted)))
    if move is None or move.count != filters * row:
        return None
    if 1 in (move.rows, move.columns):
        return row, 1
    return (move.rows, move.columns) if move.rows * move.columns == row else None


# ---- writing -------------------------------------------------------------------------------------


def _in_time(view: Graph, group: list[_Found]) -> list[_Found]:
    """Those whose gradients nothing needs before the last of what they are made of is there."""
    last = max(view.index.get(one.dmade, -1) for one in group)
    needed = [v for one in group for v in (one.dweight, one.dgain) if v is not None]
    early = {v for v in needed if any(view.index[b.var] <= last for b in view.users_of(v))}
    return [one for one in group if not early.intersection((one.dweight, one.dgain))]


def _written(
    view: Graph, bindings: list[Any], group: list[_Found], kind: tuple[str, float],
    symbols: Symbols, names: dict[str, str],
) -> list[Any]:  # fmt: skip
    """The bindings with a call at the function's begin, and one where all gradients are there."""
    if not group:
        return bindings
    dtype, epsilon = kind
    weights = tuple(one.shape for one in group)
    told = [
        relax.DataflowVar("field", relax.TensorType([2, one.shape.filters], "float32"))
        for one in group
    ]
    made = [one.made for one in group]
    operands = [
        *(one.weight for one in group),
        *(g for one in group if (g := one.gain) is not None),
    ]

    def call(direction: str, args: list[Any], results: list[relax.Var]) -> list[relax.Binding]:
        symbol = symbols.of(StandardizedCall("", direction, dtype, weights, epsilon))
        name = f"standardized_{len(names)}"
        names[name] = symbol
        return written(symbol, args, results, name)

    results = [
        *(one.dweight for one in group),
        *(d for one in group if (d := one.dgain) is not None),
    ]
    out = call("forward", operands, [*made, *told])
    second = call("backward", [*(one.dmade for one in group), *operands, *told], results)
    last = max((one.dmade for one in group), key=lambda v: view.index.get(v, -1))
    gone = {*made, *results}
    for binding in bindings:
        if binding.var not in gone:
            out.append(binding)
        if binding.var.same_as(last):
            out += second
    return out
