"""Where in the model a call comes from, as far as the program still says it.

Passes that differentiate and rewrite drop source spans, but names of parameters survive them all,
and those of an imported model are the model's.  So a convolution is told by its weight.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import tvm_ffi
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.ir import op_name
from relay_wgrad.ops.call_problem import family_def
from relay_wgrad.problem import ConvKind

ConvOf = Callable[[relax.Expr], "relax.Call | None"]

_THROUGH = {
    f"relax.{name}" for name in ("permute_dims", "astype", "reshape", "layout_transform")
}  # what a weight goes through on its way to a convolution

_AROUND = {"relax.permute_dims", "relax.astype", "relax.nn.pad"}  # what `adapt` puts in


class Sources:
    """Sources of the convolutions of one function.

    `conv_of` gives the call of the family that an expression is, or that is in the composite which
    it calls; None for anything else.  A composite's operands are the call's own.
    """

    def __init__(self, graph: Graph, conv_of: ConvOf) -> None:
        self._graph, self._conv_of = graph, conv_of

    def weight_and_line(self, value: relax.Call) -> str:
        """A call's weight, and its file and line; "" where neither is known."""
        span = value.span
        line = ""
        if span is not None and span.source_name is not None:
            # The file without its folder: reports are passed on.
            line = f"{PurePath(str(span.source_name.name)).name}:{span.line}"
        return " ".join(text for text in (self._weight(value), line) if text)

    def _weight(self, value: relax.Call) -> str:
        """The name of a call's weight.

        A weight's gradient has none: its weight is that of the data gradient with the same operand,
        or of the only convolution of the same data with a kernel of that shape.
        """
        if self._kind(value) is not ConvKind.WGRAD:
            return self._parameter(value.args[1])
        grad, data = value.args[:2]
        for operand, kind in ((grad, ConvKind.DGRAD), (data, ConvKind.FPROP)):
            # The wgrad may have been given a cast, padded or permuted copy of what its sibling has.
            for tensor in self._origins(operand):
                siblings = self._weights(tensor, kind, value.ty)
                if siblings:
                    return siblings.pop() if len(siblings) == 1 else ""
        return ""

    def _origins(self, expr: relax.Expr) -> list[relax.Expr]:
        """A tensor, and what it was before it was cast, padded or permuted."""
        found = [expr]
        while isinstance(expr, relax.Var):
            call = self._graph.call(expr, *_AROUND)
            if call is None:
                break
            expr = call.args[0]
            found.append(expr)
        return found

    def _kind(self, value: relax.Expr) -> ConvKind | None:
        definition = family_def(self._conv_of(value))
        return definition.kind if definition is not None else None

    def _weights(self, operand: relax.Expr, kind: ConvKind, ty: relax.Type) -> set[str]:
        """Names of weights of that shape with which calls of a kind take an operand."""
        found = set()
        for user in self._graph.users_of(operand) if isinstance(operand, relax.Var) else []:
            if self._kind(user.value) is kind:
                first, weight = user.value.args[:2]
                if first.same_as(operand) and tvm_ffi.structural_equal(weight.ty.shape, ty.shape):
                    found.add(self._parameter(weight))
        return found - {""}

    def _parameter(self, expr: relax.Expr) -> str:
        """The parameter that a tensor is, but for its layout and dtype."""
        while isinstance(expr, relax.Var):
            if expr in self._graph.params:
                return str(expr.name)
            value = self._graph.value.get(expr)
            if isinstance(value, relax.Var):
                expr = value
            elif isinstance(value, relax.Call) and op_name(value) in _THROUGH:
                expr = value.args[0]
            else:
                return ""
        return ""
