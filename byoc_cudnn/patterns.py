"""What rows match: a call of the convolution family and the elementwise ops after it.

Patterns are TVM's `DFPattern`s, so that they serve `relax.transform.FuseOpsByPattern` too; they say
which ops stand where.  What a pattern can't say (that a bias is one value per channel, that a mask
compares with zero) `check_epilogue` says, with a reason.  Both know nothing of any backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.dpl import DFPattern, is_const, is_op, wildcard

from relay_wgrad.problem import ConvKind, ConvProblem
from relay_wgrad.relation import as_size

from .decision import YES, Decision, no

ADD, RELU, WHERE = "relax.add", "relax.nn.relu", "relax.where"

MASKS = {"mask": "relax.less", "strictmask": "relax.less_equal"}
"""Epilogue -> how it compares x with 0 in where(compared, 0, result): ReLU's gradient.

Upstream's rule and Relay let the result pass where x is 0; PyTorch, and so our rule, do not; both
let it pass where x is NaN.  Neither is a library's "ReLU backward" that multiplies by x > 0: it has
to be asked for as a comparison and a selection.  One is never taken for the other.
"""

EPILOGUES: dict[str, tuple[str, ...]] = {
    "": (),
    "bias": (ADD,),
    "relu": (RELU,),
    "bias_relu": (ADD, RELU),
    "residual": (ADD,),
    "residual_relu": (ADD, RELU),
    **dict.fromkeys(MASKS, (WHERE,)),
}
"""Name -> the ops on the way from the convolution to the result, in order.

What is added is a bias, one value per channel, or a residual, a tensor of the result's shape.
"""

CALLS: dict[ConvKind, tuple[tuple[str, int], ...]] = {
    ConvKind.FPROP: (("relax.nn.conv2d", 2),),
    ConvKind.DGRAD: (("relax.nn.conv2d_backward_data", 3), ("relax.nn.conv2d_transpose", 2)),
    ConvKind.WGRAD: (("relax.nn.conv2d_backward_weight", 2),),
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
    for op in EPILOGUES[epilogue]:
        if op == ADD:
            bias = wildcard()
            out = is_op(ADD)(out, bias) | is_op(ADD)(bias, out)
        elif op == RELU:
            out = is_op(RELU)(out)
        else:
            out = is_op(WHERE)(is_op(MASKS[epilogue])(wildcard(), is_const()), is_const(), out)
    return out


@dataclass(frozen=True)
class Chain:
    """A convolution and the ops after it, as they stand in a block.

    `bindings` holds the convolution's binding, then one for each op of the epilogue.  `mask` is the
    binding of the comparison of an epilogue of `MASKS`.
    """

    bindings: tuple[relax.VarBinding, ...]
    mask: relax.VarBinding | None = None

    @property
    def conv(self) -> relax.Call:
        return self.bindings[0].value

    @property
    def root(self) -> relax.VarBinding:
        return self.bindings[-1]

    @property
    def all(self) -> tuple[relax.VarBinding, ...]:
        """All bindings in the order in which the composite has them."""
        if self.mask is None:
            return self.bindings
        return (self.bindings[0], self.mask, *self.bindings[1:])

    @property
    def ops(self) -> tuple[str, ...]:
        return tuple(str(binding.value.op.name) for binding in self.bindings[1:])

    def operands(self) -> list[tuple[str, relax.Expr]]:
        """(name, operand) of all tensors that come from outside, in the composite's order."""
        kinds = {name: kind for kind, calls in CALLS.items() for name, _ in calls}
        first, second = _NAMES[kinds[str(self.conv.op.name)]]
        found = [(first, self.conv.args[0]), (second, self.conv.args[1])]
        for i, op in enumerate(self.ops, start=1):
            if op == ADD:
                other = self._other(i)
                found.append((addend_name(other, self.bindings[i].var), other))
        if self.mask is not None:
            found.append(("x", self.mask.value.args[0]))
        return found

    def _other(self, index: int) -> relax.Expr:
        """The operand of a binary op that is not what the chain brings."""
        a, b = self.bindings[index].value.args
        return b if a.same_as(self.bindings[index - 1].var) else a


_NAMES = {
    ConvKind.FPROP: ("data", "weight"),
    ConvKind.DGRAD: ("grad", "weight"),
    ConvKind.WGRAD: ("grad", "data"),
}


def addend_name(addend: relax.Expr, result: relax.Expr) -> str:
    """`residual` for a tensor of the sum's shape, unless one axis alone has more than 1 element."""
    shape, wanted = _sizes(addend), _sizes(result)
    if shape is None or wanted is None or len(shape) != len(wanted):
        return "bias"
    same = all(_equal(a, b) for a, b in zip(shape, wanted, strict=True))
    return "residual" if same and sum(size != 1 for size in shape) > 1 else "bias"


def check_epilogue(chain: Chain, problem: ConvProblem, epilogue: str) -> Decision:
    """Whether the ops after a convolution are what the epilogue's name promises."""
    inner = [binding.var for binding in chain.all]
    for name, operand in chain.operands():
        if any(operand.same_as(var) for var in inner):
            return no(f"its {name} is made by the convolution itself")
        if name == "residual" and name in epilogue:
            continue  # its name says it all
        if name in ("bias", "residual"):
            decision = _check_bias(operand, problem, epilogue)
        elif name == "x":
            decision = _check_mask(chain, operand)
        else:
            continue
        if not decision:
            return decision
    return YES


def _sizes(expr: relax.Expr) -> list[Any] | None:
    shape = expr.ty.shape if isinstance(expr.ty, relax.TensorType) else None
    return [as_size(v) for v in shape.values] if isinstance(shape, relax.ShapeExpr) else None


def _check_bias(bias: relax.Expr, problem: ConvProblem, epilogue: str) -> Decision:
    """One value per channel: size 1 along every other axis, aligned at the last one."""
    if "residual" in epilogue:
        return no(f"the addend is not of the result's shape: {bias.ty}")
    sizes = _sizes(bias)
    role = problem.roles[2]
    if role == "weight":
        return no("a weight's gradient has no bias")
    layout = problem.layout(role)
    channels = problem.canonical_shape(role)[1]
    if sizes is None or len(sizes) > 4:
        return no(f"the addend has an unknown shape or more than 4 axes: {bias.ty}")
    want = [channels if letter == "C" else 1 for letter in layout]
    aligned = [1] * (4 - len(sizes)) + sizes
    if not all(_equal(a, b) for a, b in zip(aligned, want, strict=True)):
        return no(f"the addend is not one value per channel of {layout}: its shape is {sizes}")
    return YES


def _check_mask(chain: Chain, x: relax.Expr) -> Decision:
    """where(compared(x, 0), 0, result) with x of the result's shape."""
    assert chain.mask is not None
    for constant in (chain.mask.value.args[1], chain.root.value.args[1]):
        if not _is_zero(constant):
            return no("the mask compares with, or selects, another value than the scalar 0")
    shape, made = _sizes(x), _sizes(chain.bindings[0].var)
    if shape is None or made is None or len(shape) != len(made):
        return no(f"the mask's operand is not of the result's shape: {x.ty}")
    if not all(_equal(a, b) for a, b in zip(shape, made, strict=True)):
        return no(f"the mask's operand is not of the result's shape: {x.ty}")
    return YES


def _is_zero(expr: relax.Expr) -> bool:
    if not isinstance(expr, tvm.ir.Constant) or expr.ty.ndim != 0:
        return False
    return bool(expr.value.numpy() == 0)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(tvm_ffi.structural_equal(a, b))
