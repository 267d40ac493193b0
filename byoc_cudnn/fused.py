"""What may follow a convolution into its kernel: one record for each step of an epilogue.

Everything else is made of the records: TVM's patterns and Relay's, how a chain of ops is found and
what its operands are, how a region is read back, the words of generated code, the operands that are
timed, and the numbers that tests expect.  Which of it a backend takes is the backend's (`rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.tirx import FloatImm, IntImm

from relay_wgrad.ir import op_name
from relay_wgrad.ops.call_problem import family_def
from relay_wgrad.problem import ConvProblem
from relay_wgrad.relation import as_size

Array = np.ndarray[Any, Any]


class Place(Enum):
    """What an argument of a step's operator is."""

    VALUE = "what the steps before have made"
    OPERAND = "a tensor from outside"


@dataclass(frozen=True)
class Number:
    """An argument that is a scalar constant of this value, or the number itself."""

    value: float


VALUE, OPERAND = Place.VALUE, Place.OPERAND
ZERO, SIX = Number(0), Number(6)


@dataclass(frozen=True)
class Form:
    """An operator, as Relay names it, and its arguments; Relax's name has `relax.` before.

    commutes : two arguments that may stand in either order.
    attrs : of Relay's operator.
    """

    op: str
    args: tuple[Place | Number | Form, ...]
    commutes: bool = False
    attrs: tuple[tuple[str, float], ...] = ()

    @property
    def relax(self) -> str:
        return f"relax.{self.op}"

    @property
    def orders(self) -> list[tuple[Place | Number | Form, ...]]:
        return [self.args, self.args[::-1]] if self.commutes else [self.args]

    @property
    def way(self) -> tuple[Form, ...]:
        """The operators from what the steps before have made to the result."""
        if VALUE in self.args:
            return (self,)
        ways = [arg.way for arg in self.args if isinstance(arg, Form)]
        return (*way, self) if (way := next(filter(None, ways), ())) else ()

    @property
    def inner(self) -> Form | None:
        """The operator, beside those on the way, that makes one of the arguments."""
        forms = [arg for arg in self.args if isinstance(arg, Form)]
        return forms[0] if forms and VALUE in self.args else None


@dataclass(frozen=True)
class Step:
    """One operation after a convolution.

    name : its part of epilogues' names, without "_"; word : the same in generated code.
    form : what it is in Relax; others : other ways to write it there.
    relay : how Relay writes it, if there are other ways.
    numpy : what it does to the values so far, with its operand.
    operand : what generated code calls its operand (`codegen.entry`), "" if it has none;
        variable : what a composite does.
    per_channel : whether the operand has one value per channel; else it has the result's shape.
        Of two steps of one form that which has it counts.
    """

    name: str
    word: str
    form: Form
    numpy: Callable[[Array, Array], Array]
    operand: str = ""
    variable: str = ""
    relay: tuple[Form, ...] = ()
    per_channel: bool = False
    others: tuple[Form, ...] = ()

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.form, *self.others)


_ADD = Form("add", (VALUE, OPERAND), commutes=True)
_ADDED = Form("add", (VALUE, OPERAND))  # Relay's matcher tries both orders


# As `clip` of Relay and of ONNX becomes.
_AT_MOST_SIX = Form("minimum", (Form("maximum", (VALUE, ZERO), commutes=True), SIX), commutes=True)
# As PyTorch, ONNX and Relay write SiLU.
_BY_SIGMOID = Form("multiply", (VALUE, Form("sigmoid", (VALUE,))), commutes=True)


def _silu(y: Array, _: Array) -> Array:
    with np.errstate(over="ignore"):
        return y / (1 + np.exp(-y))


def _selected(compared: str) -> Form:
    return Form("where", (Form(compared, (OPERAND, ZERO)), ZERO, VALUE))


