"""Which casts, transpositions and scalings of a module go together, and how they are written then.

Those of parameters, at the function's begin, and those whose results are the function's, at its
end: in a training step the weights' and their gradients'.  A chain is a cast, a transposition, a
product with one scalar, each at most once, the product in float32, and reshapes between them, as a
bias has one.  A result that is a reshape alone is a copy, for what is returned is no view; so it
goes along too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import with_bindings
from relay_wgrad.ir import op_name
from relay_wgrad.layout_rules.in_layout import sizes_of
from relay_wgrad.layout_rules.table import permute_axes

from ..codegen.lowering import DirectEntry, Symbols, lower_together, written
from .call import DTYPES, CastTransposeCall, Transposition
from .codegen import CAST_TRANSPOSES

CAST, PERMUTE, SCALE = "relax.astype", "relax.permute_dims", "relax.multiply"
RESHAPE = "relax.reshape"
KERNEL = "relax.call_tir"
_LEAST = 4  # tensors for which a launch for all is worth a call of its own
_MOST = 1 << 24  # elements: larger tensors fill the GPU alone
Expr = Any


@dataclass(frozen=True)
class _Chain:
    """From a tensor to the variable that is made of it."""

    source: Expr
    result: relax.Var
    move: Transposition
    inside: tuple[relax.Var, ...]  # bindings between, which nothing else uses
    scale: relax.Var | None = None

    @property
    def kind(self) -> tuple[str, str, relax.Var | None]:
        """Chains of a kind go together."""
        return str(self.source.ty.dtype), str(self.result.ty.dtype), self.scale


def lower_cast_transposes(
    mod: tvm.IRModule, arch: int
) -> tuple[tvm.IRModule, tuple[DirectEntry, ...]]:
    """The module with casts and transpositions as few calls of generated functions.

    They are those of parameters and of results.

    Parameters
    ----------
    mod : any module; functions of it that are a code generator's, or fused, stay.
    arch : the oldest GPU that runs it, as nvcc numbers it (90 of sm_90).

    Returns
    -------
    (tvm.IRModule, tuple) : a new module, and an entry for each call that was made.
    """
    return lower_together(mod, CAST_TRANSPOSES, "cast_transpose", _together, arch)


def _together(func: relax.Function, symbols: Symbols) -> tuple[relax.Function, dict[str, str]]:
    made = _Function(Graph(func), symbols)
    return made.function() if made.calls else func, made.calls


class _Function:
    """One function: its chains in groups, and what it is with a call for each group."""

    def __init__(self, view: Graph, symbols: Symbols) -> None:
        self.view = view
        self.calls: dict[str, str] = {}
        self.gone: set[relax.Var] = set()
        self.first: list[Any] = []
        self.last: list[Any] = []
        for chains, bindings in ((self._of_parameters(), self.first), (self._results(), self.last)):
            groups: dict[Any, list[_Chain]] = {}
            for chain in chains:
                groups.setdefault(chain.kind, []).append(chain)
            for group in groups.values():
                if len(group) >= _LEAST:
                    bindings += self._call(group, symbols)

    # ---- finding ---------------------------------------------------------------------------------

    def _of_parameters(self) -> list[_Chain]:
        params, kernels = self.view.params, self._of_kernels()
        chains = []
        for binding in self.view.bindings:
            if not isinstance(binding.var, relax.DataflowVar) or not self._is_step(binding.var):
                continue
            users = self._direct(binding.var) if self.view.only_use(binding.var) else []
            if len(users) == 1 and self._is_step(users[0].var):
                continue  # a part of a longer one
            chain = self._chain(binding.var)
            if chain is None or binding.var in kernels:
                continue
            if chain.source in params and chain.scale is None:
                chains.append(chain)
        return chains

    def _of_kernels(self) -> set[relax.Var]:
        """What kernels of TVM's alone read: fusion makes it part of them."""
        return {
            var
            for var, uses in self.view.uses.items()
            if var not in self.view.results
            and all(op_name(use.binding.value) == KERNEL for use in uses)
        }

    def _results(self) -> list[_Chain]:
        chains = []
        for binding in self.view.bindings:
            alone = not isinstance(binding.var, relax.DataflowVar)
            if alone and binding.var not in self.view.uses and self._is_step(binding.var):
                chain = self._chain(binding.var, copies=True)
                if chain is not None and chain.source not in self.view.params:
                    chains.append(chain)
        return chains

    def _direct(self, var: relax.Var) -> list[Any]:
        """The bindings of which a variable is an operand, or to which it gives another name."""

        def operands(value: Any) -> list[Any]:
            return [value] if isinstance(value, relax.Var) else list(getattr(value, "args", []))

        return [b for b in self.view.users_of(var) if var in operands(b.value)]

    def _is_step(self, var: Expr) -> bool:
        value = self.view.value.get(var) if isinstance(var, relax.Var) else None
        if isinstance(value, relax.Var):
            return not isinstance(var, relax.DataflowVar) and self._is_step(value)
        return op_name(value) in (CAST, PERMUTE, RESHAPE) or self._scalar(value) is not None

    def _scalar(self, value: Any) -> relax.Var | None:
        """The scalar by which a tensor is multiplied."""
        if op_name(value) != SCALE or str(value.ty.dtype) != "float32":
            return None
        tensor, scalar = value.args
        good = isinstance(scalar, relax.Var) and scalar.ty.ndim == 0 and tensor.ty.ndim > 0
        return scalar if good else None

    def _chain(self, end: relax.Var, copies: bool = False) -> _Chain | None:
        """What ends in a variable; `copies`: also where that is a reshape alone."""
        inside: list[relax.Var] = []
        moved: relax.Call | None = None  # the transposition
        scale, cast, reshaped, at = None, False, False, end
        while True:
            value: Any = self.view.value.get(at) if isinstance(at, relax.Var) else None
            if at is not end and not self.view.only_use(at):
                break
            if isinstance(value, relax.Var) and not inside and at is end:
                source = value
            elif op_name(value) == CAST and not cast:
                cast, source = True, value.args[0]
            elif op_name(value) == PERMUTE and moved is None:
                moved, source = value, value.args[0]
            elif op_name(value) == RESHAPE:
                reshaped, source = True, value.args[0]
            elif (scalar := self._scalar(value)) is not None and scale is None and not cast:
                scale, source = scalar, value.args[0]  # of what is float32 by then
            else:
                break
            if at is not end:
                inside.append(at)
            at = source
        if not cast and moved is None and scale is None and not (copies and reshaped):
            return None  # another name, or a view
        return self._made(at, end, moved, tuple(inside), scale)

    def _made(
        self, source: Expr, end: relax.Var, moved: relax.Call | None, inside: Any, scale: Any
    ) -> _Chain | None:
        sizes = sizes_of(source.ty if moved is None else moved.args[0].ty)
        dtypes = {str(source.ty.dtype), str(end.ty.dtype)}
        if sizes is None or not all(isinstance(n, int) for n in sizes) or not dtypes <= set(DTYPES):
            return None
        axes = list(range(len(sizes))) if moved is None else list(permute_axes(moved))
        move = Transposition.of(sizes, axes)
        if move is None or not 0 < move.count <= _MOST or not isinstance(source, relax.Var):
            return None
        return _Chain(source, end, move, inside, scale)

    # ---- writing ---------------------------------------------------------------------------------

    def _call(self, group: list[_Chain], symbols: Symbols) -> list[Any]:
        source, result, scale = group[0].kind
        transpositions = tuple(chain.move for chain in group)
        symbol = symbols.of(
            CastTransposeCall("", source, result, transpositions, scale is not None)
        )
        args = [chain.source for chain in group] + ([scale] if scale is not None else [])
        name = f"cast_transposed_{len(self.calls)}"
        self.calls[name] = symbol
        for chain in group:
            self.gone |= {chain.result, *chain.inside}
        return written(symbol, args, [chain.result for chain in group], name)

    def function(self) -> relax.Function:
        """The function with the calls."""
        kept = [b for b in self.view.bindings if b.var not in self.gone]
        return with_bindings(self.view.func, [*self.first, *kept, *self.last])
