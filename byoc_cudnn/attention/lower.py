"""Which attention of a module goes to kernels of our own, and how it is written then.

A softmax of scores that are a product, and to which something may be added, whose weights another
product reads, is one call with both; its gradient, and the four products around that, are another.
q, k, v and the result's gradient are read, and results are written, as views of other tensors,
transposed, or parts of one.  What is between is not computed, unless something else needs it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import tvm
from tvm import relax
from tvm_ffi import structural_equal

from relay_wgrad.dtypes import HALVES
from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import rebuilt, without_unused
from relay_wgrad.graph.walk import Block, bindings_of, functions_in
from relay_wgrad.ir import is_closed, op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.layout_rules.table import PERMUTE, RESHAPES

from ..batched_products.lower import CAST, MATMUL
from ..batched_products.strides import Axis, matrices, repeated, whole
from ..batched_products.views import origins, undone
from ..codegen.lowering import DirectEntry, Symbols, with_source, written
from ..softmax.lower import OP, found_of
from ..softmax.lower import Found as Softmax
from .call import OLDEST, OUTER, AttentionCall, Place, check
from .codegen import ATTENTION

CONCAT, ADD, ZEROS = "relax.concat", "relax.add", "relax.zeros"
Expr = Any


class Stays(Exception):  # noqa: N818
    """Why an attention is left to its products and its softmax; no error."""


def lower_attention(mod: tvm.IRModule, arch: int) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with each attention that `check` takes, and its gradient, as calls of functions.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each softmax of a product, in program
        order.
    """
    out, symbols, entries = mod.clone(), Symbols(ATTENTION), list[DirectEntry]()
    for var, func in functions_in(mod, by_name=True):
        if is_closed(func) or all(op_name(b.value) != OP for b in bindings_of(func)):
            continue
        view, taken, reasons = Graph(func), list[_Attention](), list[tuple[str, str]]()
        for binding in view.bindings:
            if op_name(binding.value) != OP:
                continue
            softmax = found_of(view, binding.var, binding.value)
            scores = _product(view, softmax.args[0]) if softmax.args else None
            if scores is None:
                continue
            reason = "" if arch >= OLDEST else f"sm_{arch}: from sm_{OLDEST} on"
            try:
                taken += [] if reason else [_attention(view, softmax, scores)]
            except Stays as stays:
                reason = str(stays)
            reasons.append((str(binding.var.name), reason))
        writer = _Writer(taken, symbols)
        forward = iter(writer.forward)
        for name, reason in reasons:
            symbol = "" if reason else next(forward)
            entries.append(DirectEntry(str(var.name_hint), name, "attention", symbol, reason))
        if taken:
            out.update_func(var, without_unused(rebuilt(func, writer.bindings)))
    return with_source(out, symbols, arch), tuple(entries)


# ---- one attention -------------------------------------------------------------------------------


class _Operand(NamedTuple):
    """An argument of a product, which is matrices, or with `turned` their transposes."""

    arg: Expr
    product: relax.Var
    turned: bool = False


class _Result(NamedTuple):
    """The tensor that has matrices of products, and where; `between` are those before it."""

    var: relax.Var
    places: tuple[Place, ...]
    between: tuple[relax.Var, ...]


class _Call(NamedTuple):
    """A call, its operands, its results, and the product in whose place it is."""

    call: AttentionCall
    args: list[Expr]
    results: list[relax.Var]
    product: relax.Var


@dataclass
class _Gradient:
    """An attention's gradient: its result's, and one result of dq, dk and dv, or three; `product`
    is the first of the four, `wide` what else reads of the scores' gradient."""

    dout: _Operand
    results: tuple[_Result, ...]
    product: relax.Var
    wide: relax.Var | None


