"""The historical composite: convolution gradients as chains of ops that TVM has always had.

Before dgrad and wgrad were operators, and wherever a Relay program was legalized, a weight gradient
was tile, reshape, conv2d, reshape, sum and permute_dims, and a data gradient a transposed
convolution.  `Composite` writes exactly that, for those who must compare with it, and as a second
opinion: with `StockLegalize`, upstream's own rules compile it, and nothing is left of this
package's kernels.  It is slow: what was one reduction over N·P·Q becomes N·C/groups·K images.

The weight gradient, with the letters of `relay_wgrad.problem` and Cg, Kg the channels per group:

    grad (N, K, P, Q)  -> tile      (N, Cg*K, P, Q)        each filter once per input channel
    data (N, C, H, W)  -> reshape   (1, N*C, H, W)         each (image, channel) its own group
    grad               -> reshape   (N*Cg*K, 1, P, Q)      each gradient plane a filter
    conv2d(data, grad, strides=dilation, dilation=strides, groups=N*C)
                       -> (1, N*Cg*K, R', S') -> reshape (N, Cg, K, R', S') -> sum over N
                       -> permute_dims (K, Cg, R', S') -> strided_slice, where R' > R or S' > S

conv2d gives group (n, c) the Kg filters that follow each other, so the planes must lie in the order
(n, g, cg, kg).  Tiling K whole gives (n, cg, k), which is that order for one group (g is absent)
and for depthwise (cg is), and was wrong for every number of groups in between.  There, the
gradient is reshaped to (N*G, Kg, P, Q) first and the sum is permuted with its group axis in place.

conv2d stores its groups as a number.  Where N, C or K is symbolic, the images take the channels'
place instead, as in the gradient that upstream wrote later: conv2d of (Cg, G*N, H, W) with
(K, N, P, Q) in G groups.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op as R
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from relay_wgrad.argument_types import checked_bool
from relay_wgrad.ir import expressions, is_taken
from relay_wgrad.layouts import ACTIVATION, KERNEL, permutation, swap_io
from relay_wgrad.ops.algebra import DGRAD_NAME, WGRAD_NAME
from relay_wgrad.ops.call_problem import family_def, problem_of
from relay_wgrad.problem import ConvProblem, transposed_size
from relay_wgrad.registry import upstream_rule
from relay_wgrad.relation import as_size
from relay_wgrad.rules import Size

Expr = Any
Step = Callable[[Expr], Expr]


# ---- what both directions need -------------------------------------------------------------------


def _permuted(src: str, dst: str) -> list[Step]:
    return [] if src == dst else [lambda x: R.permute_dims(x, list(permutation(src, dst)))]


def _chain(bb: relax.BlockBuilder, x: Expr, steps: Sequence[Step]) -> Expr:
    """Applies the steps in order, binding all but the last: that one is the caller's."""
    for step in steps:
        x = step(bb.emit(x) if isinstance(x, relax.Call) else x)
    return x


def _bound(bb: relax.BlockBuilder, x: Expr, steps: Sequence[Step]) -> Expr:
    x = _chain(bb, x, steps)
    return bb.emit(x) if isinstance(x, relax.Call) else x


def _cropped(sizes: Sequence[Size]) -> Step:
    """The first `sizes` of each axis.

    A symbolic size is trusted to fit, as the operator's own type relation trusts it: then the
    result's type is `sizes`, not a minimum.
    """

    def step(x: Expr) -> Expr:
        rank = len(sizes)
        static = all(isinstance(v, int) for v in (*sizes, *map(as_size, x.ty.shape.values)))
        return R.strided_slice(
            x,
            axes=list(range(rank)),
            begin=[0] * rank,
            end=list(sizes),
            strides=[1] * rank,
            assume_inbound=not static,
        )

    return step


def _operands(
    bb: relax.BlockBuilder, problem: ConvProblem, values: Sequence[Expr]
) -> tuple[list[Expr], str | None]:
    """The operands in NCHW/OIHW, of one dtype, and the out_dtype that gives the accumulator's.

    Sums are in the accumulator's dtype whatever the result's is, so that an f16 gradient of many
    pixels neither overflows nor loses its small terms.
    """
    roles = problem.roles[:2]
    dtypes = {problem.dtype(role) for role in roles}
    accum = problem.accum_dtype
    out = []
    for role, value in zip(roles, values, strict=True):
        steps: list[Step] = []
        # conv2d takes two operands of one dtype; different ones meet in the accumulator's.
        if len(dtypes) > 1 and problem.dtype(role) != accum:
            steps.append(lambda y: R.astype(y, accum))
        steps += _permuted(problem.layout(role), KERNEL if role == "weight" else ACTIVATION)
        out.append(_bound(bb, value, steps))
    return out, None if len(dtypes) > 1 or dtypes == {accum} else accum


