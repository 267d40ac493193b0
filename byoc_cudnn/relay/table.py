"""The rows as a Relay pattern table, for `relay.transform.MergeComposite`.

The patterns are those of `patterns.py` in Relay's operators.  Nothing is decided here: a match is
lowered to Relax, where the partition says whether the row takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from typing import Any

from relay_wgrad import registry
from relay_wgrad.keys import INLINE
from relay_wgrad.problem import ConvKind
from relay_wgrad.relay.ast import Expr, Function, IRModule
from relay_wgrad.relay.dataflow_pattern import DFPattern, is_constant, is_op, wildcard
from relay_wgrad.relay.dataflow_pattern.partition import extract
from relay_wgrad.relay.lower import lower
from relay_wgrad.relay.op.contrib import register_pattern_table
from relay_wgrad.relay.ops import REGISTRY

from ..backends.base import Row
from ..fused import EPILOGUES, OPERAND, VALUE, Form
from ..patterns import CALLS
from ..report import Entry
from ..split.partition import partition_part
from ..table import BACKENDS, backend_of

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


def entries_of(
    function: Function, backends: Sequence[str], options: Mapping[str, Any], fuse: bool = True
) -> tuple[Entry, ...]:
    """What becomes of the convolutions in a Relay function of tensors, and why."""
    registry.register()
    mod = lower(IRModule({_MAIN: function.without_attr(INLINE)}))
    return tuple(partition_part(mod, backends, options, fuse)[1])


def pattern_table(backend: str, options: Any = None, fuse: bool = True) -> list[tuple[Any, ...]]:
    """The rows of a backend as (name, pattern, check), big to small.

    Names are `<backend>.<row>`.  Errors as `partition`, for an unknown backend or option.
    """
    chosen = backend_of(backend)
    chosen.make_options(options)  # refuses what is wrong before anything is matched
    given = {backend: options}

    def check_of(row: Row, pattern: DFPattern) -> Callable[[Expr], bool]:
        def check(call: Expr) -> bool:
            function = extract(pattern, call)
            if function is None:
                return False
            return [e.row for e in entries_of(function, (backend,), given, fuse)] == [row.name]

        return check

    rows = []
    for row in chosen.rows:
        if fuse or not row.epilogue:
            pattern = relay_pattern(row)
            rows.append((f"{backend}.{row.name}", pattern, check_of(row, pattern)))
    return rows


def register_tables() -> None:
    """Registers each backend's table with `relay.op.contrib`, under the backend's name."""
    for name in BACKENDS:
        register_pattern_table(name, partial(pattern_table, name))
