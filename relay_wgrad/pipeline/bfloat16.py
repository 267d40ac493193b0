"""bfloat16 in kernels of a CPU: each result is rounded, as it is where each operator is a kernel.

TVM computes bfloat16 in float32 and rounds what is stored alone, so that a result depends on what
is fused: a maximum's gradient found no element that is the maximum, and a step whose activations
are computed again had other gradients than one that keeps them.  Here whatever a kernel stores,
compares or converts is written out in float32, with the roundings in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import s_tir, tirx
from tvm_ffi import structural_map, structural_walk

from ..graph.rebuild import with_fields
from ..ir import CHOICE

NARROW, WIDE = "bfloat16", "float32"
_COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)
FEW = 4
"""Roundings that one expression may hold: each names its operand four times."""


def _is_narrow(value: Any) -> bool:
    return str(getattr(value.ty, "dtype", "")) == NARROW


def _word(value: int) -> Any:
    return tirx.const(value, "uint32")


def _nearest(x: Any) -> Any:
    """A number in float32 as the nearest bfloat16, of two alike the even one.

    The operand has a name, since chains of roundings that repeat theirs grow without bound.
    """
    name = tirx.Var("to_round", WIDE)
    bits = tirx.reinterpret("uint32", name)
    odd = tirx.shift_right(bits, _word(16)) & _word(1)
    nearest = (bits + _word(0x7FFF) + odd) & _word(0xFFFF0000)
    # By its bits, since TVM makes a branch of a choice that calls `isnan`.
    is_nan = (bits & _word(0x7FFFFFFF)) > _word(0x7F800000)
    kept = tirx.reinterpret(WIDE, tirx.Select(is_nan, bits, nearest))
    return tirx.Let(name, x, kept)


def _choice(value: Any, of: Callable[[Any], Any]) -> Any | None:
    """What gives one of its operands, with `of` each of them; None for what does not."""
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, of(value.true_value), of(value.false_value))
    if isinstance(value, tirx.Max | tirx.Min):
        return type(value)(of(value.a), of(value.b))
    if _called(value) == CHOICE:
        condition, taken, other = value.args
        return _guarded(tirx.if_then_else(condition, of(taken), of(other)))
    return None


def _guarded(node: Any) -> Any:
    """Operands of roundings in a branch, which are computed before it, where it is taken."""
    condition, *branches = node.args
    zero = tirx.const(0.0, WIDE)

    def guarded(where: Any, let: Any) -> Any:
        return tirx.Let(let.var, tirx.if_then_else(where, let.value, zero), let.body)

    wheres = (condition, tirx.Not(condition))
    return tirx.if_then_else(
        condition,
        *(
            structural_map(branch, [(tirx.Let, partial(guarded, where))])
            for where, branch in zip(wheres, branches, strict=True)
        ),
    )


def _computed(value: Any) -> Any | None:
    """A number in float32 whose nearest bfloat16 is the value; None for what computes nothing."""
    if isinstance(value, tirx.Cast):
        return value.value if str(value.value.ty.dtype) == WIDE else tirx.Cast(WIDE, value.value)
    if isinstance(value, _ARITHMETIC):
        return type(value)(_wide(value.a), _wide(value.b))
    if _called(value).startswith("tirx.") and value.args and all(map(_is_narrow, value.args)):
        return tvm.ir.Call(value.op, [_wide(x) for x in value.args], ret_ty=WIDE)
    return None


def _wide(value: Any) -> Any:
    """The value, a bfloat16, in float32."""
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(np.asarray(value.value, ml_dtypes.bfloat16)), WIDE)
    chosen = _choice(value, _wide)
    if chosen is not None:
        return chosen
    computed = _computed(value)
    return tirx.Cast(WIDE, value) if computed is None else _nearest(computed)


def _to_store(value: Any) -> Any:
    """Of what rounds to the value, the choice too: a number in float32."""
    for found in (_choice(value, _to_store), _computed(value)):
        if found is not None:
            return found
    return _wide(value)


def _called(value: Any) -> str:
    return str(getattr(value.op, "name", "")) if isinstance(value, tvm.ir.Call) else ""


def _converted(node: Any) -> Any:
    dtype = str(node.ty.dtype)
    if dtype == NARROW or not _is_narrow(node.value):
        return node
    wide = _wide(node.value)
    return wide if dtype == WIDE else tirx.Cast(dtype, wide)


def _compared(node: Any) -> Any:
    return type(node)(_wide(node.a), _wide(node.b)) if _is_narrow(node.a) else node


def _condition(node: Any) -> Any:
    """Whether a number is NaN or infinite; and branches, of any type."""
    if _called(node) == CHOICE:
        return _guarded(node)
    if str(getattr(node.ty, "dtype", "")) != "bool" or len(node.args) != 1:
        return node
    (operand,) = node.args
    return tvm.ir.Call(node.op, [_wide(operand)], ret_ty="bool") if _is_narrow(operand) else node


def _stored(results: Sequence[Any], names: list[Any] | None, node: Any) -> Any:
    """With few roundings in the expression.  What is rounded in more stands in memory of one number
    before it, of which LLVM makes a register (TVM's lowering of bfloat16 passes over the values of
    `Let` and of `Bind`).  A loop of vectors has no such memory (`names` is None): many operators in
    one are computed as by TVM, whose result alone is rounded.
    """
    value = node.value
    if _is_narrow(value) and not isinstance(value, tirx.FloatImm | tvm.ir.TensorLoad):
        # Memory of the kernel's own is float32 after that lowering: nothing is rounded there.
        is_result = any(map(node.buffer.same_as, results))
        value = tirx.Cast(NARROW, (_to_store if is_result else _wide)(value))
    found: list[Any] = []
    structural_walk(value, [(tirx.Let, found.append)])
    before: list[Any] = []

    def instead(let: Any) -> Any:
        if len(found) <= FEW:
            return _written_out(let)
        if names is None:
            return let.value
        name = tirx.decl_buffer((1,), WIDE, "to_round")
        names.append(name)
        before.append(tirx.BufferStore(name, let.value, [0]))
        return _with(let.body, let.var, tirx.BufferLoad(name, [0]))

    value = structural_map(value, [(tirx.Let, instead)])
    if value.same_as(node.value):
        return node
    store = tirx.BufferStore(node.buffer, value, node.indices)
    return tirx.SeqStmt([*before, store]) if before else store


def _with(value: Any, name: Any, operand: Any) -> Any:
    """The value with an operand in the place of a name."""
    return structural_map(value, [(tvm.ir.Var, lambda v: operand if v.same_as(name) else v)])


def _written_out(let: Any) -> Any:
    """With its operand wherever the name is."""
    return _with(let.body, let.var, let.value)


def _bound(node: Any) -> Any:
    """A name's operands by their bits: TVM's lowering of bfloat16 leaves a conversion there as it
    is, of a number whose type it has made uint16."""

    def by_bits(cast: Any) -> Any:
        if str(cast.ty.dtype) != WIDE or not _is_narrow(cast.value):
            return cast
        bits = tirx.Cast("uint32", tirx.reinterpret("uint16", cast.value))
        return tirx.reinterpret(WIDE, tirx.shift_left(bits, _word(16)))

    value = structural_map(node.value, [(tirx.Cast, by_bits)])
    return node if value.same_as(node.value) else tirx.Bind(node.var, value)


def _has_vectors(kernel: tirx.PrimFunc) -> bool:
    kinds: list[int] = []
    structural_walk(kernel.body, [(tirx.For, lambda loop: kinds.append(int(loop.kind)))])
    return int(tirx.ForKind.VECTORIZED) in kinds


_RULES: list[tuple[Any, Callable[[Any], Any]]] = [
    (tirx.Cast, _converted),
    *((kind, _compared) for kind in _COMPARISONS),
    (tvm.ir.Call, _condition),
]


def rounded(kernel: tirx.PrimFunc) -> Any:
    """A kernel's statements with each result in bfloat16 rounded."""
    names: list[Any] | None = None if _has_vectors(kernel) else []
    rules = [*_RULES, (tirx.BufferStore, partial(_stored, kernel.params, names))]
    if names is not None:
        rules.append((s_tir.SBlock, partial(_allocating, names)))
    body = structural_map(kernel.body, rules)
    return structural_map(body, [(tirx.Let, _written_out), (tirx.Bind, _bound)])


def _allocating(names: list[Any], block: Any) -> Any:
    """The block with the memory of what its statements name: blocks end before those around them.

    Elsewhere it would have to be among what the block writes.
    """
    if not names:
        return block
    memory = [*block.alloc_buffers, *names]
    names.clear()
    return with_fields(block, alloc_buffers=memory)
