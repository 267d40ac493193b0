"""`RaiseConvBackward`: gradients written with other ops become the family's own ops again.

A weight gradient has been written as Relay's tile, reshape, grouped conv2d, reshape, sum and
transpose, as Relax's conv2d with layouts CNHW and IOHW, and as what layout conversion makes of
either; a data gradient as a convolution of the padded, dilated gradient with flipped weights.
Patterns for all of these would be many and would take equal sizes for equal axes.  Here each
tensor between its source and the result is an exact map of indices instead (`index`,
`ops`), a convolution of two such maps a sum over indices (`product`), and whether that
sum is a gradient is read off where each index occurs (`match`).  How it was written, and what
was moved in between, does not matter, and nothing is raised that this does not prove.  What the
proof does not cover is rounding: the op sums in float32 what the composite may sum in float16.

One walk forward gives each variable its map; then each convolution's result is followed to the last
variable that is a whole gradient.  That one becomes the op, and what it alone needed is dropped.
Everything is linear in the program's length.

What is found are changes first (`changes_in`): Relay's pass has its programs analysed here, and
writes the result back itself.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op
from tvm_ffi import structural_equal

from ...graph.def_use import ELSEWHERE, Graph
from ...graph.rebuild import bound, normal, rebuilt
from ...graph.walk import Block, blocks_of, functions_in, variables_of
from ...ir import is_taken
from ...ops.algebra import DGRAD_NAME, WGRAD_NAME, get_op
from ...ops.call_problem import problem_of
from ..surface import ModulePass, check_relax_module
from .index import Barrier, View, itself
from .match import MINOR_GROUPS, data_gradient, weight_gradient
from .ops import VIEWS, viewed
from .product import Product, describe, followed, is_forward, product
from .report import RaiseEntry, RaiseReport

CONV2D = "relax.nn.conv2d"
MATCH = {"wgrad": weight_gradient, "dgrad": data_gradient}
Accept = Callable[[relax.Var, relax.Var, relax.Call], None]


@dataclass(frozen=True)
class Changes:
    """What changes in a function.

    `new` : the call that becomes a variable's value; `dropped` : variables that only the old
    values needed; `entries` : one for each convolution that is or resembles a gradient.
    """

    new: Mapping[relax.Var, relax.Call]
    dropped: frozenset[relax.Var]
    entries: tuple[RaiseEntry, ...]

    def rewrite(self, block: Block) -> list[relax.Binding]:
        """A block's bindings with the changes."""
        kept = (b for b in block.bindings if b.var not in self.dropped)
        return [bound(b, self.new.get(b.var, b.value)) for b in kept]


def changes_in(
    name: str,
    func: relax.Function,
    accept: Accept = lambda convolution, var, call: None,
    hidden: Collection[relax.Var] = (),
) -> Changes:
    """What would change in a function, which stays as it is.

    `accept(convolution, var, call)` is asked of each call before it becomes the value of `var`, and
    raises Barrier with the reason where it can't.  A `hidden` variable is looked through, but gets
    no new value and is no operand.
    """
    return _Planner(name, func, accept, hidden).run()


def raise_conv_backward(mod: tvm.IRModule) -> tuple[tvm.IRModule, RaiseReport]:
    """The module with its convolution gradients as the family's ops, and what was found.

    Functions that a backend took (attribute `Composite` or `Codegen`) stay as they are.  Warns of
    Relay's composite for 1 < groups < channels, which is no weight gradient.

    Raises
    ------
    TypeError : for what is no module.
    RuntimeError : before `relay_wgrad.register()`.
    """
    check_relax_module("raise_conv_backward", mod, counterpart="RaiseConvBackward")
    for name in (WGRAD_NAME, DGRAD_NAME):
        get_op(name)
    entries: list[RaiseEntry] = []
    out = mod.clone()
    for gv, func, changes in _changes(mod):
        entries += changes.entries
        if changes.new:
            out.update_func(gv, rebuilt(func, changes.rewrite))
    warn_of_groups(entries, stacklevel=3)
    changed = any(entry.raised for entry in entries)
    return (out if changed else mod), RaiseReport(entries)


