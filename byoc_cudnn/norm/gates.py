"""A gate after a normalization becomes a part of it, forward and backward: squeeze and excitation.

A gate is a number for each channel of an image, made of the means over its pixels of what the
normalization gives, and multiplies that.  What makes the gate stays: here is what reads and writes
whole tensors.  As front ends write it that is forward the normalization's passes, the mean's and
the product's, which move a tensor six times; backward that of the gate's gradient, that of the
product's and the mean's, and the normalization's, nine times.  The kernels (`norm_gated.h`) move it
four and five times: what the normalization gives is made of x again where it is used, and is never
in memory.  A residual that is added to the product, and ReLU after it, are in the pass that writes.
Where ReLU ends it, what that lets through goes backward as bits, and the pass that makes the gate's
gradient takes ReLU's from them: also of two gradients, whose sum it is of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.match import call, match
from relay_wgrad.ir import beside, op_name
from relay_wgrad.layout_rules.in_layout import sizes_of

from ..codegen.lowering import Field, Plan, Site, same_type

CAST, RELU = "relax.astype", "relax.nn.relu"
_MASK = call("relax.where", call("relax.less_equal", "y", 0.0, name="low"), 0.0, "g")
_SUMS = ("relax.collapse_sum_to", "relax.sum")
VECTOR = 16  # bytes of a row for which a mask has a byte
Expr = Any


@dataclass
class _Gate:
    """What stands around a gate.

    mean, gate : the squeezed tensor's variable, and what multiplies.  out : what is written.
    dy, dgate, lift : the product's gradient, the gate's, and the mean's for one pixel.
    backward : the normalization's backward call.  gone : variables that nothing makes any more.
    """

    mean: relax.Var
    gate: Expr
    out: relax.Var
    residual: Expr
    last: str
    dy: Expr
    dgate: relax.Var
    lift: Expr
    backward: relax.Var
    gone: set[relax.Var]


@dataclass
class _Through:
    """A gradient that ReLU lets through: its variable, the one or two that it is of, what is
    between."""

    var: relax.Var
    of: list[Expr]
    gone: set[relax.Var]


def mask_type(x: relax.TensorType) -> relax.TensorType:
    """A byte for each 16 bytes of a row: what an activation lets through."""
    *rows, channels = x.shape.values
    each = VECTOR // tvm.runtime.DataType(str(x.dtype)).itemsize
    return relax.TensorType([*rows, (channels + each - 1) // each], "uint8")


def take_gates(plan: Plan, bits: bool = True) -> None:
    """Into all normalizations of a batch that a gate alone follows, both directions of which go.

    bits : whether what a last ReLU lets through goes backward as bits.
    """
    for var, site in list(plan.sites.items()):
        plain = not (site.call.residual or site.call.grouped)
        if site.call.forward and plain and not plan.function.is_whole(var):
            found = _found(plan, var)
            if found is not None:
                through = _through(plan, found) if bits and found.last else None
                _take(plan, var, found, through)


def _found(plan: Plan, forward: relax.Var) -> _Gate | None:
    view = plan.function
    ys = {v for i, v in view.fields_of(forward) if i == 0}
    wide = {b.var for b in view.users_of(*ys) if _is_widening(b)} or ys
    if any(v in view.results for v in ys | wide):
        return None
    others = [b for b in view.users_of(*ys) if b.var not in ys | wide]
    users = [b for b in view.users_of(*wide) if b.var not in wide]
    if len(ys) != 1 or len(wide) != 1 or len(users) != 3 or (wide != ys and others):
        return None
    (y,), dtype = wide, str(plan.sites[forward].call.dtype)
    means = [b for b in users if op_name(b.value) == "relax.mean"]
    products = [b for b in users if op_name(b.value) == "relax.multiply"]
    if len(means) != 1 or len(products) != 2 or not _is_squeezed(means[0].value, y):
        return None
    for product, gradient in (products, products[::-1]):
        factor = beside(product.value, y)
        spread = view.call(factor, "relax.broadcast_to")
        gate = factor if spread is None else spread.args[0]
        dgate = view.sole_use(gradient.var)
        if not _is_of_images(gate, y) or dgate is None or dgate.var in view.results:
            continue
        if op_name(dgate.value) not in _SUMS or not _is_of_images(dgate.var, y):
            continue
        written = _written(view, product.var, dtype)
        wide_dy = beside(gradient.value, y)
        dy = narrowed(view, wide_dy, dtype)
        back = _backward(plan, forward, wide_dy, factor) if dy is not None else None
        if written is None or back is None or dy is None:
            continue
        out, residual, last, between = written
        backward, lift, gone = back
        gone |= {*ys, y, product.var, gradient.var, *between} - {out}
        if spread is not None and gone.issuperset(b.var for b in view.users_of(factor)):
            gone.add(factor)
        return _Gate(
            means[0].var, gate, out, residual, last, dy, dgate.var, lift, backward, gone
        )  # fmt: skip
    return None


def _is_widening(binding: Any) -> bool:
    return op_name(binding.value) == CAST and str(binding.var.ty.dtype) == "float32"


def _is_squeezed(call: relax.Call, y: relax.Var) -> bool:
    """Whether a mean is over all axes but the images' and the channels', which are the last."""
    axes = call.attrs.axis
    over = sorted(int(a) % y.ty.ndim for a in axes) if axes is not None else []
    return over == list(range(1, y.ty.ndim - 1))


def _is_of_images(expr: Expr, y: relax.Var) -> bool:
    """Whether a tensor has a number for each channel of an image, beside y."""
    if not isinstance(getattr(expr, "ty", None), relax.TensorType):
        return False
    sizes, whole = sizes_of(expr.ty), sizes_of(y.ty)
    if sizes is None or whole is None or str(expr.ty.dtype) != str(y.ty.dtype):
        return False
    known = all(isinstance(n, int) for n in whole) and len(whole) > 2
    return known and sizes == [whole[0], *[1] * (len(whole) - 2), whole[-1]]


def narrowed(view: Graph, expr: Expr, dtype: str) -> Expr:
    """A tensor in a dtype, before casts if those give it; None where it is of another."""
    while expr is not None and str(expr.ty.dtype) != dtype:
        cast = view.call(expr, CAST)
        if cast is None:
            return None
        expr = cast.args[0]
    # To float32 and back a half stays what it is.
    back = None if expr is None else view.call(expr, CAST)
    if back is None or str(back.args[0].ty.dtype) != "float32":
        return expr
    wide = view.call(back.args[0], CAST)
    half = None if wide is None else wide.args[0]
    return narrowed(view, half, dtype) if half is not None and str(half.ty.dtype) == dtype else expr


def _written(
    view: Graph, product: relax.Var, dtype: str
) -> tuple[relax.Var, Expr, str, set[relax.Var]] | None:
    """Of a product: (what is written in `dtype`, its residual, its activation, what is between).

    What is rounded on the way, and used no otherwise, is not: products and sums are float32.
    """
    found, residual, last = None, None, ""
    between: set[relax.Var] = set()
    at = product
    while True:
        if str(at.ty.dtype) == dtype:
            found = at, residual, last, set(between)
        user = view.sole_use(at)
        name = "" if user is None or last else op_name(user.value)
        if name == "relax.add" and residual is None:
            residual = narrowed(view, beside(user.value, at), dtype)
            if residual is None or sizes_of(residual.ty) != sizes_of(at.ty):
                return found
        elif name == RELU and residual is not None and str(at.ty.dtype) == dtype:
            last = "relu"
        elif name != CAST:
            return found
        between.add(at)
        at = user.var


def _backward(
    plan: Plan, forward: relax.Var, dy: Expr, factor: Expr
) -> tuple[relax.Var, Expr, set[relax.Var]] | None:
    """(the backward call, the mean's part of its gradient, what is between)."""
    view = plan.function
    for product in view.users_of(dy) if isinstance(dy, relax.Var) else ():
        if op_name(product.value) != "relax.multiply" or not _is(beside(product.value, dy), factor):
            continue
        total = view.sole_use(product.var)
        if total is None or op_name(total.value) != "relax.add":
            continue
        spread = beside(total.value, product.var)
        lift = view.call(spread, "relax.broadcast_to")
        if lift is None or not view.only_use(spread) or not _is_of_images(lift.args[0], total.var):
            continue
        between = {product.var, total.var, spread}
        at, user = total.var, view.sole_use(total.var)
        if user is not None and op_name(user.value) == CAST:
            between.add(user.var)
            at, user = user.var, view.sole_use(user.var)
        site = None if user is None else plan.sites.get(user.var)
        if site is None or site.call.direction != "backward" or not _is(site.args[0], at):
            continue
        if site.call.stored or site.call.grouped or not _same(plan, forward, user.var):
            continue
        return user.var, lift.args[0], between
    return None


def _is(a: Expr, b: Expr) -> bool:
    return a is not None and bool(a.same_as(b))


def _same(plan: Plan, forward: relax.Var, backward: relax.Var) -> bool:
    """Whether a backward call is that of a forward one."""
    view, one, back = plan.function, plan.sites[forward], plan.sites[backward]
    told = [
        any(i == k - 3 and _is(view.resolved(back.args[k]), v) for i, v in view.fields_of(forward))
        for k in (4, 5)
    ]
    alike = all(getattr(one.call, n) == getattr(back.call, n) for n in ("activation", "alpha"))
    return alike and all(told) and all(map(_is, back.args[1:4], one.args[:3]))


def _through(plan: Plan, found: _Gate) -> _Through | None:
    """Where the product's gradient is what ReLU lets through of y's; None where it is not."""
    view, dy = plan.function, found.dy
    masked = match(view, _MASK, dy)
    if not masked or not _is(view.resolved(masked["y"]), found.out):
        return None
    g, low = masked["g"], masked["low"]
    if not same_type(g, dy):
        return None
    gone = {low} if view.only_use(low) else set()
    total = view.call(g, "relax.add") if view.only_use(g) else None
    if total is not None and all(same_type(arg, dy) for arg in total.args):
        return _Through(dy, list(total.args), gone | {g})
    return _Through(dy, [g], gone)


def _take(plan: Plan, forward: relax.Var, found: _Gate, through: _Through | None) -> None:
    view, sites = plan.function, plan.sites
    one, back = sites[forward], sites[found.backward]
    x: Expr
    x, gamma, beta = one.args[:3]
    types = list(view.value[forward].ty.fields)
    sums = relax.TensorType(
        [4, found.dgate.ty.shape.values[0], x.ty.shape.values[-1]], str(found.dgate.ty.dtype)
    )
    known = [x, gamma, beta, Field(forward, 0), Field(forward, 1)]
    one.call = replace(one.call, direction="squeeze")
    one.fields = [*types[1:3], found.mean.ty, *types[3:]]
    plan.fields[forward] = (forward, {1: 0, 2: 1, 3: 3, 4: 4})
    plan.renamed[found.mean] = (forward, 2)
    plain = replace(one.call, running=False)
    residual = [] if found.residual is None else [found.residual]
    sites[found.out] = Site(
        replace(plain, direction="excite", residual=bool(residual), last=found.last),
        [*known, found.gate, *residual],
    )
    of_sums = replace(plain, direction="gate_sums")
    back.call = replace(plain, direction="gate_backward")
    back.args = [found.dy, *known, found.gate, found.lift]
    if through is None:
        sites[found.dgate] = Site(of_sums, [found.dy, *known], extra=sums)
        plan.takes[found.backward] = (len(back.args), found.dgate)
        back.args.append(found.dgate)  # the sums, once they are there
    else:
        # Told by y's pass, ReLU's gradient is written by the one that sums it, in its place.
        out = sites[found.out]
        out.call, out.extra = replace(out.call, bits=True), mask_type(found.out.ty)
        sites[through.var] = Site(
            replace(of_sums, bits=True, summed=len(through.of) > 1),
            [*through.of, *known, found.out], fields=[through.var.ty, found.dgate.ty, sums],
        )  # fmt: skip
        plan.takes[through.var] = (len(through.of) + len(known), found.out)
        plan.renamed[found.dgate] = (through.var, 1)
        back.args.append(Field(through.var, 2))
        plan.dropped |= through.gone
    plan.dropped |= found.gone
