"""What the run compares of sizes comes first, and no tensor of a negative size is asked for.

Operators' conditions stand before them (`conditions`), and memory of a size that breaks one may be
asked for earlier: a gradient's first tensor is as large as a result.  Here they come as soon as
their sizes are known, each once, and after them what a size that may be negative must be.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer, ConstIntBound
from tvm_ffi import structural_hash

from ..conditions import Conditions
from ..graph.rebuild import rebuilt
from ..graph.walk import functions_in
from ..keys import SIZES
from ..relation import Checks

_TYPED = re.compile(r"T\.int64\((-?\d+)\)")  # how TVM writes a number of an expression


@tvm.transform.module_pass(opt_level=0, name="relay_wgrad.SizesFirst")
class SizesFirst:
    """For a module that is legalized, and not yet fused."""

    def transform_module(self, mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        """The module; a function whose sizes are numbers is as it was."""
        bb = relax.BlockBuilder(mod)
        for var, func in functions_in(mod):
            writer = _Writer(bb, mod, str(var.name_hint), func)
            new = rebuilt(func, writer.block)
            if writer.changed:
                bb.update_func(var, new)
        return bb.get()


class _Writer:
    """Writes the blocks of one function."""

    def __init__(
        self, bb: relax.BlockBuilder, mod: tvm.IRModule, name: str, func: relax.Function
    ) -> None:
        self.bb, self.mod, self.name = bb, mod, name
        self.known = {v for param in func.params for v in _variables(param.ty)}
        self.seen: set[int] = set()  # expressions of sizes, by their hashes
        self.changed = False

    def block(self, block: relax.BindingBlock) -> list[relax.Binding]:
        """The block's bindings, those that compare sizes as early as they may be."""
        calls: list[relax.Binding] = []
        rest: list[relax.Binding] = []
        for binding in block.bindings[:]:
            (calls if self._compares(binding.value) else rest).append(binding)
        made: dict[Any, int] = {}  # a variable -> the binding that says what it is
        for i, binding in enumerate(rest):
            if isinstance(binding, relax.MatchCast):
                new = {v: i + 1 for v in _variables(binding.ty) if v not in self.known}
                made |= {v: place for v, place in new.items() if v not in made}
        self.known |= set(made)
        own = self._not_negative(rest, made)
        if not calls and not own:
            return rest
        self.changed = True
        at: dict[int, list[relax.Binding]] = {}
        once = {_key(binding.value): binding for binding in reversed(calls)}
        for binding in (*reversed(once.values()), *own):
            used = (v for arg in binding.value.args for v in tirx.analysis.undefined_vars(arg))
            at.setdefault(max((made.get(v, 0) for v in used), default=0), []).append(binding)
        return [b for i in range(len(rest) + 1) for b in (*at.get(i, ()), *rest[i : i + 1])]

    def _compares(self, value: Any) -> bool:
        is_call = isinstance(value, relax.Call) and isinstance(value.op, relax.GlobalVar)
        attrs = self.mod[value.op].attrs if is_call else None
        return attrs is not None and SIZES in attrs

    def _not_negative(self, bindings: Sequence[relax.Binding], made: Any) -> list[relax.Binding]:
        """Calls that refuse tensors of negative sizes, one for each place that knows them."""
        places: dict[int, Conditions] = {}
        for expr in (size for b in bindings for size in _sizes(b.var.ty)):
            is_plain = isinstance(expr, (tirx.IntImm, tirx.Var))
            if is_plain or (key := structural_hash(expr)) in self.seen:
                continue
            self.seen.add(key)
            used = tirx.analysis.undefined_vars(expr)
            analyzer = Analyzer()
            for var in used:
                analyzer.update(var, ConstIntBound(0, ConstIntBound.POS_INF))
            if analyzer.can_prove(expr >= 0):
                continue
            place = max((made.get(v, 0) for v in used), default=0)
            _refuse_negative(Checks(self.name, places.setdefault(place, Conditions())), expr)
        return [
            relax.VarBinding(relax.Var("sizes", relax.TupleType([])), run.call(self.bb, self.name))
            for _, run in sorted(places.items())
        ]


def _key(call: relax.Call) -> tuple[Any, ...]:
    """The same of calls that compare the same."""
    return str(call.op.name_hint), *map(structural_hash, call.args)


def _refuse_negative(checks: Checks, expr: Any) -> None:
    assert checks.run is not None
    size, text = checks.run.size(expr), _TYPED.sub(r"\1", str(expr))
    checks.must(
        checks.at_least(size, 0),
        lambda: f"a tensor's size must be at least 0, got {size}, which is {text}",
    )


def _sizes(ty: Any) -> Iterator[Any]:
    if isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _sizes(field)
    elif isinstance(shape := getattr(ty, "shape", None), relax.ShapeExpr):
        yield from shape.values[:]


def _variables(ty: Any) -> set[Any]:
    """Of sizes that a value of the type tells."""
    values = ty.values if isinstance(ty, relax.ShapeType) and ty.values else _sizes(ty)
    return {value for value in values if isinstance(value, tirx.Var)}