def find_conv_backward(mod: tvm.IRModule) -> RaiseReport:
    """What `raise_conv_backward` would find in a module, which stays as it is."""
    return RaiseReport([entry for _, _, changes in _changes(mod) for entry in changes.entries])


def _changes(mod: tvm.IRModule) -> Iterator[tuple[tvm.ir.GlobalVar, relax.Function, Changes]]:
    for gv, func in functions_in(mod):
        if not is_taken(func):
            yield gv, func, changes_in(str(gv.name_hint), func)


def warn_of_groups(entries: Iterable[RaiseEntry], stacklevel: int) -> None:
    """Warns of each composite that pairs groups wrongly."""
    for entry in entries:
        if entry.reason.startswith(MINOR_GROUPS):
            message = f"{entry.function}: %{entry.node}: {entry.reason}"
            warnings.warn(message, stacklevel=stacklevel)


def RaiseConvBackward(  # noqa: N802 - a pass
    on_report: Callable[[RaiseReport], None] | None = None,
) -> tvm.ir.transform.Pass:
    """`raise_conv_backward` as a module pass; `on_report` is called with each module's report."""

    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        mod, report = raise_conv_backward(mod)
        if on_report is not None:
            on_report(report)
        return mod

    return ModulePass("RaiseConvBackward", run, counterpart="RaiseConvBackward")


# ---- one function --------------------------------------------------------------------------------


class _Planner:
    """Which bindings of a function change."""

    def __init__(
        self, name: str, func: relax.Function, accept: Accept, hidden: Collection[relax.Var]
    ) -> None:
        self.name = name
        self.func = func
        self.accept = accept
        self.hidden = hidden
        self.entries: list[RaiseEntry] = []
        self.graph = Graph(func)
        self.new: dict[relax.Var, relax.Call] = {}

    def run(self) -> Changes:
        for block in blocks_of(self.func):
            _BlockPlanner(self, block).run()
        return Changes(self.new, self._dropped(), tuple(self.entries))

    def _dropped(self) -> frozenset[relax.Var]:
        """What only the old calls needed: all of it is what this pass looks through."""
        graph, dropped = self.graph, set[relax.Var]()
        uses = Counter({var: len(found) for var, found in graph.uses.items()})
        uses.update(graph.results)
        rest = [graph.value[var] for var in self.new]
        for value in self.new.values():
            uses.update(variables_of(value))
        while rest:
            used = variables_of(rest.pop())
            uses.subtract(used)
            for var in dict.fromkeys(used):
                if uses[var] or var not in graph.value or var in dropped:
                    continue
                dropped.add(var)
                # A gradient that only another one needed has lost its old operands already.
                rest.append(self.new.get(var, graph.value[var]))
        return frozenset(dropped)


