"""`RaiseBatchNorm`: a training normalization, and what follows it, becomes one operator.

For a forward function, before it is differentiated.  Front ends write the normalization out, since
upstream's `batch_norm` has no gradient:

    m = mean(x)   c = x - m   v = mean(c c)   y = c / sqrt(v + epsilon) gamma + beta

Here y, the update of the running statistics, a residual that is added to y alone and the activation
after it become `relax.nn.batch_norm_train`, whose gradient is one operator too.  So does upstream's
`batch_norm` in training mode.  Of rows of an image's groups of channels, over an image's pixels
alone, and of upstream's `group_norm` and `instance_norm` it is `relax.nn.group_norm_train`; of one
axis for all others, layer normalization, that of rows, each an image of one pixel.  Every value
stays; what else is made of m, c or v is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ..graph.rebuild import Writer, bound, normal, with_bindings, without_unused
from ..graph.walk import dataflow_block, variables_of
from ..layout_rules.in_layout import sizes_of
from ..ops.train_norm import FORWARD, GROUP_FORWARD, NormAttrs, dtype_of, make_call
from .norm_graph import Norm, Norms
from .surface import ModulePass, check_relax_module, functions_of

Expr = Any
_WHOLE, _NEW_MEAN, _NEW_VAR = 0, 3, 4  # fields of the operator's result


@dataclass(frozen=True)
class RaisedNorm:
    """One normalization: the variable of its result, and what became part of it."""

    node: str
    activation: str = ""
    residual: bool = False
    running: bool = False
    groups: int = 0


def RaiseBatchNorm(functions: Collection[str] | None = None) -> tvm.transform.Pass:  # noqa: N802
    """The pass; `functions` by name, by default all of one dataflow block.

    Raises ValueError for functions that the module lacks, TypeError for what are no names.
    """

    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        out = mod.clone()
        for name, func in functions_of("RaiseBatchNorm", mod, functions).items():
            if dataflow_block(func) is not None:
                out.update_func(mod.get_global_var(name), _raised(func, ())[0])
        return out

    return ModulePass("RaiseBatchNorm", run)


def raise_batch_norm(
    mod: tvm.IRModule, fn: str = "main", *, keep: Iterable[str] = ()
) -> tuple[tvm.IRModule, list[RaisedNorm]]:
    """The module with the normalizations of `fn` as operators, and an entry for each.

    Parameters
    ----------
    mod : `fn` has one dataflow block.
    keep : names of variables that have to stay, such as those at which checkpoints are.

    Raises
    ------
    ValueError : where `fn` is no function of one dataflow block.
    RuntimeError : before `relay_wgrad.register()`.
    """
    check_relax_module("raise_batch_norm", mod)
    func = mod[fn]
    if dataflow_block(func) is None:
        raise ValueError(f"raise_batch_norm: {fn!r} must be a function of one dataflow block")
    out = mod.clone()
    out[fn], entries = _raised(func, keep)
    return out, entries


def _raised(func: relax.Function, keep: Iterable[str]) -> tuple[relax.Function, list[RaisedNorm]]:
    graph = Norms(func, keep)
    norms = graph.norms()
    if not norms:
        return func, []
    made = with_bindings(func, _Rewriter(graph, norms).bindings())
    entries = [
        RaisedNorm(n.y.name, n.activation, n.residual is not None, n.running is not None, n.groups)
        for n in norms
    ]
    return without_unused(made), entries


# ---- writing ---------------------------------------------------------------------------------


class _Rewriter:
    """The bindings with an operator for each normalization."""

    def __init__(self, graph: Norms, norms: list[Norm]) -> None:
        self.graph, self.block = graph, dataflow_block(graph.func)
        self.new: dict[relax.Var, list[relax.Binding]] = {}  # in place of a variable's binding
        for norm in norms:
            self._replace(norm)

    def _replace(self, norm: Norm) -> None:
        dtype, channels = dtype_of(norm.x), (sizes_of(norm.x.ty) or [])[norm.axis]
        writer = Writer(self.block)
        gamma: Expr = None
        beta: Expr = None
        for name, vector in norm.affine:
            if name == "add":
                beta = vector if beta is None else writer.emit("beta", relax.op.add(beta, vector))
                continue
            gamma = (
                vector if gamma is None else writer.emit("gamma", relax.op.multiply(gamma, vector))
            )
            beta = None if beta is None else writer.emit("beta", relax.op.multiply(beta, vector))

        def filled(vector: Expr, value: float, name: str) -> Expr:
            if vector is not None:
                return vector
            if isinstance(channels, int):
                return relax.const(np.full(channels, value), dtype)
            shape = relax.ShapeExpr([channels])
            return writer.emit(name, relax.op.full(shape, relax.const(value, dtype)))

        x, axis = (_rows(writer, norm), 2) if norm.by_row else (norm.x, norm.axis)
        args = [x, filled(gamma, 1, "gamma"), filled(beta, 0, "beta")]
        args += [norm.residual] if norm.residual is not None else []
        args += list(norm.running or ())
        attrs = NormAttrs(
            axis, norm.epsilon, norm.activation, norm.alpha, norm.momentum, norm.unbiased,
            norm.groups,
        )  # fmt: skip
        call = make_call(GROUP_FORWARD if norm.groups else FORWARD, args, attrs)
        whole = writer.emit(f"{norm.y.name}_norm", call)
        if norm.by_row:
            value = _from_rows(writer, norm, whole)
            self.new[norm.y] = [*writer.bindings, bound(self.graph.maker(norm.y), value)]
            return
        fields = [(norm.y, _WHOLE)]
        fields += zip(norm.updates or (), (_NEW_MEAN, _NEW_VAR), strict=False)
        # Upstream's new running statistics.
        fields += [(var, _NEW_MEAN + i - 1) for i, var in norm.fields.items() if i]
        for var, index in fields:
            item = normal(relax.TupleGetItem(whole, index))
            self.new[var] = [bound(self.graph.maker(var), item)]
        self.new[norm.y] = [*writer.bindings, *self.new[norm.y]]

    def bindings(self) -> list[relax.Binding]:
        """In the order in which they were, but for what now comes from a later operator."""
        made: set[relax.Var] = set()
        where: dict[relax.Var, list[relax.Binding]] = {}
        for binding in self.graph.bindings:
            group = self.new.get(binding.var, [binding])
            for part in group:
                where[part.var] = group
        out: list[relax.Binding] = []
        for binding in self.graph.bindings:
            stack = [binding.var]
            while stack:
                var = stack[-1]
                group = where[var]
                inside = {part.var for part in group}
                needed = [v for part in group for v in variables_of(part.value)]
                missing = [v for v in needed if v in where and v not in made and v not in inside]
                if missing and var not in made:
                    stack += missing
                    continue
                stack.pop()
                if var not in made:
                    made |= inside
                    out += group
        return out


def _order(norm: Norm) -> list[int]:
    """The axes with the normalized one last."""
    return [*(a for a in range(norm.x.ty.ndim) if a != norm.axis), norm.axis]


def _rows(writer: Writer, norm: Norm) -> Expr:
    """(rows, 1, C) of what is normalized over one axis."""
    sizes, order, x = sizes_of(norm.x.ty) or [], _order(norm), norm.x
    if order != sorted(order):
        x = writer.emit("channels_last", relax.op.permute_dims(x, order))
    channels = sizes[norm.axis]
    rows = math.prod(sizes) // channels
    return writer.emit("rows", relax.op.reshape(x, (rows, 1, channels)))


def _from_rows(writer: Writer, norm: Norm, whole: relax.Var) -> Expr:
    """What a call of rows gives, as it was."""
    sizes, order = sizes_of(norm.x.ty) or [], _order(norm)
    y = writer.emit("rows_norm", relax.TupleGetItem(whole, _WHOLE))
    last = relax.op.reshape(y, [sizes[a] for a in order])
    if order == sorted(order):
        return normal(last)
    back = [order.index(a) for a in range(len(order))]
    return normal(relax.op.permute_dims(writer.emit("channels_last", last), back))