@dataclass
class _Attention:
    """What was found: q, k and v, and the result.

    like : the call but for its places.  outer : axes of the matrices, their sizes.
    product : the one that gives the result.  added : to the scores.
    """

    view: Graph
    like: AttentionCall
    outer: list[Any]
    operands: tuple[_Operand, _Operand, _Operand]
    out: _Result
    product: relax.Var
    added: list[Expr]
    gradient: _Gradient | None = None

    def __post_init__(self) -> None:
        ty = relax.TensorType([*self.outer, self.like.rows], "float32")
        self.logs = relax.DataflowVar(f"{self.product.name}_logs", ty)
        self.inner = relax.DataflowVar(f"{self.product.name}_inner", ty)

    @property
    def between(self) -> set[relax.Var]:
        """What its calls do not write."""
        results = () if self.gradient is None else self.gradient.results
        return {var for one in (self.out, *results) for var in one.between}

    def calls(self, gone: Collection[relax.Var] = ()) -> list[_Call]:
        """Its calls, which do not read what is gone where they need not.  Raises Stays."""
        read = [_place(self.view, one, self.outer, gone) for one in self.operands]
        places, args = [place for place, _ in read], [tensor for _, tensor in read]
        places += self.out.places
        call = _checked(replace(self.like, places=tuple(places)))
        found = [_Call(call, [*args, *self.added], [self.out.var, self.logs], self.product)]
        if (back := self.gradient) is None:
            return found
        place, dout = _place(self.view, back.dout, self.outer, gone)
        written_to = [p for one in back.results for p in one.places]
        call = replace(
            self.like, direction="backward", places=(*places, place, *written_to),
            results=tuple(i for i, one in enumerate(back.results) for _ in one.places),
            wide=back.wide is not None,
        )  # fmt: skip
        wide = [] if back.wide is None else [back.wide]
        results = [*(one.var for one in back.results), *wide, self.inner]
        args = [*args, self.out.var, self.logs, dout, *self.added]
        return [*found, _Call(_checked(call), args, results, back.product)]


def _checked(call: AttentionCall) -> AttentionCall:
    decision = check(replace(call, symbol=ATTENTION.codegen))
    if not decision:
        raise Stays(decision.reason)
    return call


def _product(view: Graph, expr: Expr) -> relax.Var | None:
    """The product that a tensor is, but for its shape."""
    var = view.resolved(expr)
    while (call := view.call(var, *RESHAPES)) is not None:
        var = view.resolved(call.args[0])
    return var if view.call(var, MATMUL) is not None else None


def _attention(view: Graph, softmax: Softmax, scores: relax.Var) -> _Attention:
    """The attention of a softmax of scores.  Raises Stays."""
    dtype, (q, k) = softmax.call.dtype, view.value[scores].args
    if dtype not in HALVES or any(str(x.ty.dtype) != dtype for x in (q, k)):
        raise Stays(f"weights of {dtype}, q and k of {q.ty.dtype} and {k.ty.dtype}")
    if not isinstance(softmax.var, relax.DataflowVar):
        raise Stays("outside of a dataflow block")
    sizes, width = sizes_of(scores.ty), (sizes_of(q.ty) or [None])[-1]
    if sizes is None or not all(isinstance(n, int) for n in (*sizes[1:], width)):
        raise Stays(f"sizes that are known when it runs: {q.ty} and {k.ty}")
    *outer, rows, columns = sizes
    if len(outer) > OUTER:
        raise Stays(f"matrices along {len(outer)} axes, at most {OUTER}")
    products = _products_of(view, [softmax.made, *softmax.others], _members(softmax))
    out = products.pop(False, None)
    if out is None:
        raise Stays("no product is of the weights and v")
    known = [n if isinstance(n, int) else 0 for n in outer]
    like = AttentionCall(
        "", "forward", dtype, str(width), (*known, *[1] * (OUTER - len(outer))), rows, columns,
        softmax.call.scale, (), added=softmax.call.added,
    )  # fmt: skip
    v = _Operand(view.value[out].args[1], out)
    made = _Attention(
        view, like, outer, (_Operand(q, scores), _Operand(k, scores, turned=True), v),
        _result(view, dtype, _sized(view, out, [*outer, rows, width])), out, softmax.args[1:],
    )  # fmt: skip
    _together(view, softmax.var, scores, out)
    if products or softmax.gradients:
        made.gradient = _gradient(made, softmax, products.get(True))
    made.calls()
    return made


