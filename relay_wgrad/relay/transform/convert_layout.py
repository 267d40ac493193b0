"""Programs in other layouts: the operators that a user names, and what follows them.

Each value of the old program is known by the orders of its axes in which the new one has it
(`layout_rules.values`).  A named operator asks for its operands in the desired layouts; what has a
rule (`layout_rules.rules`) follows its operands; everything else gets the old layout.  A change of
layout is made when it is first asked for, once for each value and layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...layouts import is_permutation, permutation
from ..ast import (
    Call,
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
from ..infer import span_text
from ..iterative_walks import order
from ..layout_rules.convert import ROLES, checked
from ..layout_rules.own import is_own
from ..layout_rules.rules import MAKERS, RULES
from ..layout_rules.site import Site, original, with_args
from ..layout_rules.values import Fields, Opaque, Order, Results, State, Value, as_state
from ..records import lookup
from ..records.hooks import CONVERT_LAYOUT
from ..rewrite import rewrite, with_children
from ..types import TensorType, TupleType
from ..variables import free_vars
from .alter_op_layout import alter_op_layout
from .user_hooks import attributes, is_kernel, replacement

Desired = Mapping[str, Sequence[str]]


def checked_layouts(given: Any) -> Desired:
    """What a user asks for, checked: operator -> layouts.

    Raises TypeError, ValueError naming the operator and the value; see `layout_rules.convert`.
    """
    if not isinstance(given, Mapping):
        raise TypeError(f"ConvertLayout: expected a mapping of operators to layouts, got {given!r}")
    return {str(op): checked(op, layouts) for op, layouts in given.items()}


def convert_layout(function: Function, mod: IRModule, desired: Desired) -> Function:
    """The function with these operators in these layouts.  Needs types.

    Parameters and results keep the layout that they have, also of functions within it; those that
    are kernels or for a compiler stay as they are.

    Raises
    ------
    TypeError, ValueError : for a registered conversion that gives no expression, or another type.
    """
    named = [layout for op in desired.keys() & ROLES.keys() for layout in desired[op]]
    blocks = not all(layout.isalpha() for layout in named)
    if blocks or any(isinstance(n, Op) and is_own(n.name) for n in post_order(function)):
        return alter_op_layout(function, lambda name: _form(name, desired))
    new: dict[Expr, Expr] = {}
    for node in post_order(function, lambda n: not is_kernel(n)):
        if isinstance(node, Function):
            new[node] = node if is_kernel(node) else _Body(node, mod, desired, new).converted()
    out = new[function]
    assert isinstance(out, Function)
    return out


def _form(name: str, desired: Desired) -> Any:
    """The conversion to layouts with blocks, as AlterOpLayout takes it."""
    hook = CONVERT_LAYOUT.find(name) if name in desired else None
    if hook is None:
        return None
    return lambda attrs, inputs, tinfos, _: hook(attrs, inputs, tinfos, list(desired[name]))


@dataclass
class _Body:
    """The body of one function, without those of functions within it, which `functions` has."""

    function: Function
    mod: IRModule
    desired: Desired
    functions: Mapping[Expr, Expr]
    states: dict[Expr, State] = field(default_factory=dict)
    # variable of the old program -> the new one, and what that is bound to
    bindings: dict[Var, tuple[Var, Expr]] = field(default_factory=dict)

    def converted(self) -> Function:
        body = self.function.body
        scope = list(post_order(body, lambda n: not isinstance(n, Function)))
        self.lets: dict[Expr, Let] = {node.var: node for node in scope if isinstance(node, Let)}
        # A function within sees variables as they are in the old program.
        within = [node for node in scope if isinstance(node, Function)]
        self.kept = {var for node in within for var in free_vars(node)}
        self.last = _last(scope, body)
        nodes = list(order(body, self._below))
        self.wanted = self._wanted(nodes)
        for node in nodes:
            self.states[node] = self._state(node)
        new = original(self.states[body])
        return self.function if new is body else replace(self.function, body=new)

    def _below(self, node: Expr) -> tuple[Expr, ...]:
        """A variable is computed from its value, which may so choose the variable's layout."""
        if isinstance(node, Let):
            return (node.var, node.body)
        if node in self.lets:
            return (self.lets[node].value,)
        return () if isinstance(node, Function) else children(node)

    def _wanted(self, nodes: Sequence[Expr]) -> set[Expr]:
        """The nodes whose value comes to an operator with a desired layout, by ones that follow."""
        wanted: set[Expr] = set()
        for node in reversed(nodes):
            if isinstance(node, Call) and isinstance(node.op, Op):
                name = node.op.name
                if name in self.desired or (node in wanted and name in RULES):
                    wanted.update(node.args)
            elif node in wanted and isinstance(node, (Var, Tuple, TupleGetItem)):
                wanted.update(self._below(node))
            elif node in wanted and isinstance(node, Let):
                wanted.add(node.body)
        return wanted

    # ---- one node --------------------------------------------------------------------------------

    def _state(self, node: Expr) -> State:
        if isinstance(node, Call) and isinstance(node.op, Op):
            return self._operator(node, node.op.name)
        if node in self.lets:
            return self._bound(self.lets[node])
        if isinstance(node, Let):
            return self._let(node)
        if isinstance(node, Tuple):
            return Fields(node, tuple(self.states[f] for f in node.fields))
        if isinstance(node, TupleGetItem):
            return self._item(node)
        if isinstance(node, (Op, GlobalVar)):
            return Opaque(node)
        if isinstance(node, Function):
            return Opaque(self.functions[node])
        new = {child: original(self.states[child]) for child in children(node)}
        return as_state(with_children(node, new), node.checked_type)

    def _item(self, node: TupleGetItem) -> State:
        base = self.states[node.tuple_value]
        if isinstance(base, Results) and not base.parts[node.index].is_old:
            return base.item(node.index)
        if isinstance(base, Fields) and original(base) is not base.node:
            return base.parts[node.index]
        new = base.whole if isinstance(base, Results) else original(base)
        out = as_state(with_children(node, {node.tuple_value: new}), node.checked_type)
        if isinstance(base, Results) and isinstance(out, Value):
            out.axes = base.parts[node.index].axes
        return out

    def _bound(self, let: Let) -> State:
        """A variable, bound to its value in the layout that this has."""
        var, value = let.var, self.states[let.value]
        if var in self.kept or isinstance(value, (Fields, Opaque)):
            self.bindings[var] = (var, original(value))
            return as_state(var, let.value.checked_type)
        new = var if value.is_old else Var(var.name, span=var.span)
        if isinstance(value, Results):
            self.bindings[var] = (new, value.whole)
            return Results(new, value.parts)
        self.bindings[var] = (new, value.get(value.native))
        forms: dict[Order, Expr] = {k: f for k, f in value.forms.items() if isinstance(f, Var)}
        make = value.make if value.free else None
        forms = {**forms, value.native: new}
        return Value(value.type, value.native, forms, value.axes, make, value.free)

    def _let(self, node: Let) -> State:
        body = self.states[node.body]
        if isinstance(body, Value) and node not in self.last:
            out = self._over(node, body.get(body.native))
            return Value(body.type, body.native, {body.native: out}, body.axes)
        return as_state(self._over(node, original(body)), node.checked_type)

    def _over(self, node: Let, body: Expr) -> Let:
        var, value = self.bindings[node.var]
        if var is node.var and value is node.value and body is node.body:
            return node
        return replace(node, var=var, value=value, body=body)

    # ---- operators -------------------------------------------------------------------------------

    def _operator(self, node: Call, name: str) -> State:
        if name in self.desired:
            made = self._desired(node, name)
            if made is not None:
                return made
        args = [self.states[arg] for arg in node.args]
        rule = RULES.get(name)
        if rule is not None and (name in MAKERS or not all(map(_is_old, args))):
            assert node.checked_type is not None
            out = rule(Site(node, args, node.checked_type, node in self.wanted))
            if out is not None:
                return out
        return as_state(with_args(node, [original(arg) for arg in args]), node.checked_type)

    def _desired(self, node: Call, name: str) -> State | None:
        """What a registered conversion makes of a call; None if it leaves the call as it is."""
        hook = CONVERT_LAYOUT.find(name)
        assert hook is not None, name
        tinfos: list[Any] = []
        for arg in node.args:
            ty = arg.checked_type
            tinfos += ty.fields if isinstance(ty, TupleType) else [ty]
        wanted = list(self.desired[name])
        made = hook(attributes(node, name), list(node.args), tinfos, wanted)
        if made is None:
            return None
        if name in ROLES and _only_attributes(made, node):
            return self._with_layouts(node, made, name)
        what = f"{name}: the registered layout conversion"
        out, reached = replacement(made, node, what, self.states.__contains__, self.mod)
        new = {known: original(self.states[known]) for known in reached}
        return as_state(rewrite(out, lambda old, rebuilt: rebuilt, new), node.checked_type)

    def _with_layouts(self, node: Call, made: Call, name: str) -> State:
        """A call like the old one, in the layouts that its attributes say."""
        before, after = (lookup(name).read(call.attrs) for call in (node, made))
        old, old_result = ROLES[name].layouts(before)
        new, new_result = ROLES[name].layouts(after)
        orders = [
            _order(node, name, src, dst)
            for src, dst in zip((*old, old_result), (*new, new_result), strict=True)
        ]
        args = []
        for index, arg in enumerate(node.args):
            state = self.states[arg]
            if isinstance(state, Value) and index < len(old):
                args.append(state.get(orders[index], old[index]))
            else:
                args.append(original(state))
        out = with_args(node, args)
        if before != after:
            out = replace(made, args=tuple(args), span=node.span)
        assert isinstance(node.checked_type, TensorType)
        return Value(node.checked_type, orders[-1], {orders[-1]: out}, old_result)


def _order(node: Call, name: str, src: str, dst: str) -> Order:
    if not is_permutation(dst, src):
        raise ValueError(
            f"{name}: the layout conversion can't make {dst!r} of {src!r}{span_text(node)}"
        )
    return permutation(src, dst)


def _only_attributes(made: Any, node: Call) -> bool:
    """Whether a call is another one with other attributes."""
    if not isinstance(made, Call) or made.op != node.op or len(made.args) != len(node.args):
        return False
    return all(a is b for a, b in zip(made.args, node.args, strict=True))


def _is_old(state: State) -> bool:
    if isinstance(state, Value):
        return state.is_old
    if isinstance(state, Results):
        return state.is_old
    return not isinstance(state, Fields) or all(map(_is_old, state.parts))


def _last(scope: Sequence[Expr], body: Expr) -> set[Expr]:
    """The lets that a function or a branch ends with: their result has the old layout."""
    ends = [body]
    for node in scope:
        if isinstance(node, If):
            ends += [node.true_branch, node.false_branch]
    last: set[Expr] = set()
    for end in ends:
        while isinstance(end, Let) and end not in last:
            last.add(end)
            end = end.body
    return last
