"""Operators in the form that is registered for them, and what follows in the layouts of that form.

Each value of the old program is known by the layout that the old program has it in and the one
that the new one has it in (`layout_rules.following`); a change is made once for each value and pair
of layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..ast import Call, Expr, Function, Op, Tuple, TupleGetItem, as_node, children, post_order
from ..infer import span_text
from ..layout_rules.following import Asked, Inferred
from ..layout_rules.named import Layout
from ..layout_rules.own import rule_of
from ..make import call
from ..op.registration import get_attr
from ..rewrite import with_children
from ..types import TensorType, TupleType, Type
from .user_hooks import attributes, is_kernel

KEY = "FTVMAlterOpLayout"


@dataclass
class _Value:
    """A node, and its layouts in the old program and in the new one; None: not known, the same."""

    node: Expr
    old: Layout | None = None
    new: Layout | None = None


State = _Value | list[_Value]  # a list for a tuple


Forms = Callable[[str], Any]  # an operator's name -> the function that alters its calls, or None


def registered(name: str) -> Any:
    """What is registered for an operator under `FTVMAlterOpLayout`."""
    return get_attr(name, KEY)


def alter_op_layout(function: Function, forms: Forms = registered) -> Function:
    """The function with operators as their forms say.  Needs types.

    `f(attrs, inputs, tinfos, out_type)` gives a call of an operator of as many operands, or None.
    What has no rule, or one that can't tell, gets its operands in the old layouts.

    Raises TypeError, ValueError for a form that is no such call.
    """
    out = _Altered(forms).run(function)
    assert isinstance(out, Function)
    return out


@dataclass
class _Altered:
    forms: Forms
    states: dict[Expr, State] = field(default_factory=dict)
    made: dict[tuple[Expr, Layout, Layout], Expr] = field(default_factory=dict)

    def run(self, function: Function) -> Expr:
        for node in post_order(function, lambda n: not is_kernel(n)):
            self.states[node] = _Value(node) if is_kernel(node) else self._state(node)
        return self._old(self.states[function])

    def _state(self, node: Expr) -> State:
        if isinstance(node, Tuple):
            states = [self.states[f] for f in node.fields]
            if all(isinstance(state, _Value) for state in states):
                return [state for state in states if isinstance(state, _Value)]
        elif isinstance(node, TupleGetItem):
            base = self.states[node.tuple_value]
            if isinstance(base, list):
                return base[node.index]
        elif isinstance(node, Call) and isinstance(node.op, Op):
            found = self._call(node, node.op.name)
            if found is not None:
                return found
        new = {child: self._of(child) for child in children(node)}
        return _Value(with_children(node, new))

    # ---- changes of layout -------------------------------------------------------------------

    def _of(self, node: Expr) -> Expr:
        state = self.states[node]
        if isinstance(state, list) and isinstance(node, Tuple):
            return with_children(node, {f: self._of(f) for f in node.fields})
        return self._old(state)

    def _old(self, state: State) -> Expr:
        if isinstance(state, list):
            return Tuple(tuple(self._old(value) for value in state))
        if state.old is None or state.new is None:
            return state.node
        return self._moved(state.node, state.new, state.old)

    def _moved(self, node: Expr, src: Layout, dst: Layout) -> Expr:
        if src == dst:
            return node
        key = (node, src, dst)
        if key not in self.made:
            self.made[key] = _transformed(node, src, dst)
        return self.made[key]

    # ---- operators ---------------------------------------------------------------------------

    def _call(self, node: Call, name: str) -> State | None:
        """A call in new layouts; None if it is to have its operands in the old ones."""
        values = self._values(node)
        form = self.forms(name)
        if values is None or (rule_of(name) is None and form is None):
            return None
        types: list[Any] = [arg.checked_type for arg in node.args]
        result = node.checked_type
        assert result is not None
        if rule_of(name) is None:
            args = [self._of(arg) for arg in node.args]
            altered = _altered(form, node, args, types)
            return None if altered is None else _Value(altered)
        old = [value.old for value in values]
        attrs = attributes(node, name)
        first = _rule(name, Asked(name, attrs, types, result, old, None))
        if first is None or len(first.inputs) != len(values):
            return None
        flat = iter(values)
        args = [
            Tuple(tuple(next(flat).node for _ in arg.checked_type.fields))
            if isinstance(arg.checked_type, TupleType) else next(flat).node
            for arg in node.args
        ]  # fmt: skip
        altered = _altered(form, node, args, types) if form is not None else None
        target = altered if altered is not None else replace(node, args=tuple(args))
        assert isinstance(target.op, Op)
        if rule_of(target.op.name) is None or len(target.args) != len(args):
            return None
        now = [v.new or layout for v, layout in zip(values, first.inputs, strict=True)]
        before = [v.old or layout for v, layout in zip(values, first.inputs, strict=True)]
        asked = Asked(
            target.op.name, attributes(target, target.op.name), types, result, before, now
        )
        second = _rule(target.op.name, asked)
        if second is None or len(second.inputs) != len(values):
            return None
        return self._rebuilt(node, target, values, first, second)

    def _values(self, node: Call) -> list[_Value] | None:
        """The operands, with the fields of tuples; None where one is known as a whole alone."""
        out: list[_Value] = []
        for arg in node.args:
            state = self.states[arg]
            if isinstance(state, list):
                out += state
            elif isinstance(arg.checked_type, TensorType):
                out.append(state)
            else:
                return None
        return out

    def _rebuilt(
        self, node: Call, target: Call, values: list[_Value], first: Inferred, second: Inferred
    ) -> State | None:
        for value, src, dst in zip(values, first.inputs, second.inputs, strict=True):
            known = value.new or src
            if not (src.fits(dst) or len(src.primal_axes) < len(dst.primal_axes)) or (
                value.old is not None and value.old != src and not known.fits(value.old)
            ):
                return None
        parts = iter(zip(values, first.inputs, second.inputs, strict=True))

        def moved(arg: Expr) -> Expr:
            value, src, dst = next(parts)
            if value.old is None or value.old == src:
                return self._moved(arg, value.new or src, dst)
            # The producer has the axes by other names, so its own layout comes between.
            assert value.new is not None
            return self._moved(self._moved(arg, value.new, value.old), src, dst)

        args: list[Expr] = []
        for arg, given in zip(target.args, node.args, strict=True):
            if isinstance(given.checked_type, TupleType):
                if not isinstance(arg, Tuple):
                    return None
                args.append(Tuple(tuple(moved(f) for f in arg.fields)))
            else:
                args.append(moved(arg))
        assert isinstance(target.op, Op)
        made: Expr
        if second.changes:
            attrs = {**attributes(target, target.op.name), **second.changes}
            made = replace(call(target.op.name, *args, **attrs), span=node.span)
        else:
            made = replace(target, args=tuple(args), span=node.span, checked_type=None)
        pairs = list(zip(first.outputs, second.outputs, strict=True))
        if isinstance(node.checked_type, TupleType):
            return [_Value(TupleGetItem(made, i), *pair) for i, pair in enumerate(pairs)]
        return _Value(made, *pairs[0])


def _rule(name: str, asked: Asked) -> Inferred | None:
    shapes = [t.shape for t in asked.types if isinstance(t, TensorType)]
    if len(shapes) == len(asked.old):
        # A layout says nothing of a tensor of another number of axes.
        for layout, shape in zip(asked.old, shapes, strict=True):
            if layout is not None and len(layout) != len(shape) and layout.axes:
                return None
    rule = rule_of(name)
    assert rule is not None, name
    return rule(asked)


def _altered(form: Any, node: Call, args: Sequence[Expr], types: Sequence[Any]) -> Call | None:
    assert isinstance(node.op, Op)
    name = node.op.name
    flat: list[Type] = []
    for ty in types:
        flat += ty.fields if isinstance(ty, TupleType) else [ty]
    try:
        given = form(attributes(node, name), list(args), flat, node.checked_type)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{error}{span_text(node)}") from error
    if given is None:
        return None
    made = as_node(given, f"{name}: the altered form")
    if not isinstance(made, Call) or not isinstance(made.op, Op):
        raise TypeError(
            f"{name}: the altered form must be a call of an operator, got {made!r}{span_text(node)}"
        )
    return made


def _transformed(node: Expr, src: Layout, dst: Layout) -> Expr:
    """A node in another layout, by axes of size 1 put before its own where it has fewer."""
    missing = [axis for axis in dst.primal_axes if axis not in src.primal_axes]
    if len(src.primal_axes) < len(dst.primal_axes):
        ty = node.checked_type
        if isinstance(ty, TensorType) and not ty.shape:
            return node
        count = len(dst.primal_axes) - len(src.primal_axes)
        node = call("expand_dims", node, axis=0, num_newaxis=count)
        src = Layout((*((axis, 0) for axis in missing), *src.axes))
    if src == dst:
        return node
    return call("layout_transform", node, src_layout=src.name, dst_layout=dst.name)