def _members(softmax: Softmax) -> set[relax.Var]:
    """What reads the weights for their gradients."""
    return {var for one in softmax.gradients for var in one.members}


def _gradient(made: _Attention, softmax: Softmax, dv: relax.Var | None) -> _Gradient:
    """The gradient of an attention.  Raises Stays."""
    view, like = made.view, made.like
    if dv is None or len(softmax.gradients) != 1:
        raise Stays(f"{len(softmax.gradients)} gradients of softmax, and v's {dv}")
    (found,) = softmax.gradients
    if not math.isclose(found.scale, like.scale, rel_tol=1e-6):
        raise Stays(f"scores times {like.scale}, their gradient times {found.scale}")
    of_weights = _product(view, found.given)
    if of_weights is None:
        raise Stays("the weights' gradient is no product")
    products = _products_of(view, [found.result], ())
    if set(products) != {False, True}:
        raise Stays("gradients of q and k that are not one product each")
    dq, dk = products[False], products[True]
    dout, v = view.value[of_weights].args
    _together(view, made.product, dv, of_weights, dq, dk)
    width = int(like.width)
    of_rows, of_columns = ([*made.outer, n, width] for n in (like.rows, like.columns))
    _sized(view, of_weights, [*made.outer, like.rows, like.columns])
    given = [_Operand(dout, of_weights), _Operand(view.value[dv].args[1], dv)]
    for one, other in (
        given,
        (_Operand(v, of_weights, turned=True), made.operands[2]),
        (_Operand(view.value[dq].args[1], dq), made.operands[1]),
        (_Operand(view.value[dk].args[1], dk), made.operands[0]),
    ):
        if not _are_one(*(_place(view, x, made.outer) for x in (one, other))):
            raise Stays("a gradient of other operands")
    ends = [
        _sized(view, dq, of_rows), _sized(view, dk, of_columns), _sized(view, dv, of_columns)
    ]  # fmt: skip
    results = _joined(view, like.dtype, ends) or tuple(_result(view, like.dtype, e) for e in ends)
    # The first may come before the other's view of the same tensor.
    first = min(given, key=lambda one: view.index[one.product])
    return _Gradient(first, results, first.product, found.var if found.wide else None)


def _together(view: Graph, *variables: relax.Var) -> None:
    if len({view.block[var] for var in variables}) > 1:
        raise Stays("parts of it are in several blocks")


def _sized(view: Graph, product: relax.Var, sizes: Sequence[Any]) -> relax.Var:
    """The product, which has these sizes."""
    own = sizes_of(product.ty)
    if own is None or len(own) != len(sizes) or not all(map(structural_equal, own, sizes)):
        raise Stays(f"a product of {product.ty}, expected {list(sizes)}")
    return product


def _are_one(a: tuple[Place, Expr], b: tuple[Place, Expr]) -> bool:
    return a[0] == b[0] and bool(a[1].same_as(b[1]))


# ---- who reads -----------------------------------------------------------------------------------


def _products_of(
    view: Graph, tensors: Sequence[relax.Var], others: Collection[relax.Var]
) -> dict[bool, relax.Var]:
    """The products that alone read matrices, or with True their transposes, as first operands.

    tensors : the matrices, by several names; others : what may read them besides.  Raises Stays.
    """
    found, waiting = dict[bool, relax.Var](), list(tensors)
    while waiting:
        var = waiting.pop()
        if var in view.results:
            raise Stays(f"{var.name} is a result")
        for use in (use for use in view.uses.get(var, ()) if use.binding.var not in others):
            value = use.binding.value
            if isinstance(value, relax.Var) or op_name(value) in (PERMUTE, *RESHAPES):
                waiting.append(use.binding.var)
                continue
            is_first = op_name(value) == MATMUL and use.argument == 0
            turned = _turned(view, var, use.binding.var, tensors) if is_first else None
            if turned is None or turned in found:
                raise Stays(f"{use.binding.var.name} reads {var.name}")
            found[turned] = use.binding.var
    return found


