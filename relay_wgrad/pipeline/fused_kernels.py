"""Legalization and fusion of what is no convolution: the part that our pipelines share.

Some operators are legalized otherwise than by upstream.  A mean is a sum and a division, so that
what is summed is fused with it.  A choice by a mask reads the mask as it is: upstream's compares it
as int64, which on a CPU takes ten times as long.  ReLU, clipping, `maximum` and `minimum` keep
NaN, as PyTorch's do: upstream's turn it into a bound or drop it, so a network whose parameters have
become NaN would go on to report a loss.  A product or quotient with the number 0 is computed.
Powers by small whole numbers are products.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.sym import Analyzer

from ..dtypes import HALVES
from ..registry import legalizations
from .again import Again
from .broadcasts import BroadcastOnce
from .equal_calls import Legalizer, legalize_equal_once
from .factored_sums import FactoredSums
from .fold_constant import fold_constants
from .identities import Identities
from .ieee import opaque_zero
from .index_bounds import bounded
from .joined import Joined
from .kernel_order import Order
from .made_sums import MadeSums
from .one_result import OneResult
from .overwrites import Overwrites
from .paired_sums import PairedSums
from .products import cpu_products
from .recompute import Recompute
from .same_sizes import SameSizes
from .single_terms import SingleTerms
from .sizes_first import SizesFirst
from .targets import cuda_target
from .unread import Unread
from .whole_sums import WholeSums, in_rows


def fused_kernels() -> list[tvm.transform.Pass]:
    """What takes the place of upstream's `legalize_passes`, with recomputing (`recompute`)."""
    return [
        Joined(),
        Identities(),
        FactoredSums(),
        WholeSums(),
        legalize_ops(),
        SizesFirst(),
        relax.transform.AnnotateTIROpPattern(),
        fold_constants(),
        # Else fusion moves a result of the function, such as a weight gradient, to the end, and
        # all that it reads lives till then.
        relax.transform.CanonicalizeBindings(),
        BroadcastOnce(),
        Recompute(),
        relax.transform.FuseOps(),
        SameSizes(),
        relax.transform.FuseTIR(),
        SingleTerms(),
        OneResult(),
        Unread(),
        MadeSums(),
        PairedSums(),
        Overwrites(),
        Order(),
        Again(),
    ]


def legalize_ops(made: Callable[[tirx.PrimFunc], None] | None = None) -> tvm.transform.Pass:
    """Upstream's `LegalizeOps` but for the operators above, and for large products on a CPU.

    made : is told of each kernel when it is there.
    """
    rules = {**legalizations(), **_LEGAL}
    return tvm.transform.Sequential([cpu_products(), legalize_equal_once(rules, made)])


