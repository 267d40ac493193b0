"""Which casts, transpositions and scalings of a module go together, and how they are written then.

Those of parameters, at the function's begin, and those whose results are the function's, at its
end: in a training step the weights' and their gradients'.  A chain is a cast, a product with one
scalar, each at most once, the product in float32, what together is one transposition, with packs of
an axis filled up with zeros or cut, and reshapes between them, as a bias has one.  A result that is
a reshape alone is a copy, for what is returned is no view; so it goes along too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

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
from .places import Places

CAST, PERMUTE, SCALE = "relax.astype", "relax.permute_dims", "relax.multiply"
RESHAPE, CONCAT, SPLIT, ZEROS = "relax.reshape", "relax.concat", "relax.split", "relax.zeros"
KERNEL = "relax.call_tir"
_LEAST = 4  # tensors for which a launch for all is worth a call of its own
_MOST = 1 << 24  # elements: larger tensors fill the GPU alone
Expr = Any
_Move = tuple[Any, ...]
"""A method of `Places` and its arguments."""


class _Resized(NamedTuple):
    """A tensor along whose axis something ends, or behind which are zeros.

    inside : what else it is made of, which nothing else uses.
    """

    source: Expr
    axis: int
    size: int
    inside: tuple[relax.Var, ...]


@dataclass(frozen=True)
class _Chain:
    """From a tensor to the variable that is made of it."""

    source: Expr
    result: relax.Var
    move: Transposition
    inside: tuple[relax.Var, ...]  # bindings between, which nothing else uses
    scale: relax.Var | None = None

    @property
    def kind(self) -> tuple[str, str, relax.Var | None, bool]:
        """Chains of a kind go together."""
        filled = bool(self.move.fills)
        return str(self.source.ty.dtype), str(self.result.ty.dtype), self.scale, filled


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
        """The bindings of which a variable is an operand, or to which it gives another name; of a
        cut that of its field."""

        def operands(value: Any) -> list[Any]:
            if op_name(value) == CONCAT:
                return list(getattr(value.args[0], "fields", []))
            return [value] if isinstance(value, relax.Var) else list(getattr(value, "args", []))

        found = [b for b in self.view.users_of(var) if var in operands(b.value)]
        return [
            one
            for b in found
            for one in (self.view.users_of(b.var) if op_name(b.value) == SPLIT else [b])
        ]

    def _is_step(self, var: Expr) -> bool:
        value = self.view.value.get(var) if isinstance(var, relax.Var) else None
        if isinstance(value, relax.Var):
            return not isinstance(var, relax.DataflowVar) and self._is_step(value)
        if op_name(value) in (CAST, PERMUTE, RESHAPE) or self._scalar(value) is not None:
            return True
        return self._resized(value) is not None

    def _resized(self, value: Any) -> _Resized | None:
        """What a value is, if it is a tensor with zeros behind it or the first part of one."""
        if op_name(value) == CONCAT and isinstance(value.args[0], relax.Tuple):
            fields = list(value.args[0].fields)
            if len(fields) != 2 or self.view.call(fields[1], ZEROS) is None:
                return None
            return self._sized(value.attrs.axis, fields[0], value, (fields[1],))
        if not isinstance(value, relax.TupleGetItem) or int(value.index) != 0:
            return None
        cut = self.view.call(value.tuple_value, SPLIT)
        if cut is None or not self.view.only_use(value.tuple_value):
            return None
        return self._sized(cut.attrs.axis, cut.args[0], value, (value.tuple_value,))

    def _sized(self, axis: Any, source: Expr, value: Any, beside: Any) -> _Resized | None:
        sizes = sizes_of(value.ty)
        if axis is None or not sizes or not isinstance(source, relax.Var):
            return None
        at = int(axis) % len(sizes)
        alone = tuple(var for var in beside if self.view.only_use(var))
        return _Resized(source, at, sizes[at], alone) if isinstance(sizes[at], int) else None

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
        moves: list[_Move] = []  # from the end to the source
        scale, cast, at = None, False, end
        while True:
            value: Any = self.view.value.get(at) if isinstance(at, relax.Var) else None
            if at is not end and not self.view.only_use(at):
                break
            if isinstance(value, relax.Var) and not inside and at is end:
                source = value
            elif op_name(value) == CAST and not cast:
                cast, source = True, value.args[0]
            elif op_name(value) == PERMUTE and not any(step == "permute" for step, *_ in moves):
                moves.append(("permute", permute_axes(value)))
                source = value.args[0]
            elif op_name(value) == RESHAPE:
                moves.append(("reshape", sizes_of(value.ty)))
                source = value.args[0]
            elif (resized := self._resized(value)) is not None:
                moves.append(("resize", resized.axis, resized.size))
                source = resized.source
                inside += resized.inside
            elif (scalar := self._scalar(value)) is not None and scale is None and not cast:
                scale, source = scalar, value.args[0]  # of what is float32 by then
            else:
                break
            if at is not end:
                inside.append(at)
            at = source
        reshapes = all(step == "reshape" for step, *_ in moves)
        if not cast and reshapes and scale is None and not (copies and moves):
            return None  # another name, or a view
        return self._made(at, end, moves[::-1], tuple(inside), scale)

    def _made(
        self, source: Expr, end: relax.Var, moves: Sequence[_Move], inside: Any, scale: Any
    ) -> _Chain | None:
        sizes = sizes_of(source.ty)
        dtypes = {str(source.ty.dtype), str(end.ty.dtype)}
        if sizes is None or not all(isinstance(n, int) for n in sizes) or not dtypes <= set(DTYPES):
            return None
        places = Places(sizes)
        if any(getattr(places, step)(*to) is False for step, *to in moves):
            return None
        move = places.move()
        if move is None or not 0 < move.count <= _MOST or not isinstance(source, relax.Var):
            return None
        return _Chain(source, end, move, inside, scale)

    # ---- writing ---------------------------------------------------------------------------------

    def _call(self, group: list[_Chain], symbols: Symbols) -> list[Any]:
        source, result, scale, _ = group[0].kind
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