# The masks are ReLU's gradient.  Upstream's rule and Relay let the result pass where x is 0;
# PyTorch, and so our rule, do not; both let it pass where x is NaN.  Neither is a library's "ReLU
# backward" that multiplies by x > 0: it has to be asked for as a comparison and a selection.  One
# is never taken for the other.
STEPS: dict[str, Step] = {
    step.name: step
    for step in (
        Step(
            "bias", "Bias", _ADD, np.add, "bias", "bias",
            relay=(Form("nn.bias_add", (VALUE, OPERAND)), _ADDED), per_channel=True,
        ),
        Step(
            "residual", "Residual", _ADD, np.add, "residual", "residual",
            relay=(Form("nn.bias_add", (VALUE, OPERAND)), _ADDED),
        ),
        Step("relu", "Relu", Form("nn.relu", (VALUE,)), lambda y, _: np.maximum(y, 0)),
        Step(
            "relu6", "Relu6", Form("clip", (VALUE, ZERO, SIX)), lambda y, _: np.clip(y, 0, 6),
            relay=(Form("clip", (VALUE,), attrs=(("a_min", 0.0), ("a_max", 6.0))),),
            others=(_AT_MOST_SIX,),
        ),
        Step(
            "silu", "Silu", Form("nn.silu", (VALUE,)), _silu, relay=(_BY_SIGMOID,),
            others=(_BY_SIGMOID,),
        ),
        Step(
            "mask", "Mask", _selected("less"), lambda y, x: np.where(x < 0, 0, y), "mask", "x",
        ),
        Step(
            "strictmask", "StrictMask", _selected("less_equal"),
            lambda y, x: np.where(x <= 0, 0, y), "mask", "x",
        ),
    )
}  # fmt: skip

EPILOGUES: dict[str, tuple[Step, ...]] = {
    name: tuple(STEPS[part] for part in name.split("_") if part)
    for name in (
        "", "bias", "relu", "bias_relu", "relu6", "bias_relu6", "silu", "bias_silu", "residual",
        "residual_relu", "mask", "strictmask",
    )
}  # fmt: skip
"""Name -> its steps in order.  A name has them joined by "_"; "" is the convolution alone."""

MASKS = tuple(s.name for s in STEPS.values() if s.form.inner is not None)
"""The steps that select by a comparison."""


@dataclass(frozen=True)
class Match:
    """A step that was found: its operand, the constants, and the call that has the operand.

    value : what it is applied to; length : by how many ops on the way.
    at : which of the call's arguments the operand is; numbers : what each constant must be, and it.
    """

    step: Step
    value: Any
    length: int = 1
    operand: Any = None
    call: Any = None
    at: int = -1
    numbers: tuple[tuple[Number, Any], ...] = ()

    @property
    def wrong(self) -> Number | None:
        """What one of the constants is not."""
        return next((number for number, found in self.numbers if not _is(number, found)), None)


def conv_and_steps(
    result: relax.Expr, values: Mapping[relax.Var, relax.Expr]
) -> tuple[relax.Call, tuple[Match, ...]]:
    """The convolution that a result is made of, and the steps from it to the result, in order.

    values : what variables stand for.  Raises ValueError for what is no step of an epilogue.
    """

    def resolved(expr: Any) -> Any:
        while isinstance(expr, relax.Var) and expr in values:
            expr = values[expr]
        return expr

    def has_conv(expr: Any) -> bool:
        expr = resolved(expr)
        if family_def(expr) is not None:
            return True
        return isinstance(expr, relax.Call) and any(map(has_conv, expr.args))

    expr, found = resolved(result), []
    while family_def(expr) is None:
        step = match(expr, resolved, has_conv)
        if step is None:
            raise ValueError(f"no step of an epilogue: {expr}")
        found.append(step)
        expr = resolved(step.value)
    return expr, tuple(reversed(found))


