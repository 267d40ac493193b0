"""Half precision in graphs that others made: each op computes in float32 and rounds once.

So PyTorch's kernels do it.  Operands are widened, the op's row builds in float32, and results are
rounded; the casts become part of the kernels.  Left in half precision are the products, whose own
kernels and libraries' sum in float32, and what only moves elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tvm import relax

from ...dtypes import HALVES
from ..context import Context
from .call import Call, Noted, NotedNames, dtype_name
from .names import op_of
from .own_ops import OWN
from .program import pytorch

WIDE = "float32"
_PRODUCTS = """
    addmm.default bmm.default convolution.default convolution_backward.default matmul.default
    mm.default"""
_MOVES = """
    _unsafe_index.Tensor _unsafe_view.default alias.default cat.default clone.default
    constant_pad_nd.default copy.default detach.default embedding.default expand.default
    flip.default gather.default index.Tensor index_select.default
    max_pool2d_with_indices.default max_pool3d_with_indices.default permute.default
    pixel_shuffle.default pixel_unshuffle.default relu.default repeat.default roll.default
    select.int select_backward.default slice.Tensor slice_backward.default split.Tensor
    split_with_sizes.default squeeze.default squeeze.dim squeeze.dims stack.default t.default
    transpose.int unbind.int unsqueeze.default view.default"""
# Drawn in the type that is asked for: rounded afterwards, a number below 1 can be 1.
_DRAWN = """
    normal.float_float normal_functional.default rand.default rand_like.default randn.default
    randn_like.default uniform.default"""
# Operators of their own that sum in float32 within.
_WHOLE = """
    relay_wgrad::norm_train.default relay_wgrad::norm_train_backward.default"""
AS_THEY_ARE = frozenset([*f"{_PRODUCTS}{_MOVES}{_DRAWN}{_WHOLE}".split(), *OWN])
"""ATen overloads whose half operands and results stay half within."""


_NORMS = (
    "_batch_norm_with_update_functional.default", "_native_batch_norm_legit.no_stats",
    "_native_batch_norm_legit_functional.default", "_native_batch_norm_legit_no_training.default",
    "cudnn_batch_norm.default",
)  # fmt: skip
_STATISTICS = (1, 2)  # of a batch, among the results of those


_SUMS = ("add.Tensor", "sub.Tensor")
_ADDENDS = ("expand.default", "mul.Tensor")
_SUMMED = ("add.Tensor", "sum.dim_IntList")


def stays(op: str, call: Call) -> bool:
    """Whether a call's half operands and results stay so within: by its op, or since one sum of two
    of the result's type and shape is rounded once either way, and what convolutions and
    normalizations have as their own last step is such a one."""
    if not has_halves(call):
        return True
    if op in AS_THEY_ARE:
        return not is_summed(op, call.node)
    given = [*call.values, call.result]
    if op not in _SUMS or call.kwargs or len(given) != 3 or not all(map(_is_half, given)):
        return False
    operands = [getattr(arg, "ty", None) for arg in list.__iter__(call.args)]
    return (
        len({value.dtype for value in given}) == 1
        and len({tuple(value.shape) for value in given}) == 1
        and all(str(getattr(ty, "dtype", "")) == dtype_name(call.result) for ty in operands)
    )


def is_summed(op: str, node: Any) -> bool:
    """Whether a product, or what is spread, goes into one sum alone: then it is not rounded before
    that, as within one kernel."""
    names = [op_of(user) for user in node.users]
    return op in _ADDENDS and len(names) == 1 and names[0] in _SUMMED


def has_halves(call: Call) -> bool:
    """Whether an operand or a result is float16 or bfloat16."""
    return any(_is_half(value) for value in _leaves([call.values, call.result]))


def widened(ctx: Context, call: Call, casts: dict[Any, Any]) -> Call:
    """The call in float32.  `casts` has variables' casts, and gets those that are made."""

    def cast(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [cast(v) for v in value]
        ty = getattr(value, "ty", None)
        if not isinstance(ty, relax.TensorType) or str(ty.dtype) not in HALVES:
            return value
        if value not in casts:
            casts[value] = ctx.emit(relax.op.astype(value, WIDE))
        return casts[value]

    args = Noted(cast(list(list.__iter__(call.args))))
    kwargs = NotedNames({name: cast(value) for name, value in call.kwargs.items()})
    values, result = tuple(_wide(list(call.values))), _wide(call.result)
    return replace(call, args=args, kwargs=kwargs, values=values, result=result)


def rounded(ctx: Context, built: Any, said: Any) -> Any:
    """What was built in float32, in the types that PyTorch says."""
    if isinstance(said, (tuple, list)):
        return [rounded(ctx, *pair) for pair in zip(built, said, strict=False)]
    if not _is_half(said) or not isinstance(getattr(built, "ty", None), relax.TensorType):
        return built
    return ctx.emit(relax.op.astype(built, dtype_name(said)))


def results_of(op: str, call: Call) -> Any:
    """PyTorch's results.  Of a batch normalization its shape functions give the statistics in the
    images' type on the CPU, and its kernels in the parameters', as they are read."""
    if op not in _NORMS or all(
        dtype_name(v) != WIDE for v in call.values[1:] if hasattr(v, "dtype")
    ):
        return call.result
    return [_wide(v) if i in _STATISTICS else v for i, v in enumerate(call.result)]


def with_wide_statistics(rule: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's decomposition of a norm, but the statistics in float32 beside parameters in it: the
    decomposition rounds them to the images' type on the CPU, and PyTorch's kernels do not."""

    def norm(x: Any, *given: Any) -> Any:
        types = {dtype_name(v) for v in given if hasattr(v, "dtype")}
        if not _is_half(x) or WIDE not in types:
            return rule(x, *given)
        y, *statistics = rule(_wide(x), *given)
        return (y.to(x.dtype), *statistics)

    return norm


def _is_half(value: Any) -> bool:
    return hasattr(value, "dtype") and dtype_name(value) in HALVES


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in _leaves(part)]
    return [value]


def _wide(value: Any) -> Any:
    """PyTorch's (fake) tensors in float32."""
    if isinstance(value, (list, tuple)):
        return [_wide(part) for part in value]
    return value.to(pytorch().float32) if _is_half(value) else value