def _turned(
    view: Graph, arg: relax.Var, user: relax.Var, tensors: Sequence[relax.Var]
) -> bool | None:
    """Whether an operand is some matrices' transposes; None where it is neither them."""
    for axes, first, tensor in origins(view, arg, user):
        if axes is not None and tensor in tensors:
            own = whole(sizes_of(tensor.ty) or [])
            plain, made = matrices(own) if own else None, matrices(axes, first)
            if plain is not None and made is not None:
                return made.turned if made == replace(plain, turned=made.turned) else None
    return None


def _place(
    view: Graph, operand: _Operand, outer: Sequence[Any], gone: Collection[relax.Var] = ()
) -> tuple[Place, Expr]:
    """Where an operand's matrices are, and in which tensor: of those of which it is a view, and
    that are not gone if there is one, the one that was there first.  Raises Stays."""
    found = None
    for axes, first, tensor in origins(view, operand.arg, operand.product):
        if axes is None or (found is not None and tensor in gone):
            continue
        spread = repeated(axes, [*outer, *(size for size, _ in axes[-2:])])
        place = _of(spread if not operand.turned else [*spread[:-2], spread[-1], spread[-2]], first)
        found = found if place is None else (place, tensor)
    if found is None:
        raise Stays(f"rows that are not side by side: {operand.arg.ty}")
    return found


def _of(axes: Sequence[Axis] | None, first: int = 0) -> Place | None:
    """The place of matrices along axes, their rows and their columns, which are side by side."""
    if not axes or axes[-1][1] != 1 or len(axes) > OUTER + 2:
        return None
    *outer, (_, row), _ = axes
    steps = [step for _, step in outer]
    return Place(first, (*steps, *[0] * (OUTER - len(steps))), row)


# ---- what is written -----------------------------------------------------------------------------

# A variable that has a product's matrices, and the steps from the product to it, each a call and
# its operand's sizes.
_End = tuple[relax.Var, list[tuple[relax.Call, Any]]]


def _ends(view: Graph, var: relax.Var, dtype: str) -> list[_End]:
    """A tensor of a dtype, or what is rounded to it, and what moves it, as far as that alone is
    made of it."""
    steps, found = list[tuple[relax.Call, Any]](), list[_End]()
    while True:
        if str(var.ty.dtype) == dtype:
            found.append((var, list(steps)))
        use = view.sole_use(var)
        call = None if use is None else view.call(use.var, CAST, PERMUTE, *RESHAPES)
        rounds = op_name(call) == CAST
        if call is None or (rounds and (found or str(call.ty.dtype) != dtype)):
            break
        steps += [] if rounds else [(call, sizes_of(var.ty))]
        var = use.var
    if not found:
        raise Stays(f"{var.name} is {var.ty.dtype}")
    return found


def _before(end: _End, axes: Sequence[Axis] | None) -> list[Axis] | None:
    """What axes of a variable are of the product that it is made of."""
    made = list(axes) if axes else None
    for step, sizes in reversed(end[1]):
        made = made and undone(made, step, sizes)
    return made


def _moved(ends: Sequence[_End]) -> list[_End]:
    """Of ends those that are not another shape alone, the last first."""
    return [
        end
        for end in reversed(ends)
        if not end[1] or op_name(end[1][-1][0]) == PERMUTE or end is ends[0]
    ]


def _result(view: Graph, dtype: str, product: relax.Var) -> _Result:
    """Where a product's result is written: the last tensor that it becomes whose rows are its."""
    ends = _ends(view, product, dtype)
    for end in _moved(ends):
        place = _of(_before(end, whole(sizes_of(end[0].ty) or [])))
        if place is not None:
            between = [var for var, _ in ends[: ends.index(end)]]
            return _Result(end[0], (place,), tuple(between))
    raise Stays(f"{product.name}: rows that are not side by side")