class _BlockPlanner:
    """One block: operands and results are followed within it only, so all are in scope."""

    def __init__(self, owner: _Planner, block: Any) -> None:
        self.owner, self.graph = owner, owner.graph
        self.block = block
        self.views: dict[relax.Expr, View] = {}
        self.spread: dict[relax.Expr, View] = {}
        self.products: dict[relax.Expr, Product] = {}
        self.convolutions: dict[relax.Var, str] = {}  # to the kind of gradient that it may be
        self.ended: dict[relax.Var, str] = {}  # why a product is followed no further

    def run(self) -> None:
        for binding in self.block.bindings:
            var, value = binding.var, binding.value
            if isinstance(binding, relax.MatchCast):
                continue
            if isinstance(value, relax.Var):
                self._alias(value, var)
            elif isinstance(value, relax.Call) and isinstance(value.op, Op) and value.args:
                self._call(str(value.op.name), value, var)
        for var, kind in self.convolutions.items():
            self._raise(var, kind)

    # ---- forward: what each variable is ----------------------------------------------------------

    def _alias(self, value: relax.Var, var: relax.Var) -> None:
        with suppress(Barrier):
            self.views[var] = self._view(value)
        if value in self.spread:
            self.spread[var] = self.spread[value]
        if value in self.products:
            self.products[var] = self.products[value]

    def _call(self, name: str, call: relax.Call, var: relax.Var) -> None:
        if name == CONV2D:
            self._convolution(call, var)
            return
        source = call.args[0]
        if source in self.products:
            try:
                self.products[var] = followed(name, call, self.products[source])
            except Barrier as why:
                self.ended.setdefault(source, str(why))
        if name not in VIEWS:
            return
        # What is no view of its operand is a tensor of its own, and may be one with zeros.
        anchor = None if var in self.owner.hidden else var
        with suppress(Barrier):
            self.views[var] = viewed(name, call, anchor, self._view(source), spread=False)
        if source in self.spread or var not in self.views:
            with suppress(Barrier):
                zeros = self.spread[source] if source in self.spread else self._view(source)
                self.spread[var] = viewed(name, call, anchor, zeros, spread=True)

    def _view(self, expr: relax.Expr) -> View:
        if expr not in self.views:
            view = itself(expr)
            self.views[expr] = replace(view, anchors=()) if expr in self.owner.hidden else view
        return self.views[expr]

    def _convolution(self, call: relax.Call, var: relax.Var) -> None:
        image, weights = call.args
        try:
            seen, filters = self._view(image), self._view(weights)
            zeros = self.spread.get(image)
            # A flipped filter or zeros between an image's pixels are what a data gradient has.
            dgrad = any(anchor.mirrored for anchor in filters.anchors) or (
                zeros is not None and any(dim.step > 1 for dim in zeros.dims)
            )
            if not dgrad and is_forward(call, seen, filters):
                return
        except Barrier:  # unknown or empty shapes
            return
        self.convolutions[var] = "dgrad" if dgrad else "wgrad"
        try:
            self.products[var] = product(call, zeros if dgrad and zeros else seen, filters)
        except Barrier as why:
            self.ended[var] = str(why)

    # ---- backward: which of them is a gradient ---------------------------------------------------

    def _raise(self, conv: relax.Var, kind: str) -> None:
        """Follows one convolution to the last variable that is a whole gradient."""
        if conv not in self.products:
            self._enter(conv, kind, reason=self.ended[conv])
            return
        chain = [conv]
        while (following := self._next(chain[-1])) is not None:
            chain.append(following)
        reason = ""
        for var in reversed(chain):
            if var in self.owner.hidden:
                continue
            try:
                call = MATCH[kind](self.products[var], var, self._finished(conv, var))
            except Barrier as why:
                reason = reason or f"{why}; {self._end(var)}"
                continue
            self.owner.new[var] = call
            self._enter(var, kind, problem=problem_of(call).repro())
            return
        self._enter(conv, kind, reason=reason)

    def _finished(self, conv: relax.Var, var: relax.Var) -> Callable[[relax.Expr], relax.Call]:
        def finish(made: relax.Expr) -> relax.Call:
            call = _checked(made, var)
            self.owner.accept(conv, var, call)
            return call

        return finish

    def _next(self, var: relax.Var) -> relax.Var | None:
        """The variable that a product goes on in, if nothing else uses it."""
        user = self.graph.sole_use(var)
        return user.var if user is not None and user.var in self.products else None

    def _end(self, var: relax.Var) -> str:
        """Why a product is not followed beyond a variable."""
        users = [
            user if user == ELSEWHERE else f"%{user}" for user in self.graph.describe_uses(var)
        ]
        if len(users) != 1:
            return f"{describe(var)} is used by {' and '.join(users) or 'nothing'}"
        return self.ended.get(var, f"{describe(var)} is used by {users[0]}")

    def _enter(self, var: relax.Var, kind: str, problem: str = "", reason: str = "") -> None:
        self.owner.entries.append(RaiseEntry(self.owner.name, str(var.name), kind, problem, reason))


def _checked(call: relax.Expr, var: relax.Var) -> relax.Call:
    """The typed call, if it is of the variable's own type."""
    try:
        typed: relax.Call = normal(call)
    except (TypeError, ValueError) as error:
        raise Barrier(str(error).strip().splitlines()[-1]) from None
    if not structural_equal(typed.ty, var.ty):
        raise Barrier(f"the gradient would be {typed.ty}, and {describe(var)} is {var.ty}")
    return typed
