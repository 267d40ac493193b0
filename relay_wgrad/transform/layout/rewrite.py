"""Writes a dataflow block again with its tensors in the layouts that the analysis gave them.

A tensor may exist in several layouts; each is made once, when first asked for, by the op itself
where that costs nothing (a reshape to the permuted shape, a fill, a broadcast), else by one
`permute_dims`.  What nobody asks for in the end is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import relax

from ...graph.walk import variables_of
from ...layout_rules import table
from ...layout_rules.convs import conv_in_layout, wanted_perms
from ...layout_rules.in_layout import KEEP, InLayout, Taken
from ...layout_rules.perms import Perm, between, carried, compose, identity, is_identity, reorder
from .analysis import Analysis, Key, Plain, Step, Value, is_constant


class Rewriter:
    """One block; `run` gives its new bindings."""

    def __init__(
        self,
        analysis: Analysis,
        given: dict[relax.Var, tuple[relax.Var, Perm]] | None = None,
        paths: dict[relax.Var, tuple[int, ...]] | None = None,
    ) -> None:
        """`given`: parameters that come in another layout, as variables of the new type.

        `paths` are the results that may leave in theirs if they are weights: where each stands in
        the function's result.  `converted` then has the layout of each by its path, and `replaced`
        the variables whose type has changed with it.
        """
        self.paths = paths or {}
        self.converted: dict[tuple[int, ...], Perm] = {}
        self.replaced: dict[relax.Var, relax.Var] = {}
        self.a = analysis
        self.bb = relax.BlockBuilder()
        self.bindings: list[relax.Binding] = []
        self.versions: dict[Key, dict[Perm, relax.Expr]] = {
            old: {perm: new} for old, (new, perm) in (given or {}).items()
        }
        self.expanded: dict[tuple[Key, Perm, Perm], relax.Expr] = {}
        self.again: dict[Key, Callable[[Perm], relax.Expr | None]] = {}
        self.whole: dict[Key, tuple[Key, tuple[Perm, ...]]] = {}  # tuples as made

    def run(self) -> list[relax.Binding]:
        for step in self.a.steps:
            getattr(self, f"_{step.kind}")(step)
        return live(self.bindings)

    # ---- tensors --------------------------------------------------------------------------------

    def emit(self, value: relax.Expr, name: str, var: relax.Var | None = None) -> relax.Var:
        value = self.bb.normalize(value)
        if var is None:
            var = relax.DataflowVar(name, value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        return var

    def get(self, key: Key, perm: Perm) -> relax.Expr:
        """The tensor in a layout."""
        made = self._versions(key)
        if perm not in made:
            again = self.again.get(key)
            expr = again(perm) if again is not None else None
            if expr is None and is_constant(key):
                expr = _permuted_constant(key, perm)
            if expr is None:
                base = identity(len(perm)) if identity(len(perm)) in made else next(iter(made))
                moved = relax.op.permute_dims(made[base], list(between(base, perm)))
                expr = self.emit(moved, f"{self._name(key)}_{_letters(perm)}")
            made[perm] = expr
        return made[perm]

    def _versions(self, key: Key) -> dict[Perm, relax.Expr]:
        if key not in self.versions:
            if isinstance(key, tuple):
                self.versions[key] = self._field_of(key, None)
            else:  # a parameter, a constant, or a variable of an earlier block
                self.versions[key] = {identity(self.a.rank(key) or 0): key}
        return self.versions[key]

    def _field_of(self, key: Key, var: relax.Var | None) -> dict[Perm, relax.Expr]:
        owner, index = key
        base, perms = self.whole.get(owner, (owner, ()))
        if isinstance(base, tuple):  # a tuple within a tuple
            base = self.emit(relax.TupleGetItem(base[0], base[1]), self._name(key))
        perm = perms[index] if perms else identity(self.a.rank(key) or 0)
        item = relax.TupleGetItem(base, index)
        return {perm: self.emit(item, self._name(key), var if is_identity(perm) else None)}

    def whole_value(self, value: Value, path: tuple[int, ...] | None = None) -> relax.Expr:
        """A value as it was, tuples rebuilt.

        With a path, a result of the function: weights in it stay in their layouts.
        """
        if isinstance(value, list):
            paths = [None if path is None else (*path, i) for i in range(len(value))]
            return relax.Tuple([self.whole_value(v, p) for v, p in zip(value, paths, strict=True)])
        if isinstance(value, Plain):
            return value.expr
        if isinstance(self.a.type_of(value), relax.TupleType):
            base, perms = self.whole.get(value, (value, ()))
            if all(is_identity(p) for p in perms) and not isinstance(base, tuple):
                return base
            count = len(self.a.type_of(value).fields)
            return self.whole_value([(value, i) for i in range(count)], path)
        perm = self.a.layout(value)
        if path is not None and self.a.group(value).weight and not is_identity(perm):
            self.converted[path] = perm
        else:
            perm = identity(len(perm))
        return self.get(value, perm)

    def _name(self, key: Key) -> str:
        if isinstance(key, tuple):
            return self._name(key[0])
        return str(getattr(key, "name", None) or "const")

    # ---- steps ----------------------------------------------------------------------------------

    def _fixed(self, step: Step) -> None:
        """Takes and makes everything as it was."""
        value = step.binding.value
        if isinstance(step.binding, relax.MatchCast):
            new = self.whole_value(step.args[0]) if step.args[0] is not None else value
            self.bindings.append(relax.MatchCast(step.var, new, step.binding.ty))
        elif isinstance(value, relax.Call):
            args = [
                old if arg is None else self.whole_value(arg)
                for old, arg in zip(value.args, step.args, strict=True)
            ]
            if all(_same(old, new) for old, new in zip(value.args, args, strict=True)):
                self.bindings.append(step.binding)
            else:
                call = relax.Call(value.op, args, value.attrs, value.ty_args, value.span)
                self.emit(call, step.var.name, step.var)
        else:
            self.bindings.append(step.binding)
        self._made(step, step.var, tuple(identity(self.a.rank(k) or 0) for k in step.results))

    def _made(self, step: Step, var: relax.Var, perms: tuple[Perm, ...]) -> None:
        if isinstance(step.var.ty, relax.TupleType):
            self.whole[step.var] = (var, perms)
        else:
            self.versions.setdefault(step.var, {})[perms[0]] = var

    def _conv(self, step: Step) -> None:
        assert step.call is not None
        perms = wanted_perms(step.name, step.call, self.a.activation, self.a.kernel)
        moved = conv_in_layout(step.name, step.call, perms) if perms is not None else None
        if moved is None or all(is_identity(p) for p in perms or ()):
            self._fixed(step)
        else:
            self._moved(step, moved)

    def _follow(self, step: Step) -> None:
        assert step.call is not None
        if step.name in table.REMADE:
            self.again[step.var] = lambda perm: self._remade(step, perm)
        perm = self.a.principal(step)
        moved = None if is_identity(perm) else table.call_in_layout(step.name, step.call, perm)
        if moved is None:
            self._fixed(step)
        else:
            self._moved(step, moved)

    def _remade(self, step: Step, perm: Perm) -> relax.Expr | None:
        moved = table.call_in_layout(step.name, step.call, perm) if step.call is not None else None
        return self.emit(self._call(step, moved), step.var.name) if moved is not None else None

    def _call(self, step: Step, moved: InLayout) -> relax.Call:
        assert step.call is not None
        args = []
        for i, (old, arg) in enumerate(zip(step.call.args, step.args, strict=True)):
            taken = moved.inputs[i]
            if i in moved.args:
                args.append(moved.args[i])
            elif isinstance(taken, Taken):
                args.append(self._taken(arg, taken))
            elif taken is not None:
                pairs = zip(arg, taken, strict=True)
                args.append(relax.Tuple([self._taken(k, t) for k, t in pairs]))
            else:
                args.append(old)
        attrs = step.call.attrs if moved.attrs is KEEP else moved.attrs
        return relax.Call(step.call.op, args, attrs, step.call.ty_args, step.call.span)

    def _taken(self, key: Key, taken: Taken) -> relax.Expr:
        expr = self.get(key, taken.perm)
        if not taken.inserted:
            return expr
        slot = (key, taken.perm, taken.inserted)
        if slot not in self.expanded:
            wide = relax.op.expand_dims(expr, list(taken.inserted))
            self.expanded[slot] = self.emit(wide, self._name(key))
        return self.expanded[slot]

    def _moved(self, step: Step, moved: InLayout) -> None:
        call: relax.Expr = self._call(step, moved)
        as_was = all(is_identity(p) for p in moved.outputs)
        var = step.var if as_was and not moved.squeeze else None
        made = self.emit(call, step.var.name, var)
        if moved.squeeze:
            made = self.emit(
                relax.op.squeeze(made, list(moved.squeeze)),
                step.var.name,
                step.var if as_was else None,
            )
        self._made(step, made, moved.outputs)
        self._finish(step)

    def _finish(self, step: Step) -> None:
        if step.is_output:
            self._bind(step.var, step.var)

    def _permute(self, step: Step) -> None:
        """A transpose of the program: what is left of it when both sides have their layout."""
        assert step.call is not None
        axes = table.permute_axes(step.call)
        src, want = step.args[0], self.a.layout(step.var)

        def again(perm: Perm) -> relax.Expr:
            made = self._versions(src)
            for have, expr in made.items():
                if is_identity(between(have, compose(axes, perm))):
                    return expr
            have = next(iter(made))
            moved = list(between(have, compose(axes, perm)))
            return self.emit(relax.op.permute_dims(made[have], moved), step.var.name)

        self.again[step.var] = again
        plain = identity(len(axes))
        gone = any(is_identity(between(have, compose(axes, want))) for have in self._versions(src))
        if not gone and is_identity(want) and plain in self._versions(src):
            self._fixed(step)
            return
        self.versions[step.var] = {want: again(want)}
        self._finish(step)

    def _reshape(self, step: Step) -> None:
        src, want = step.args[0], self.a.layout(step.var)
        plain = identity(len(step.sizes[0]))

        def again(perm: Perm) -> relax.Expr | None:
            for have, expr in list(self._versions(src).items()):
                if self._fits(step, have, perm):
                    target = relax.ShapeExpr(reorder(step.var.ty.shape.values, perm))
                    return self.emit(relax.op.reshape(expr, target), step.var.name)
            return None

        self.again[step.var] = again
        made = None if is_identity(want) and plain in self._versions(src) else again(want)
        if made is None and not is_identity(want):
            need = self.a.across(step, want, 1)
            if need is not None:
                self.get(src, need)
                made = again(want)
        if made is None:
            have = self.a.layout(src)
            there = self.a.across(step, have, 0)
            if there is not None and plain not in self._versions(src):
                want, made = there, again(there)
        if made is None:
            self._fixed(step)
            return
        self.versions[step.var] = {want: made}
        self._finish(step)

    def _fits(self, step: Step, src: Perm, dst: Perm) -> bool:
        """Whether the operand stored in `src` is the result in `dst` by a plain reshape."""
        return carried(step.groups, 0, src, step.sizes[1], dst) == dst

    def _field(self, step: Step) -> None:
        key = step.args[0]
        if key not in self.versions:
            self.versions[key] = self._field_of(key, step.var)

    def _output(self, step: Step) -> None:
        self._bind(step.var, step.args[0])

    def _bind(self, var: relax.Var, result: Value) -> None:
        """A variable that leaves the block, as it was or, where it may, in its own layout."""
        before = len(self.converted)
        value = self.bb.normalize(self.whole_value(result, self.paths.get(var)))
        if _same(value, var):
            return
        if len(self.converted) > before:
            self.replaced[var] = relax.Var(var.name, value.ty)
        self.bindings.append(relax.VarBinding(self.replaced.get(var, var), value))


def _same(a: relax.Expr, b: relax.Expr) -> bool:
    if isinstance(a, relax.Tuple) and isinstance(b, relax.Tuple):
        return len(a.fields) == len(b.fields) and all(
            _same(x, y) for x, y in zip(a.fields, b.fields, strict=True)
        )
    return bool(a.same_as(b))


def _letters(perm: Perm) -> str:
    return "".join(str(axis) for axis in perm)


def _permuted_constant(constant: Any, perm: Perm) -> relax.Expr:
    values = np.ascontiguousarray(constant.value.numpy().transpose(perm))
    return relax.const(values, str(constant.ty.dtype))


def live(bindings: list[relax.Binding]) -> list[relax.Binding]:
    """The bindings that an output, or a check of a shape, depends on."""
    needed: set[relax.Var] = set()
    kept = []
    for binding in reversed(bindings):
        root = isinstance(binding, relax.MatchCast) or not isinstance(
            binding.var, relax.DataflowVar
        )
        if root or binding.var in needed:
            kept.append(binding)
            needed.update(variables_of(binding.value))
    return kept[::-1]
