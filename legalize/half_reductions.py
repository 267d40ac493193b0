"""FLegalize of reductions: those of half precision are computed in float32, and rounded once.

Upstream adds float16 and bfloat16 numbers in that type: a sum of ones stops at 2,048, or at 256.
Here upstream's own tensor expressions are computed on operands that are widened as they are read,
and each result is rounded when it is complete.  Whatever has no half-precision operand is
upstream's.

The widening becomes part of the block that reads, so it takes no memory, but for matrix products
and their kin on a GPU.  There it stays a block of its own, which the schedules of TVM's dlight
inline themselves: from a product whose operands are float16 to the block that multiplies them, its
rule `gpu.Matmul` would make tensor-core instructions, and crash the process from some sizes on.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, s_tir, te, tirx, topi
from tvm.relax.utils import gen_call_tir_inputs
from tvm.target import Target
from tvm.te import _ffi_api

from relay_wgrad.dtypes import HALVES
from relay_wgrad.layout_rules.in_layout import attr_fields, attrs_with
from relay_wgrad.opdef import OpDef
from relay_wgrad.ops.half_reductions import PRODUCTS

WIDE = "float32"
_WIDENED = "widened"


def wide_rule(definition: OpDef, upstream: Any) -> Callable[..., Any]:
    """The FLegalize rule of one op; `upstream` is the rule that says what is computed."""
    compute = _OWN.get(definition.name, upstream)
    # Upstream's asks TVM for the result's shape, with a BlockBuilder of TVM's own.
    plain = matmul if compute is matmul else upstream

    def rule(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        if not any(dtype in HALVES for arg in call.args for dtype in _dtypes(arg.ty)):
            return plain(bb, call)
        target = Target.current(allow_none=True)
        on_cpu = target is None or str(target.kind.name) == "llvm"
        builder = _Wide(bb, _dtypes(call.ty), on_cpu or definition.name not in PRODUCTS)
        asked = _without_half_attributes(bb, call)
        made = compute(builder, asked)
        return call if made.same_as(asked) else made

    return rule


def _dtypes(ty: Any) -> list[str]:
    """The dtypes of a type's tensors."""
    if isinstance(ty, relax.TupleType):
        return [dtype for field in ty.fields for dtype in _dtypes(field)]
    return [str(ty.dtype)] if isinstance(ty, relax.TensorType) else []


def _without_half_attributes(bb: relax.BlockBuilder, call: relax.Call) -> relax.Call:
    """The call that asks for a float32 result where it would be a half one, asked for or not."""
    fields = attr_fields(call.attrs) if call.attrs is not None else {}
    if "out_dtype" not in fields or str(call.ty.dtype) not in HALVES:
        return call
    attrs = attrs_with(call.attrs, out_dtype=WIDE)
    return bb.normalize(relax.Call(call.op, call.args, attrs, call.ty_args))


class _Wide:
    """A BlockBuilder whose kernels compute in float32 and give results of the dtypes asked for."""

    def __init__(self, bb: relax.BlockBuilder, dtypes: Sequence[str], inline: bool) -> None:
        self._bb, self._dtypes, self._inline = bb, dtypes, inline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bb, name)

    def call_te(
        self, function: Callable[..., Any], *args: Any, primfunc_name_hint: str = "", **named: Any
    ) -> relax.Expr:
        """As BlockBuilder's: a kernel, and a second one that rounds where the first ends in a sum.

        A kernel that is nothing but a sum can be fused with what it sums, and a matrix product with
        what follows it.
        """
        later: list[str] = []

        def widened(*args: Any, **named: Any) -> Any:
            made = function(*_widened(args), **_widened(named))
            several = isinstance(made, (list, tuple))
            tensors = list(made) if several else [made]
            if len(tensors) == 1 and _is_sum(tensors[0]) and tensors[0].dtype != self._dtypes[0]:
                later.append(self._dtypes[0])
                return made
            rounded = [_rounded(t, to) for t, to in zip(tensors, self._dtypes, strict=True)]
            return rounded if several else rounded[0]

        func, inputs, out_ty = gen_call_tir_inputs(widened, *args, **named)
        func = inlined(func) if self._inline else func
        name = primfunc_name_hint or function.__name__
        made = relax.call_tir(self._bb.add_func(func, name), inputs, out_ty)
        if later:
            made = self._bb.call_te(
                topi.cast, self._bb.emit(made), later[0], primfunc_name_hint="rounded"
            )
        return made


def _widened(given: Any) -> Any:
    """Arguments of a tensor expression, those of half precision as float32."""
    if isinstance(given, te.Tensor) and given.dtype in HALVES:
        return te.compute(given.shape, lambda *i: given(*i).astype(WIDE), name=_WIDENED)
    if isinstance(given, (list, tuple)):
        return [_widened(x) for x in given]
    if isinstance(given, dict):
        return {key: _widened(x) for key, x in given.items()}
    return given


def _is_sum(tensor: Any) -> bool:
    return isinstance(tensor.op, te.ComputeOp) and isinstance(tensor.op.body[0], tirx.Reduce)