def _upstream(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    rule = legalizations().get(str(call.op.name)) or call.op.get_attr("FLegalize")
    legalized: relax.Expr = rule(bb, call)
    return legalized


def mean(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A legalization of `relax.mean` in two kernels, where upstream's has one: the same values."""
    x, axes = call.args[0], call.attrs.axis
    lengths: list[Any] = list(x.ty.shape.values) if isinstance(x.ty.shape, relax.ShapeExpr) else []
    summed = [lengths[int(a)] for a in axes] if axes is not None and lengths else lengths
    if not summed or not all(isinstance(n, tirx.IntImm) and int(n) > 0 for n in summed):
        return _upstream(bb, call)
    count = tirx.const(math.prod(map(int, summed)), "int64")
    dtype = str(x.ty.dtype)
    if dtype in HALVES:
        x = bb.emit_te(topi.cast, x, "float32", primfunc_name_hint="widened")
    total = bb.emit_te(topi.sum, x, axes, call.attrs.keepdims, primfunc_name_hint="sum")

    def divide(total: Any) -> Any:
        return topi.cast(topi.divide(total, count), dtype)

    return bb.call_te(divide, total)


def nll_loss(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A legalization of `relax.nn.nll_loss` for CUDA, without weights: what the labels point at,
    and a sum.

    Upstream's one kernel has two sums, for which no schedule has more than one thread.
    """
    reduction, ignored = str(call.attrs.reduction), int(call.attrs.ignore_index)
    logs = call.args[0]
    usual = len(call.args) == 2 and logs.ty.ndim > 1 and str(logs.ty.dtype) not in HALVES
    if cuda_target() is None or not usual or reduction == "none":
        return _upstream(bb, call)

    def picked(logs: Any, labels: Any) -> Any:
        def element(*i: Any) -> Any:
            label = labels(*i)
            skipped = label == ignored
            at = tirx.Select(skipped, tirx.const(0, labels.dtype), label)
            return tirx.Select(skipped, tirx.const(0, logs.dtype), -logs(i[0], at, *i[1:]))

        return te.compute(labels.shape, element, name="picked")

    def counted(labels: Any) -> Any:
        one, none = (tirx.const(n, str(logs.ty.dtype)) for n in (1, 0))
        return te.compute(
            labels.shape, lambda *i: tirx.Select(labels(*i) == ignored, none, one), name="counted"
        )

    total = _whole_sum(bb, bb.emit_te(picked, *call.args))
    if reduction == "sum":
        return bb.call_te(topi.identity, total, primfunc_name_hint="nll_loss")
    count = _whole_sum(bb, bb.emit_te(counted, call.args[1]))
    return bb.call_te(topi.divide, total, count, primfunc_name_hint="nll_loss")


def _whole_sum(bb: relax.BlockBuilder, x: relax.Var) -> relax.Var:
    """The sum of a tensor, of a large one (labels of pixels) in two steps: `whole_sums`."""
    sizes = list(x.ty.shape.values)
    view = in_rows(list(map(int, sizes))) if _are_numbers(sizes) else None
    if view is not None:
        if view != list(map(int, sizes)):
            x = bb.emit_te(topi.reshape, x, view, primfunc_name_hint="reshape")
        x = bb.emit_te(topi.sum, x, list(range(len(view) - 1)), primfunc_name_hint="sum")
    return bb.emit_te(topi.sum, x, primfunc_name_hint="sum")


def relu(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A legalization of `relax.nn.relu`: 0 for what is less than 0, all else as it is."""

    def kept(x: Any) -> Any:
        zero = tirx.const(0, x.dtype)
        return te.compute(x.shape, lambda *i: tirx.Select(x(*i) < zero, zero, x(*i)), name="relu")

    return bb.call_te(kept, call.args[0], primfunc_name_hint="relu")


def clip(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A legalization of `relax.clip` with constant bounds: upstream's values, and NaN stays NaN."""
    x, low, high = call.args
    if not all(isinstance(bound, (tirx.IntImm, tirx.FloatImm)) for bound in (low, high)):
        return _upstream(bb, call)

    def kept(x: Any) -> Any:
        least, most = (tirx.const(bound.value, x.dtype) for bound in (low, high))

        def element(*i: Any) -> Any:
            value = x(*i)
            below = tirx.Select(value > most, most, value)
            return tirx.Select(below < least, least, below)

        return te.compute(x.shape, element, name="clip")

    return bb.call_te(kept, x, primfunc_name_hint="clip")


def power(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A legalization of `relax.power` of floats by a whole number up to 8: as few products.

    Upstream's calls the C library's function for each element, alone, but for squares.  A half's
    products are float32's, rounded once.
    """
    x, number, dtype = call.args[0], _number(call.args[1]), str(call.ty.dtype)
    exponent = number.value if isinstance(number, tirx.FloatImm) else 0
    if exponent not in range(1, 9) or not isinstance(call.ty.shape, relax.ShapeExpr):
        return _upstream(bb, call)

    def product(value: Any, times: int) -> Any:
        """By halves: with v = u u, v v is the fourth power, and a factor more an odd one."""
        if times == 1:
            return value
        half = product(value, times // 2)
        return half * half * value if times % 2 else half * half

    def raised(x: Any) -> Any:
        def element(*i: Any) -> Any:
            value = x(*i).astype("float32") if dtype in HALVES else x(*i)
            return product(value, int(exponent)).astype(dtype)

        return te.compute(x.shape, element, name="power")

    return bb.call_te(raised, x, primfunc_name_hint="power")


def where(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A legalization of `relax.where` for known shapes; numbers become part of the kernel."""
    if not all(isinstance(arg.ty.shape, relax.ShapeExpr) for arg in (call, *call.args)):
        return _upstream(bb, call)
    numbers = [_number(arg) for arg in call.args]

    def chosen(*tensors: Any) -> Any:
        def element(*i: Any) -> Any:
            rest = iter(tensors)
            return tirx.Select(*(_read(next(rest), i) if n is None else n for n in numbers))

        return te.compute(list(call.ty.shape.values), element, name="where")

    tensors = [arg for arg, number in zip(call.args, numbers, strict=True) if number is None]
    return bb.call_te(chosen, *tensors, primfunc_name_hint="where")


def _extremum(larger: Callable[[Any, Any], Any], hint: str) -> Legalizer:
    """`relax.maximum` and `minimum` for known shapes: `larger` tells which operand wins."""

    def rule(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not all(isinstance(arg.ty.shape, relax.ShapeExpr) for arg in (call, *call.args)):
            return _upstream(bb, call)
        numbers = [_number(arg) for arg in call.args]

        known = [n.value for n in numbers if n is not None]
        plain = bool(known) and not any(math.isnan(value) for value in known)

        def chosen(*tensors: Any) -> Any:
            def element(*i: Any) -> Any:
                rest = iter(tensors)
                a, b = (_read(next(rest), i) if n is None else n for n in numbers)
                if numbers[0] is not None:  # then b is no number, and may be NaN
                    a, b = b, a
                if plain:  # of an operand and a number that is no NaN: one comparison is enough
                    return tirx.Select(larger(b, a), b, a)
                return tirx.Select(tirx.any(larger(a, b), _is_nan(a, str(call.ty.dtype))), a, b)

            return te.compute(list(call.ty.shape.values), element, name=hint)

        tensors = [arg for arg, number in zip(call.args, numbers, strict=True) if number is None]
        return bb.call_te(chosen, *tensors, primfunc_name_hint=hint)

    return rule


def _is_nan(value: Any, dtype: str) -> Any:
    # TVM has no test for bfloat16.
    return tirx.isnan(value.astype("float32") if dtype == "bfloat16" else value)


def _number(arg: relax.Expr) -> Any:
    """A constant without axes, as it is written in a kernel."""
    if not isinstance(arg, tvm.ir.Constant) or len(arg.ty.shape.values):
        return None
    return tirx.const(arg.value.numpy().item(), str(arg.ty.dtype))


def _read(tensor: Any, index: tuple[Any, ...]) -> Any:
    """What an element of the result takes from an operand that is broadcast to its shape."""
    last = index[len(index) - len(tensor.shape) :]
    ones = [isinstance(n, tirx.IntImm) and int(n) == 1 for n in tensor.shape]
    return tensor(*(0 if one else i for one, i in zip(ones, last, strict=True)))


def _of_zero(combine: Callable[[Any, Any], Any], hint: str) -> Legalizer:
    """Of a product or quotient with the number 0, which TVM would take for 0: NaN stays NaN."""

    def rule(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        numbers = [_number(arg) for arg in call.args]
        zeros = [isinstance(n, tirx.FloatImm) and n.value == 0 for n in numbers]
        if not any(zeros) or not isinstance(call.ty.shape, relax.ShapeExpr):
            return _upstream(bb, call)
        dtype = str(call.ty.dtype)

        def combined(*tensors: Any) -> Any:
            def element(*i: Any) -> Any:
                rest = iter(tensors)
                pairs = zip(numbers, zeros, strict=True)
                return combine(
                    *(
                        opaque_zero(n.value, dtype) if zero else _read(next(rest), i)
                        for n, zero in pairs
                    )
                )

            return te.compute(list(call.ty.shape.values), element, name=hint)

        tensors = [arg for arg, zero in zip(call.args, zeros, strict=True) if not zero]
        return bb.call_te(combined, *tensors, primfunc_name_hint=hint)

    return rule


def _floor_quotient(a: Any, b: Any) -> Any:
    return tirx.floor(tirx.Div(a, b))


def _zero_remainder(a: Any, b: Any) -> Any:
    """Of 0 by a number, or of a number by 0, wherever it rounds to."""
    dtype = str(a.ty.dtype)
    if dtype not in HALVES:  # of which TVM has no remainder everywhere
        return tirx.Mod(a, b)
    return tirx.Mod(a.astype("float32"), b.astype("float32")).astype(dtype)


def reshape(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A legalization of `relax.reshape` of sizes that the run knows: each axis by its own.

    Upstream's finds each element's place in all of the tensor, and its place in the other from
    that; TVM's simplifier does not come to an end with the quotients of five symbolic sizes.
    """
    x, shape = call.args[0], call.ty.shape
    if not (isinstance(x.ty.shape, relax.ShapeExpr) and isinstance(shape, relax.ShapeExpr)):
        return _upstream(bb, call)
    given, wanted = list(x.ty.shape.values), list(shape.values)
    groups = None if _are_numbers((*given, *wanted)) else _groups(given, wanted)
    if groups is None:
        return _upstream(bb, call)

    def moved(x: Any) -> Any:
        def element(*places: Any) -> Any:
            at: list[Any] = []
            for (a, b), (c, d) in groups:
                place = tirx.const(0, "int64")
                for i in range(c, d):
                    place = place * wanted[i] + places[i]
                rest: list[Any] = []
                for i in reversed(range(a + 1, b)):
                    rest.append(tirx.indexmod(place, given[i]))
                    place = tirx.indexdiv(place, given[i])
                at += [*([place] if b > a else []), *reversed(rest)]
            return x(*at)

        return te.compute(wanted, element, name="reshape", tag="injective")

    return bb.emit_te(moved, x, primfunc_name_hint="reshape")


def _are_numbers(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, tirx.IntImm) for size in sizes)


def _groups(
    given: Sequence[Any], wanted: Sequence[Any]
) -> list[tuple[tuple[int, int], tuple[int, int]]] | None:
    """Runs of axes of both shapes of which each has as many elements as its fellow, of which one is
    a single axis; None where that cannot be told."""
    is_equal = Analyzer().can_prove_equal
    found, i, j = [], 0, 0
    while i < len(given) and j < len(wanted):
        if is_equal(given[i], wanted[j]):
            found.append(((i, i + 1), (j, j + 1)))
            i, j = i + 1, j + 1
            continue
        ends = [(b, j + 1) for b in range(i + 2, len(given) + 1)]
        ends += [(i + 1, d) for d in range(j + 2, len(wanted) + 1)]
        for b, d in ends:
            sizes = [reduce(operator.mul, some) for some in (given[i:b], wanted[j:d])]
            if is_equal(*sizes):
                found.append(((i, b), (j, d)))
                i, j = b, d
                break
        else:
            return None
    return found if i == len(given) and j == len(wanted) else None


_LEGAL: dict[str, Legalizer] = {
    **bounded(_upstream),
    "relax.reshape": reshape,
    "relax.multiply": _of_zero(tirx.Mul, "multiply"),
    "relax.divide": _of_zero(tirx.Div, "divide"),
    "relax.floor_divide": _of_zero(_floor_quotient, "floor_divide"),
    "relax.floor_mod": _of_zero(_zero_remainder, "floor_mod"),
    "relax.mean": mean,
    "relax.clip": clip,
    "relax.power": power,
    "relax.nn.nll_loss": nll_loss,
    "relax.nn.relu": relu,
    "relax.where": where,
    "relax.maximum": _extremum(operator.gt, "maximum"),
    "relax.minimum": _extremum(operator.lt, "minimum"),
}