def _joined(view: Graph, dtype: str, products: Sequence[relax.Var]) -> tuple[_Result, ...] | None:
    """The tensor that has the results of several products, side by side along one axis, and no
    others; None: there is none."""
    ends = [_ends(view, product, dtype) for product in products]
    last = [some[-1] for some in ends]
    total, *others = (_total(view, var) for var, _ in last)
    pieces = None if total is None or set(others) != {total} else _pieces(view, total)
    if total is None or pieces is None:
        return None
    axis, parts = pieces
    by = {var: (begin, length) for begin, (length, var) in parts.items()}
    is_whole = sum(length for length, _ in parts.values()) == (sizes_of(total.ty) or [])[axis]
    if not is_whole or set(by) != {var for var, _ in last}:
        return None
    of_total = _ends(view, total, dtype)
    for end in _moved(of_total):
        axes, places = _before(end, whole(sizes_of(end[0].ty) or [])), list[Place | None]()
        if not axes:
            continue
        for one in last:
            begin, length = by[one[0]]
            step = axes[axis][1]
            cut = [*axes[:axis], (length, step), *axes[axis + 1 :]]
            places.append(_of(_before(one, cut), begin * step))
        if None not in places:
            between = [var for some in (*ends, of_total[: of_total.index(end)]) for var, _ in some]
            return (_Result(end[0], tuple(p for p in places if p), tuple(between)),)
    return None


def _total(view: Graph, var: relax.Var) -> relax.Var | None:
    """The sum of all joins that a variable is in."""
    use = view.sole_use(var)
    if use is not None and isinstance(use.value, relax.Tuple):
        use = view.sole_use(use.var)
    if use is None or op_name(use.value) != CONCAT:
        return None
    total: relax.Var = use.var
    while (use := view.sole_use(total)) is not None and op_name(use.value) == ADD:
        total = use.var
    return total


# Of a tensor that is joined: the axis, and by where it begins each part's length and variable.
_Pieces = tuple[int, dict[int, tuple[int, relax.Var]]]


def _pieces(view: Graph, var: relax.Var) -> _Pieces | None:
    """What a variable is joined of, or what it is a sum of that has zeros where the others have
    something; None where it is something else."""
    call, sizes = view.call(view.resolved(var), CONCAT, ADD), sizes_of(var.ty)
    if call is None or sizes is None or not all(isinstance(n, int) for n in sizes):
        return None
    if op_name(call) == ADD:
        first, second = (_pieces(view, arg) for arg in call.args)
        same = all(sizes_of(arg.ty) == sizes for arg in call.args)
        if first is None or second is None or first[0] != second[0] or not same:
            return None
        parts = sorted([*first[1].items(), *second[1].items()], key=lambda part: part[0])
        ends = [begin + length for begin, (length, _) in parts]
        apart = all(end <= begin for end, (begin, _) in zip(ends, parts[1:], strict=False))
        return (first[0], dict(parts)) if apart else None
    fields = view.bound_to(call.args[0])
    if not isinstance(fields, relax.Tuple) or call.attrs.axis is None:
        return None
    axis, begin, found = int(call.attrs.axis) % len(sizes), 0, {}
    for one in fields.fields:
        length = (sizes_of(one.ty) or sizes)[axis]
        if view.call(view.resolved(one), ZEROS) is None:
            found[begin] = (length, one)
        begin += length
    return axis, found


# ---- writing -------------------------------------------------------------------------------------


class _Writer:
    """Writes calls for what was found, each in the place of a product.

    forward : the function of each forward call.
    """

    def __init__(self, taken: Sequence[_Attention], symbols: Symbols) -> None:
        gone = {var for one in taken for var in one.between}
        made = [one.calls(gone) for one in taken]
        calls = [call for some in made for call in some]
        self.forward = [symbols.of(some[0].call) for some in made]
        self.symbols, self.results = symbols, {var for one in calls for var in one.results}
        self.at = {one.product: (f"attention_{i}", one) for i, one in enumerate(calls)}

    def bindings(self, block: Block) -> list[Any]:
        out: list[Any] = []
        for binding in block.bindings:
            if binding.var in self.at:
                name, one = self.at[binding.var]
                out += written(self.symbols.of(one.call), one.args, one.results, name)
            if binding.var not in self.results:
                out.append(binding)
        return out
