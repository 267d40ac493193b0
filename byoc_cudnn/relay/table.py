"""The rows as a Relay pattern table, for `relay.transform.MergeComposite`.

The patterns are those of `patterns.py` in Relay's operators.  Nothing is decided here: a match is
lowered to Relax, where `split.partition.decide` says whether the row takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any

from relay_wgrad import registry
from relay_wgrad.problem import ConvKind
from relay_wgrad.relay.ast import Expr, Function, IRModule
from relay_wgrad.relay.dataflow_pattern import DFPattern, is_constant, is_op, wildcard
from relay_wgrad.relay.dataflow_pattern.partition import extract
from relay_wgrad.relay.hashing import structural_hash
from relay_wgrad.relay.lower import lower
from relay_wgrad.relay.op.contrib import register_pattern_table
from relay_wgrad.relay.records import REGISTRY

from ..backends.base import Backend, Row
from ..fused import EPILOGUES, OPERAND, VALUE, Form
from ..patterns import CALLS
from ..report import Entry
from ..split.partition import bound_backends, decide
from ..table import BACKENDS

_MAIN = "main"
_PREFIX = "relax."


def _formed(form: Form, value: DFPattern) -> DFPattern:
    """The pattern of a form after what it is applied to.  Relay's matcher tries both orders."""
    args = [
        _formed(place, value)
        if isinstance(place, Form)
        else value
        if place is VALUE
        else wildcard()
        if place is OPERAND
        else is_constant()
        for place in form.args
    ]
    call = is_op(form.op)(*args)
    return call.has_attr(dict(form.attrs)) if form.attrs else call


def convolutions(kind: ConvKind) -> tuple[str, ...]:
    """Relay's operators of a kind."""
    names = [name.removeprefix(_PREFIX) for name, _ in CALLS[kind]]
    return tuple(name for name in names if name in REGISTRY)


def relay_pattern(row: Row) -> DFPattern:
    """A row's pattern in Relay's operators."""
    calls = [is_op(name)(wildcard(), wildcard()) for name in convolutions(row.kind)]
    out: DFPattern = reduce(or_, calls)
    for step in EPILOGUES[row.epilogue]:
        ways = [_formed(form, out) for form in step.relay or (step.form,)]
        out = reduce(or_, ways)
    return out


class Candidates:
    """Decisions on the convolutions in Relay functions, by backends under their options.

    The rows' checks ask it of what they have matched, and the report of what was made of that: each
    distinct function is lowered, and decided upon, once.  Nothing is written for the answer.
    """

    def __init__(self, chosen: Sequence[Backend], options: Mapping[str, Any]) -> None:
        registry.register()
        self.chosen, self.options = chosen, options
        self._known: dict[tuple[Any, ...], tuple[Entry, ...]] = {}

    def entries(self, function: Function, backends: Sequence[Backend]) -> tuple[Entry, ...]:
        """An entry for each convolution of a function of tensors."""
        plain = replace(function, attrs={})
        # Symbolic sizes are equal by any name, and the entries say their names.
        types = tuple(str(param.type_annotation) for param in function.params)
        key = (structural_hash(plain), types, *(backend.name for backend in backends))
        if key not in self._known:
            lowered = lower(IRModule({_MAIN: plain}))
            self._known[key] = tuple(decide(lowered, backends, self.options)[1])
        return self._known[key]

    def rows(self, backend: Backend) -> list[tuple[Any, ...]]:
        """The rows of a backend as (name, pattern, check), big to small."""
        return [
            (f"{backend.name}.{row.name}", pattern, self._check(backend, row, pattern))
            for row in backend.rows
            for pattern in (relay_pattern(row),)
        ]

    def _check(self, backend: Backend, row: Row, pattern: DFPattern) -> Callable[[Expr], bool]:
        def check(call: Expr) -> bool:
            function = extract(pattern, call)
            if function is None:
                return False
            return [entry.row for entry in self.entries(function, (backend,))] == [row.name]

        return check


def pattern_table(backend: str, options: Any = None, fuse: bool = True) -> list[tuple[Any, ...]]:
    """The rows of a backend as (name, pattern, check), big to small.

    Names are `<backend>.<row>`.  Errors as `partition`, for an unknown backend or option.
    """
    chosen, made = bound_backends((backend,), {backend: options}, fuse)
    return Candidates(chosen, made).rows(chosen[0])


def register_tables() -> None:
    """Registers each backend's table with `relay.op.contrib`, under the backend's name."""
    for name in BACKENDS:
        register_pattern_table(name, partial(pattern_table, name))
