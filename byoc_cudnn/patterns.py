"""What rows match: a call of the convolution family and the elementwise ops after it.

Patterns are TVM's `DFPattern`s, so that they serve `relax.transform.FuseOpsByPattern` too; they say
which ops stand where.  What a pattern can't say (that a bias is one value per channel, that a mask
compares with zero) `check_epilogue` says, with a reason.  Both know nothing of any backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, reduce
from operator import or_

from tvm import relax
from tvm.relax.dpl import DFPattern, is_op, wildcard

from relay_wgrad.ops.call_problem import family_def
from relay_wgrad.problem import ROLES, ConvKind, ConvProblem

from . import fused
from .decision import YES, Decision, no
from .fused import (
    OPERAND,
    STEPS,
    VALUE,
    Form,
    Match,
    Step,
    same_size,
    same_sizes,
    sizes_of,
)

_WAYS = [op for step in STEPS.values() for form in step.forms for op in form.way]
FOLLOWING = frozenset(op.relax for op in _WAYS)
"""The ops on the way from a convolution to a result."""

LONGEST = max(
    sum(max(len(form.way) for form in step.forms) for step in steps)
    for steps in fused.EPILOGUES.values()
)
"""How many of them an epilogue has at most."""

INNER: dict[str, frozenset[str]] = {
    op.relax: frozenset(o.inner.relax for o in _WAYS if o.op == op.op and o.inner is not None)
    for op in _WAYS
    if op.inner is not None
}
"""Op on the way -> the ops one of which makes another argument and is fused too."""

CALLS: dict[ConvKind, tuple[tuple[str, int], ...]] = {
    kind: tuple(
        (name.replace("conv2d", f"conv{rank}d"), count) for rank in (2, 3) for name, count in calls
    )
    for kind, calls in {
        ConvKind.FPROP: (("relax.nn.conv2d", 2),),
        ConvKind.DGRAD: (("relax.nn.conv2d_backward_data", 3), ("relax.nn.conv2d_transpose", 2)),
        ConvKind.WGRAD: (("relax.nn.conv2d_backward_weight", 2),),
    }.items()
}
"""Kind -> its ops and how many arguments each takes."""


@cache
def pattern(kind: ConvKind, epilogue: str) -> DFPattern:
    """The pattern of a convolution of a kind with an epilogue.

    Raises KeyError for an unknown epilogue, AttributeError before `relay_wgrad.register()`.
    """
    alternatives = [is_op(name)(*[wildcard() for _ in range(n)]) for name, n in CALLS[kind]]
    out = alternatives[0]
    for other in alternatives[1:]:
        out = out | other
    for step in fused.EPILOGUES[epilogue]:
        out = reduce(or_, [_formed(form, out) for form in step.forms])
    return out


def _formed(form: Form, value: DFPattern) -> DFPattern:
    """The pattern of a form after what it is applied to."""
    operand = wildcard()
    out: DFPattern | None = None
    for order in form.orders:
        args = [
            _formed(place, value)
            if isinstance(place, Form)
            else value
            if place is VALUE
            else operand
            if place is OPERAND
            else wildcard()  # `check_epilogue` says which number it must be
            for place in order
        ]
        one = is_op(form.relax)(*args)
        out = one if out is None else out | one
    return out


@dataclass(frozen=True)
class Chain:
    """A convolution and the ops after it, as they stand in a block.

    `bindings` holds the convolution's binding, then one for each op of the epilogue.  `inner` is
    the binding of the op beside them whose result one of them takes: a mask's comparison.
    """

    bindings: tuple[relax.VarBinding, ...]
    inner: relax.VarBinding | None = None

    @property
    def conv(self) -> relax.Call:
        return self.bindings[0].value

    @property
    def root(self) -> relax.VarBinding:
        return self.bindings[-1]

    @property
    def all(self) -> tuple[relax.VarBinding, ...]:
        """All bindings in the order in which the composite has them."""
        if self.inner is None:
            return self.bindings
        return (*self.bindings[:-1], self.inner, self.bindings[-1])

    @cached_property
    def steps(self) -> tuple[Match, ...]:
        """The steps that the ops are, found once: rows, composites and operands read them.

        Raises ValueError where they are none.
        """
        values = {binding.var: binding.value for binding in self.all}
        return fused.conv_and_steps(self.root.var, values)[1]

    @cached_property
    def operands(self) -> tuple[tuple[str, relax.Expr], ...]:
        """(name, operand) of all tensors that come from outside, in the composite's order."""
        definition = family_def(self.conv)
        assert definition is not None
        assert definition.kind is not None
        first, second, _ = ROLES[definition.kind]
        found = [(first, self.conv.args[0]), (second, self.conv.args[1])]
        return (*found, *((m.step.variable, m.operand) for m in self.steps if m.step.operand))


def check_epilogue(chain: Chain, problem: ConvProblem, epilogue: str) -> Decision:
    """Whether the ops after a convolution are what the epilogue's name promises."""
    inner = [binding.var for binding in chain.all]
    for name, operand in chain.operands:
        if any(operand.same_as(var) for var in inner):
            return no(f"its {name} is made by the convolution itself")
    for found, promised in zip(chain.steps, fused.EPILOGUES[epilogue], strict=True):
        if found.wrong is not None:
            word, value = found.step.operand or found.step.name, found.wrong.value
            return no(
                f"the {word} compares with, or selects, another value than the scalar {value}"
            )
        if promised.per_channel:
            decision = _check_bias(found, problem)
        elif promised.operand:
            decision = _check_whole(found, promised, chain.bindings[0].var)
        else:
            continue
        if not decision:
            return decision
    return YES


def _operand(found: Match) -> str:
    """What messages call a step's operand."""
    return "addend" if found.step.form.op == "add" else f"{found.step.operand}'s operand"


def _check_bias(found: Match, problem: ConvProblem) -> Decision:
    """One value per channel: size 1 along every other axis, aligned at the last one."""
    sizes, what = sizes_of(found.operand), _operand(found)
    role = problem.roles[2]
    if role == "weight":
        return no("a weight's gradient has no bias")
    layout = problem.layout(role)
    channels = problem.canonical_shape(role)[1]
    if sizes is None or len(sizes) > len(layout):
        return no(
            f"the {what} has an unknown shape or more than {len(layout)} axes: {found.operand.ty}"
        )
    want = [channels if letter == "C" else 1 for letter in layout]
    aligned = [1] * (len(layout) - len(sizes)) + sizes
    if not all(map(same_size, aligned, want)):
        return no(f"the {what} is not one value per channel of {layout}: its shape is {sizes}")
    return YES


def _check_whole(found: Match, promised: Step, made: relax.Expr) -> Decision:
    """An operand of the convolution's shape."""
    # A step that is not the promised one has the same form and another kind of operand.
    if found.step is promised and same_sizes(sizes_of(found.operand), sizes_of(made)):
        return YES
    return no(f"the {_operand(found)} is not of the result's shape: {found.operand.ty}")
