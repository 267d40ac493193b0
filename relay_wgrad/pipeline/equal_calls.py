"""Equal calls are legalized once.

A network repeats its layers, and a training graph what their gradients are made of: of ResNet-50's
3,700 calls 3,100 are of an operator, attributes and types that another call has.  Upstream writes
a kernel for each, and finds by its structure that it has it already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tvm
from tvm import relax, tirx
from tvm.ir import Op
from tvm_ffi.structural import StructuralKey

from ..graph.walk import bindings_of, functions_in
from ..ir import is_a, op_name

Legalizer = Callable[[relax.BlockBuilder, relax.Call], relax.Expr]
_LEGALIZE, _KERNEL = "FLegalize", "relax.call_tir"


def legalize_equal_once(
    rules: Mapping[str, Legalizer], made: Callable[[tirx.PrimFunc], None] | None = None
) -> tvm.transform.Pass:
    """Upstream's `LegalizeOps(rules)`: the same module.

    made : is told of each kernel when it is there; of some more than once.
    """

    @tvm.transform.module_pass(opt_level=0, name="relay_wgrad.legalize_equal_once")
    def run(mod: tvm.IRModule, _: Any) -> tvm.IRModule:
        names = {op_name(binding.value) for _, f in functions_in(mod) for binding in bindings_of(f)}
        own = {name: rule for name in names if name and (rule := rules.get(name) or _rule(name))}
        if not own:
            return mod
        # Anew for each module: what is known of a call is a kernel that its builder holds.
        once = {name: _Once(rule, made) for name, rule in own.items()}
        return relax.transform.LegalizeOps({**rules, **once})(mod)

    return run


def _rule(name: str) -> Any:
    op = Op.get(name)
    return op.get_attr(_LEGALIZE) if op.has_attr(_LEGALIZE) else None


class _Made(NamedTuple):
    """A call of a kernel, its parts, and which of the operator's operands are the kernel's."""

    op: Any
    args: list[Any]
    attrs: Any
    ty_args: Any
    places: list[int]

    def of(self, operands: list[Any]) -> relax.Call:
        kernel, _, *rest = self.args
        given = relax.Tuple([operands[place] for place in self.places])
        return relax.Call(self.op, [kernel, given, *rest], self.attrs, self.ty_args)


class _Once:
    """A rule that is asked once for calls that differ in which tensors they are given alone."""

    def __init__(self, rule: Legalizer, made: Callable[[tirx.PrimFunc], None] | None) -> None:
        self._rule, self._told = rule, made
        self._known: dict[Any, _Made | None] = {}

    def __call__(self, bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        operands: list[Any] = []
        parts: list[Any] = [call.attrs, call.ty]
        facts: list[Any] = []
        for arg in call.args[:]:
            _read(arg, operands, parts, facts)
        # x * x is no x * y.
        facts += [next(i for i, x in enumerate(operands) if x.same_as(y)) for y in operands]
        key = (StructuralKey(parts), tuple(facts))
        made = self._known.get(key)
        if made is not None:
            return made.of(operands)
        legalized = self._rule(bb, call)
        if self._told is not None and op_name(legalized) == _KERNEL:
            self._told(bb.get()[legalized.args[0]])
        if key not in self._known:
            known = all(map(_is_known, parts[1:]))
            self._known[key] = _made(legalized, operands) if known else None
        return legalized


def _read(arg: Any, operands: list[Any], parts: list[Any], facts: list[Any]) -> None:
    """An argument's tensors, and what a rule can know of it: structures, and numbers."""
    if is_a(arg, relax.Tuple):
        fields = arg.fields[:]
        facts.append(len(fields))
        for field in fields:
            _read(field, operands, parts, facts)
    elif (is_var := is_a(arg, relax.Var)) or is_a(arg.ty, relax.TensorType):
        operands.append(arg)
        parts.append(arg.ty)
        is_number = not is_var and not len(arg.ty.shape.values)
        facts.append(arg.value.numpy().tobytes() if is_number else "")  # rules may write it down
    else:
        parts.append(arg)


def _is_known(part: Any) -> bool:
    """Whether nothing in a type or an argument is known to the run alone, of which a rule may leave
    something for the run to compare."""
    if isinstance(part, relax.TupleType):
        return all(map(_is_known, part.fields))
    if isinstance(part, relax.TensorType):
        return part.shape is not None and _is_known(part.shape)
    if isinstance(part, relax.ShapeExpr):
        return all(isinstance(size, tirx.IntImm) for size in part.values)
    return isinstance(part, (tirx.IntImm, tirx.FloatImm))


def _made(legalized: relax.Expr, operands: list[Any]) -> _Made | None:
    """What a call became, if that is one kernel's call with operands of its own and no others."""
    if op_name(legalized) != _KERNEL:
        return None
    fields = getattr(legalized.args[1], "fields", None)
    if fields is None:
        return None
    places = [next((i for i, x in enumerate(operands) if x.same_as(y)), -1) for y in fields]
    if -1 in places:
        return None
    call = legalized
    return _Made(call.op, call.args[:], call.attrs, call.ty_args, places)