def _rounded(tensor: Any, dtype: str) -> Any:
    """The tensor in its dtype; what it ends with is computed and rounded at once."""
    if tensor.dtype == dtype:
        return tensor
    op = tensor.op
    if not isinstance(op, te.ComputeOp) or len(op.body) > 1 or _is_sum(tensor):
        return te.compute(tensor.shape, lambda *i: tensor(*i).astype(dtype), name="rounded")

    return _ffi_api.ComputeOp(
        op.name, op.tag, op.attrs, op.axis, [op.body[0].astype(dtype)]
    ).output(0)


def inlined(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel without blocks that only widen."""
    sch = s_tir.Schedule(func)
    name = sch.mod.get_global_vars()[0].name_hint
    for block in sch.get_child_blocks(sch.get_sblock("root", func_name=name)):
        if sch.get(block).name_hint.startswith(_WIDENED):
            try:
                sch.compute_inline(block)
            except s_tir.ScheduleError:  # what reads it is a loop nest that TVM cannot see into
                continue
    return sch.mod[name]


# ---- where upstream's expression will not do -------------------------------------------------


def matmul(bb: Any, call: relax.Call) -> relax.Expr:
    """The product in the result's type."""
    dtype = str(call.ty.dtype)

    def matmul(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, a.shape[-1]), name="k")
        outer = [list(x.shape[:-2]) for x in (a, b)]
        count = max(map(len, outer))
        padded = [[1] * (count - len(lengths)) + lengths for lengths in outer]
        batch = [y if _is(x, 1) else x for x, y in zip(*padded, strict=True)]
        rows, columns = list(a.shape[:-1][-1:]), list(b.shape[1:][-1:])

        def element(*i: Any) -> Any:
            if _is(a.shape[-1], 0):
                return tirx.const(0, dtype)
            inner = list(i[count:])
            row, column = inner[: len(rows)], inner[len(rows) :]
            first, second = (
                [
                    0 if _is(n, 1) else x
                    for n, x in zip(lengths, i[count - len(lengths) : count], strict=True)
                ]
                for lengths in outer
            )
            factors = (a(*first, *row, k), b(*second, k, *column))
            return te.sum(operator.mul(*(x.astype(dtype) for x in factors)), axis=k)

        return te.compute([*batch, *rows, *columns], element, name="matmul")

    return bb.call_te(matmul, *call.args)


def _is(size: Any, number: int) -> bool:
    return int(size) == number if isinstance(size, (int, tirx.IntImm)) else False


# Upstream's variance is E[x^2] - E[x]^2: rounding leaves nothing of it where x is far from 0.


def _standardized(x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """(x - mean) / sqrt(variance + epsilon) over axes."""
    count = functools.reduce(lambda a, b: a * b, (x.shape[a] for a in axes)).astype(WIDE)
    mean = topi.divide(topi.sum(x, axes, keepdims=True), count)
    diff = topi.subtract(x, mean)
    variance = topi.divide(topi.sum(topi.multiply(diff, diff), axes, keepdims=True), count)
    return topi.multiply(diff, topi.rsqrt(topi.add(variance, tirx.const(epsilon, WIDE))))


def _affine(x: Any, gamma: Any, beta: Any, axes: Sequence[int]) -> Any:
    """Times gamma plus beta, whose axes are these of x's."""

    def element(*i: Any) -> Any:
        at = [i[a] for a in axes]
        return x(*i) * gamma(*at) + beta(*at)

    return te.compute(x.shape, element, name="affine")


def _axes(axes: Any, ndim: int) -> list[int]:
    return [int(a) % ndim for a in axes]


def _layer_norm(bb: Any, call: relax.Call) -> relax.Expr:
    def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
        axes = _axes(call.attrs.axes, len(x.shape))
        return _affine(_standardized(x, axes, call.attrs.epsilon), gamma, beta, axes)

    return bb.call_te(layer_norm, *call.args)


def _instance_norm(bb: Any, call: relax.Call) -> relax.Expr:
    def instance_norm(x: Any, gamma: Any, beta: Any) -> Any:
        axes = _axes(call.attrs.axes, len(x.shape))
        channel = _axes([call.attrs.channel_axis], len(x.shape))
        return _affine(_standardized(x, axes, call.attrs.epsilon), gamma, beta, channel)

    return bb.call_te(instance_norm, *call.args)


def _group_norm(bb: Any, call: relax.Call) -> relax.Expr:
    def group_norm(x: Any, gamma: Any, beta: Any) -> Any:
        a, shape = call.attrs, list(x.shape)
        (channel,), groups = _axes([a.channel_axis], len(shape)), int(a.num_groups)
        wide = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
        axes = [n if n < channel else n + 1 for n in _axes(a.axes, len(shape)) if n != channel]
        axes = sorted({*axes, channel + 1})
        x = _standardized(topi.reshape(x, wide), axes, a.epsilon)
        return _affine(topi.reshape(x, shape), gamma, beta, [channel])

    return bb.call_te(group_norm, *call.args)


_OWN = {
    "relax.matmul": matmul,
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.instance_norm": _instance_norm,
    "relax.nn.group_norm": _group_norm,
}
