"""The partition of one function: what is asked of which row, and then the function that results.

Deciding writes nothing, so that the decisions on a function can be asked for themselves: Relay's
matches are only asked (`relay.table`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import tvm
from tvm import relax

from relay_wgrad.graph.def_use import Graph
from relay_wgrad.graph.rebuild import bound, rebuilt
from relay_wgrad.graph.walk import Block
from relay_wgrad.ir import expressions, op_name
from relay_wgrad.keys import COMPOSITE, PROBLEM, ROW
from relay_wgrad.ops.call_problem import family_def, problem_of
from relay_wgrad.problem import ConvKind, ConvProblem

from ..backends.base import Backend, Row
from ..decision import Decision, no
from ..fused import EPILOGUES, Form, Step
from ..patterns import FOLLOWING, INNER, LONGEST, Chain
from ..report import FASTER_HERE, Entry
from ..table import CODEGENS
from .adapt import Note, adapt_function, adapted
from .composite import (
    Composites,
    Taken,
    called_composite,
    conv_in,
    short_name,
    unbound_sizes,
)
from .source import Sources

if TYPE_CHECKING:
    from ..tuning.selection import Selection

_Forms: TypeAlias = "tuple[tuple[Form, ...], ...]"

CAST = "bound by match_cast: bind it to a variable first"
NESTED = "inside another expression: a local function, or a program not in normal form"


def adapted_problem(problem: ConvProblem, backends: Sequence[Backend]) -> ConvProblem | None:
    """What to solve where no backend takes a problem as it stands; None if there is nothing."""
    if problem.kind is ConvKind.DGRAD and not (
        isinstance(problem.h, int) and isinstance(problem.w, int)
    ):
        # Only an epilogue's operand could give these sizes, and none follows an adapted dgrad.
        return None
    for backend in backends:
        found = adapted(problem, backend.layouts, backend.takes)
        if found is not None:
            return backend.wider(found, None) or found
    return None


class FunctionPartition:
    """The partition of one function.

    `entries` have the decision on each convolution, `taken` has those that go.
    """

    def __init__(
        self,
        name: str,
        func: relax.Function,
        backends: Sequence[Backend],
        options: Mapping[str, Any],
        made: Mapping[tvm.ir.GlobalVar, relax.Function | None],
        selection: Selection | None = None,
    ) -> None:
        self.name = name
        self.backends = backends
        self.options = options
        self.made = made
        self.selection = selection
        self.entries: list[Entry] = []
        self.taken: list[Taken] = []
        # A network repeats its layers.
        self.func, self.notes = adapt_function(func, cache(self._choose))
        self.claimed: set[relax.Var] = set()
        self.graph = Graph(self.func)
        self.sources = Sources(self.graph, self._conv_of)
        for binding in self.graph.bindings:
            self._visit(binding)

    def written(self, composites: Composites) -> relax.Function:
        """The function with calls of composites, which are added to those of its module."""
        replaced = {taken.chain.root.var: composites.call(taken) for taken in self.taken}

        def rewrite(block: Block) -> list[relax.Binding] | None:
            bindings, changed = [], False
            for binding in block.bindings:
                call = replaced.get(binding.var)
                if call is not None:
                    bindings.append(bound(binding, call))
                elif binding.var not in self.claimed:
                    bindings.append(binding)
                    continue
                changed = True
            return bindings if changed else None

        return rebuilt(self.func, rewrite) if replaced else self.func

    # ---- deciding ----------------------------------------------------------------------------

    def _choose(self, problem: ConvProblem) -> ConvProblem | None:
        """What to solve instead: where no backend takes a problem, or one prefers another."""
        for backend in self.backends:
            if backend.takes(problem):
                return backend.wider(problem, None)
        return adapted_problem(problem, self.backends)

    def _conv_of(self, value: relax.Expr) -> relax.Call | None:
        if family_def(value) is not None:
            return value
        if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            inner = self.made.get(value.op)
            return conv_in(inner) if inner is not None else None
        return None

    def _visit(self, binding: relax.Binding) -> None:
        value = binding.value
        inner = called_composite(binding, self.made)
        if inner is not None:
            backend = CODEGENS[str(inner.attrs[COMPOSITE]).partition(".")[0]]
            self._entry(
                binding, conv_in(inner), str(inner.attrs[PROBLEM]),
                backend=backend.name, row=str(inner.attrs[ROW]),
                source=self.sources.weight_and_line(value),
            )  # fmt: skip
        elif family_def(value) is not None and isinstance(binding, relax.VarBinding):
            self._decide(binding)
        elif _may_nest(value):
            reason = CAST if family_def(value) is not None else NESTED
            for call in family_calls(value):
                self._entry(binding, call, repro_of(call), reason=reason)

    def _decide(self, binding: relax.VarBinding) -> None:
        call = binding.value
        note = self.notes.get(binding.var)
        if note is None:
            reason = _unreadable(call)
            self._entry(binding, call, "", reason=reason, source=self.sources.weight_and_line(call))
            return
        problem, shown = note.solved, note.problem.repro()
        chains, tried = self._chains(binding)
        reason = f"no row for {problem.kind.value}"
        taken: list[Taken] = []
        for backend in self.backends:
            for row in backend.rows_of(problem.kind):
                chain = chains.get(_forms(EPILOGUES[row.epilogue]))
                if chain is None:
                    continue
                decision = self._check(row, problem, chain)
                if decision:
                    options = self.options[backend.name]
                    taken.append(Taken(chain, problem, backend, row, options))
                    break
                # Rows go from big to small: the last refusal is that of the call alone.
                reason = decision.reason
                tried.append((f"{backend.name}.{row.name}", reason))
            if taken and self.selection is None:
                break
        result: dict[str, Any] = {
            "tried": tuple(tried),
            "source": self.sources.weight_and_line(call),
        }
        if not taken:
            self._entry(binding, call, shown, reason=reason, **result)
            return
        found: Taken | None = taken[0]
        if self.selection is not None:
            found, result["times"] = self.selection.choose(taken)
        if found is None:
            self._entry(binding, call, shown, reason=FASTER_HERE, **result)
            return
        self._entry(
            binding, call, shown, backend=found.backend.name, row=found.row.name,
            adapted=note.adapted, **result,
        )  # fmt: skip
        self.taken.append(found)
        self.claimed |= {binding.var for binding in found.chain.all}

    def _chains(
        self, binding: relax.VarBinding
    ) -> tuple[dict[_Forms, Chain], list[tuple[str, str]]]:
        """The call alone and with what follows it, by its steps; and why nothing more follows."""
        chains: dict[_Forms, Chain] = {(): Chain((binding,))}
        tried: list[tuple[str, str]] = []
        bindings: tuple[relax.VarBinding, ...] = (binding,)
        for _ in range(LONGEST):
            var = bindings[-1].var
            user = self._user(var)
            if user is None:
                following = [u for u in self.graph.users_of(var) if _op(u) in FOLLOWING]
                if following:
                    tried.append(
                        (f"{short_name(following[0].value)} after {var.name}", self._why(var))
                    )
                break
            name = _op(user)
            if name not in FOLLOWING or user.var in self.claimed:
                break
            inner = None
            if name in INNER:
                inner = self._beside(user)
                if inner is None:
                    break
                if self.graph.sole_user(inner.var) is not user:
                    what = f"{short_name(user.value)} after {var.name}"
                    tried.append((what, self._why(inner.var)))
                    break
            bindings = (*bindings, user)
            chain = Chain(bindings, inner)
            with suppress(ValueError):  # no step yet: the first of two ops that are one
                chains[_forms(match.step for match in chain.steps)] = chain
        return chains, tried

    def _user(self, var: relax.Var) -> relax.Binding | None:
        """The op that follows: the only one that uses a variable, but for what is beside it."""
        pair = self.graph.sole_pair(var)
        if pair is not None and _op(pair[0]) in INNER.get(_op(pair[1]), ()):
            return pair[1]
        return self.graph.sole_user(var)

    def _beside(self, user: relax.Binding) -> relax.Binding | None:
        """The op that makes another argument of one that follows, of those that it may be."""
        makers = map(self.graph.maker, user.value.args)
        known = INNER[_op(user)]
        return next((made for made in makers if made is not None and _op(made) in known), None)

    def _why(self, var: relax.Var) -> str:
        return f"{var.name} is needed elsewhere: {', '.join(self.graph.describe_uses(var))}"

    def _check(self, row: Row, problem: ConvProblem, chain: Chain) -> Decision:
        decision = row.check(problem, chain)
        if not decision:
            return decision
        unbound = unbound_sizes(chain, problem)
        if unbound:
            return no(f"no operand's shape gives the symbolic {', '.join(unbound)}")
        return decision

    def _entry(self, binding: relax.Binding, call: relax.Call, problem: str, **result: Any) -> None:
        note: Note | None = self.notes.get(binding.var)
        node = note.var if note is not None else binding.var
        self.entries.append(Entry(self.name, str(node.name), short_name(call), problem, **result))


def _forms(steps: Iterable[Step]) -> _Forms:
    """What steps look like.  An operand's shape alone tells a bias from a residual sum, and a row
    that is of the other says so (`patterns.check_epilogue`)."""
    return tuple(step.forms for step in steps)


def _op(binding: relax.Binding) -> str:
    return op_name(binding.value) if isinstance(binding, relax.VarBinding) else ""


def _may_nest(value: relax.Expr) -> bool:
    """Whether a call of the family may be within a value: a cheap question for each binding."""
    if isinstance(value, relax.Call):
        return family_def(value) is not None or any(isinstance(a, relax.Call) for a in value.args)
    return not isinstance(value, relax.If | relax.Var | relax.TupleGetItem | tvm.ir.Constant)


def family_calls(func: relax.Function) -> list[relax.Call]:
    return [part for part in expressions(func) if family_def(part) is not None]


def repro_of(call: relax.Call) -> str:
    return "" if _unreadable(call) else problem_of(call).repro()


def _unreadable(call: relax.Call) -> str:
    """Why a call's problem can't be told; "" where it can."""
    try:
        problem_of(call)
    except ValueError as error:
        return str(error)
    return ""