def _result(problem: ConvProblem, crop: Step | None) -> list[Step]:
    """From the canonical result in the accumulator's dtype to the operator's own result."""
    role = problem.roles[2]
    canonical = KERNEL if role == "weight" else ACTIVATION
    steps = [crop] if crop else []
    if problem.dtype(role) != problem.accum_dtype:
        steps.append(lambda y: R.astype(y, problem.dtype(role)))
    return steps + _permuted(canonical, problem.layout(role))


# ---- wgrad ---------------------------------------------------------------------------------------


def weight_composite(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """The composite of one `relax.nn.conv2d_backward_weight`, its intermediate values bound.

    Has the signature of a legalization rule, so that it can be one.

    Raises
    ------
    ValueError : for an operand whose shape or dtype is unknown.
    """
    return _weight(bb, problem_of(call), call.args)


def _weight(bb: relax.BlockBuilder, p: ConvProblem, args: Sequence[Expr]) -> Expr:
    (grad, data), out_dtype = _operands(bb, p, args)
    if all(isinstance(v, int) for v in (p.n, p.c, p.k)):
        conv, steps = _tiled(bb, p, grad, data, out_dtype)
    else:
        conv, steps = _images_as_channels(bb, p, grad, data, out_dtype)
    conv = bb.normalize(conv)
    sizes = [as_size(v) for v in conv.ty.shape.values]
    if all(isinstance(v, int) for v in sizes[2:]):
        # R' and S' are at least R and S: P is the most that fits.
        larger = sizes[2:] != [p.r, p.s]
        crop = _cropped(p.canonical_shape("weight")) if larger else None
        return _chain(bb, conv, [*steps, *_result(p, crop)])
    # A size such as h % 2 + 3 goes at once: passes of TVM fail on what would follow.
    crop = _cropped([*sizes[:2], p.r, p.s])
    return _chain(bb, conv, [crop, *steps, *_result(p, None)])


def _conv2d(p: ConvProblem, data: Expr, grad: Expr, groups: int, out_dtype: str | None) -> Expr:
    # The forward pass steps over data by strides and over taps by dilation; here the gradient's
    # pixels are the taps and the weight's the output.
    return R.nn.conv2d(
        data, grad, p.dilation, p.padding, p.strides, groups, ACTIVATION, KERNEL, ACTIVATION,
        out_dtype,
    )  # fmt: skip


def _pixels(x: Expr) -> list[Expr]:
    """The last two sizes of a tensor, as its type has them."""
    return list(x.ty.shape.values[-2:])


def _tiled(
    bb: relax.BlockBuilder, p: ConvProblem, grad: Expr, data: Expr, out_dtype: str | None
) -> tuple[Expr, list[Step]]:
    """Relay's form, with its group axis in place where there are groups between 1 and C."""
    n, c, k, g = p.n, p.c, p.k, p.groups
    cg, kg = c // g, k // g
    between = g > 1 and cg > 1
    if between:
        grad = bb.emit(R.reshape(grad, [n * g, kg, *_pixels(grad)]))
    # Values are bound in the order in which Relay printed them.
    grad = bb.emit(R.tile(grad, [1, cg, 1, 1]))
    data = bb.emit(R.reshape(data, [1, n * c, *_pixels(data)]))
    grad = bb.emit(R.reshape(grad, [n * cg * k, 1, *_pixels(grad)]))
    conv = _conv2d(p, data, grad, n * c, out_dtype)
    if not between:
        return conv, [
            lambda x: R.reshape(x, [n, cg, k, *_pixels(x)]),
            lambda x: R.sum(x, axis=[0]),
            lambda x: R.permute_dims(x, [1, 0, 2, 3]),
        ]
    return conv, [
        lambda x: R.reshape(x, [n, g, cg, kg, *_pixels(x)]),
        lambda x: R.sum(x, axis=[0]),
        lambda x: R.permute_dims(x, [0, 2, 1, 3, 4]),
        lambda x: R.reshape(x, [k, cg, *_pixels(x)]),
    ]


def _images_as_channels(
    bb: relax.BlockBuilder, p: ConvProblem, grad: Expr, data: Expr, out_dtype: str | None
) -> tuple[Expr, list[Step]]:
    """The form that needs no number but `groups`: a convolution that sums over the images."""
    cg, g = p.c // p.groups, p.groups
    steps: list[Step] = [lambda x: R.permute_dims(x, [1, 0, 2, 3])]
    if g > 1:
        steps = [
            lambda x: R.reshape(x, [p.n, g, cg, *_pixels(x)]),
            lambda x: R.permute_dims(x, [2, 1, 0, 3, 4]),
            lambda x: R.reshape(x, [cg, g * p.n, *_pixels(x)]),
        ]
    data = _bound(bb, data, steps)
    grad = bb.emit(R.permute_dims(grad, [1, 0, 2, 3]))
    conv = _conv2d(p, data, grad, g, out_dtype)
    return conv, [lambda x: R.permute_dims(x, [1, 0, 2, 3])]


# ---- dgrad ---------------------------------------------------------------------------------------


def _data(bb: relax.BlockBuilder, p: ConvProblem, args: Sequence[Expr]) -> Expr:
    """The transposed convolution of one `relax.nn.conv2d_backward_data`.

    The size that strides leave open is its output_padding: H less what a transposed convolution
    makes of P, always in [0, stride) for the P that H makes.  Where that is no number, since sizes
    are symbolic, the largest one is taken and the surplus cut off.  Raises ValueError for an
    operand whose shape or dtype is unknown.
    """
    (grad, weight), out_dtype = _operands(bb, p, args[:2])
    top, left, bottom, right = p.padding
    made_p, made_q = (as_size(v) for v in _pixels(grad))
    extra, exact = [], True
    axes = ((p.h, made_p, top + bottom, p.r), (p.w, made_q, left + right, p.s))
    for axis, (size, made, pad, kernel) in enumerate(axes):
        stride, dilation = p.strides[axis], p.dilation[axis]
        rest = size - transposed_size(made, pad, kernel, stride, dilation, 0)
        rest = rest if isinstance(rest, int) else as_size(Analyzer().simplify(rest))
        exact &= isinstance(rest, int)
        extra.append(rest if isinstance(rest, int) else stride - 1)
    conv = R.nn.conv2d_transpose(
        grad, weight, p.strides, p.padding, extra, p.dilation, p.groups,
        ACTIVATION, swap_io(KERNEL), ACTIVATION, out_dtype,
    )  # fmt: skip
    crop = None if exact else _cropped(p.canonical_shape("data"))
    return _chain(bb, conv, _result(p, crop))


# ---- the pass ------------------------------------------------------------------------------------


@mutator
class _Lower(PyExprMutator):
    """Replaces the calls of the chosen ops, in functions that no backend took."""

    def __init__(self, mod: tvm.IRModule, rules: dict[str, Callable[..., Expr]]) -> None:
        super().__init__(mod)
        self.rules = rules

    def visit_function_(self, func: relax.Function) -> relax.Function:
        taken = is_taken(func)
        return func if taken else super().visit_function_(func)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        new = self.visit_expr_post_order(call)
        definition = family_def(new)
        rule = self.rules.get(definition.name) if definition is not None else None
        # Types are the old call's: its operands may be new expressions of the same types.
        return new if rule is None else rule(self.builder_, problem_of(call), new.args)


def _calls_any(func: relax.Function, names: Container[str]) -> bool:
    definitions = (family_def(part) for part in expressions(func))
    return any(found is not None and found.name in names for found in definitions)


def composite(mod: tvm.IRModule, weight: bool = True, data: bool = False) -> tvm.IRModule:
    """The module with wgrad (`weight`) and dgrad (`data`) written as historical composites.

    Functions that a backend has taken (attribute `Composite` or `Codegen`) stay as they are, and so
    does a function without such calls.

    Raises
    ------
    ValueError : for an operand whose shape or dtype is unknown.
    TypeError : for a switch that is neither True nor False.
    """
    checked_bool("composite: weight", weight)
    checked_bool("composite: data", data)
    rules: dict[str, Callable[..., Expr]] = {}
    if weight:
        rules[WGRAD_NAME] = _weight
    if data:
        rules[DGRAD_NAME] = _data
    todo = {
        var: func
        for var, func in mod.functions_items()
        if isinstance(func, relax.Function) and _calls_any(func, rules)
    }
    if not todo:
        return mod
    out = mod.clone()
    lower = _Lower(mod, rules)
    for var, func in todo.items():
        out.update_func(var, lower.visit_expr(func))
    return out


def Composite(weight: bool = True, data: bool = False) -> tvm.ir.transform.Pass:  # noqa: N802
    """`composite` as a module pass."""

    @tvm.transform.module_pass(opt_level=0, name="Composite")
    def run(mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        return composite(mod, weight, data)

    return run


def stock_rules() -> dict[str, Any]:
    """Upstream's own legalizations of the convolutions, also while ours stand above them."""
    names = ("relax.nn.conv2d", "relax.nn.conv2d_transpose")
    return {name: upstream_rule(name, "FLegalize") for name in names}


def StockLegalize() -> tvm.ir.transform.Pass:  # noqa: N802
    """`LegalizeOps` with upstream's convolutions: after `Composite`, no kernel of ours is left."""
    return relax.transform.LegalizeOps(stock_rules())