def match(
    call: Any, resolved: Callable[[Any], Any], has_conv: Callable[[Any], bool]
) -> Match | None:
    """The step that a Relax call is; None for none.

    resolved : what a variable stands for; has_conv : whether an argument is what the steps before
    have made.
    """
    for form in dict.fromkeys(form for step in STEPS.values() for form in step.forms):
        found = _places(form, call, resolved, has_conv)
        if found is None:
            continue
        value, *others = (arg for _, _, arg in found[VALUE])
        if not all(map(value.same_as, others)):
            continue
        same = [step for step in STEPS.values() if form in step.forms]
        operand = found.get(OPERAND, [(None, -1, None)])[0]
        if len(same) > 1:
            whole = is_whole(operand[2], call)
            same = [step for step in same if step.per_channel != whole]
        numbers = tuple(
            (place, number)
            for place, places in found.items()
            if isinstance(place, Number)
            for _, _, number in places
        )
        return Match(same[0], value, len(form.way), operand[2], operand[0], operand[1], numbers)
    return None


def is_whole(addend: relax.Expr, result: relax.Expr) -> bool:
    """Whether a tensor has a sum's shape; not where one axis alone has more than 1 element."""
    shape = sizes_of(addend)
    return same_sizes(shape, sizes_of(result)) and sum(size != 1 for size in shape or ()) > 1


def sizes_of(expr: relax.Expr) -> list[Any] | None:
    """A tensor's sizes; None where they are unknown."""
    shape = expr.ty.shape if isinstance(expr.ty, relax.TensorType) else None
    return [as_size(v) for v in shape.values] if isinstance(shape, relax.ShapeExpr) else None


def same_sizes(a: list[Any] | None, b: list[Any] | None) -> bool:
    """Whether sizes are known and equal."""
    if a is None or b is None or len(a) != len(b):
        return False
    return all(map(same_size, a, b))


def same_size(a: Any, b: Any) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(tvm_ffi.structural_equal(a, b))


def _is(number: Number, expr: Any) -> bool:
    """Whether an expression is a number: a scalar constant, or a primitive value."""
    if isinstance(expr, tvm.ir.Constant) and isinstance(expr.ty, relax.TensorType):
        return expr.ty.ndim == 0 and bool(expr.value.numpy() == number.value)
    return isinstance(expr, IntImm | FloatImm) and bool(expr.value == number.value)


def _places(
    form: Form, call: Any, resolved: Callable[[Any], Any], has_conv: Callable[[Any], bool]
) -> dict[Place | Number, list[tuple[Any, int, Any]]] | None:
    """Place -> (call, index, argument) of the arguments that are there; None for another form."""
    if op_name(call) != form.relax or len(call.args) != len(form.args):
        return None
    for order in form.orders:
        found: dict[Place | Number, list[tuple[Any, int, Any]]] = {}
        for index, (place, arg) in enumerate(zip(order, call.args, strict=True)):
            if isinstance(place, Form):
                inner = _places(place, resolved(arg), resolved, has_conv)
                if inner is None:
                    break
                for name, places in inner.items():
                    found.setdefault(name, []).extend(places)
            elif place is VALUE and not has_conv(arg):
                break
            else:
                found.setdefault(place, []).append((call, index, arg))
        else:
            return found
    return None


def operand_shape(step: Step, problem: ConvProblem) -> tuple[Any, ...]:
    """The shape of a step's operand, with a bias as one axis."""
    result = problem.roles[2]
    shape = tuple(problem.shape(result))
    channels = "I" if result == "weight" else "C"
    return (shape[problem.layout(result).index(channels)],) if step.per_channel else shape


def has_bias(epilogue: Sequence[str]) -> bool:
    """Whether one of the steps named has an operand of one value per channel."""
    return any(STEPS[name].per_channel for name in epilogue)


def reference(
    steps: Sequence[Step], result: Array, operands: Mapping[str, Array], problem: ConvProblem
) -> Array:
    """What the steps make of a convolution's result; operands by `Step.operand`, in `problem`'s
    layout."""
    axis = problem.layout(problem.roles[2]).find("C")
    for step in steps:
        operand = operands[step.operand] if step.operand else result
        if step.per_channel:
            operand = operand.reshape([-1 if i == axis else 1 for i in range(result.ndim)])
        result = step.numpy(result, operand)
    return result
