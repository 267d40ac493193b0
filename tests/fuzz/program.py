"""Relax functions of a case: the op (order 0), its gradient (1), the gradient of that (2).

    order 0   main(a, b, u) -> (<u, op(a, b)>, op(a, b))
    order 1   the same, and the partials of <u, op(a, b)> by a, b and u
    order 2   f(a, b, u, da, db, du) -> s = the sum of <partial, direction>, and the partials of s

The stock `Gradient` pass knows no bfloat16 parameters; there, as in mixed-precision training,
parameters are float32 and cast inside.  Their values are bfloat16 ones, so nothing is rounded.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from relay_wgrad.layouts import swap_io, to_layout
from relay_wgrad.problem import ConvKind, transposed_size
from relay_wgrad.transform.grad import grad

from .case import Case

PARAMS = ("a", "b", "u")
DIRECTIONS = ("da", "db", "du")


def param_dtype(case: Case, role: str, order: int) -> str:
    """The dtype of the parameter that stands for a role's tensor."""
    dtype = case.problem.dtype(role)
    return "float32" if dtype == "bfloat16" and order > 0 else dtype


def library_contracts(case: Case) -> bool:
    """Whether order 2 is all `relay_wgrad.transform.grad`'s: it adds inner products of one dtype.

    Where parameters' dtypes differ, the scalar between the orders is made here.
    """
    return len({param_dtype(case, role, 2) for role in case.operands}) == 1


def functions(case: Case, orders: tuple[int, ...]) -> dict[int, relax.Function]:
    """order -> function, for those of `orders`."""
    found: dict[int, relax.Function] = {}
    if 0 in orders:
        found[0] = _module(case, 0)["main"]
    wanted = [x for x in orders if x > 0]
    if not wanted:
        return found
    mod = _module(case, max(wanted))
    if max(wanted) == 1:
        found[1] = grad(mod, "main")["main_adjoint"]
    elif library_contracts(case):
        mod = grad(mod, "main", order=2)
        found.update({k: mod[f"main_adjoint{k}"] for k in wanted})
    else:
        first = grad(mod, "main")["main_adjoint"]
        second = grad(_contraction(case, first), "main", wrt=PARAMS)["main_adjoint"]
        found.update({k: v for k, v in ((1, first), (2, second)) if k in wanted})
    return found


def _sizes(case: Case) -> dict[str, tuple[Any, ...]]:
    """role -> canonical shape, with variables for what is symbolic."""
    p = case.problem
    n = tirx.Var("n", "int64") if "n" in case.symbolic else p.n
    pixels: dict[str, list[Any]] = {"data": [], "grad": []}
    for axis, letter in enumerate("dhw"[-p.rank :]):
        size, out = p.spatial[axis], p.pixels[axis]
        if letter in case.symbolic:
            kernel, stride, dilation = p.taps[axis], p.strides[axis], p.dilation[axis]
            pad = p.padding[axis] + p.padding[axis + p.rank]
            var = tirx.Var(letter, "int64")
            if case.is_transpose:
                extra = output_padding(case)[axis]
                size, out = transposed_size(var, pad, kernel, stride, dilation, extra), var
            else:
                size, out = var, (var + pad - dilation * (kernel - 1) - 1) // stride + 1
            size, out = (Analyzer().simplify(x) for x in (size, out))
        pixels["data"].append(size)
        pixels["grad"].append(out)
    return {
        "data": (n, p.c, *pixels["data"]),
        "weight": p.canonical_shape("weight"),
        "grad": (n, p.k, *pixels["grad"]),
    }


def output_padding(case: Case) -> tuple[int, ...]:
    """Pixels after the last one that a tap reaches: what a transposed convolution is told."""
    p = case.problem
    ends = zip(p.padding[: p.rank], p.padding[p.rank :], strict=True)
    axes = zip(p.spatial, p.pixels, ends, p.taps, p.strides, p.dilation, strict=True)
    return tuple(
        size - transposed_size(out, sum(pads), kernel, stride, dilation, 0)
        for size, out, pads, kernel, stride, dilation in axes
    )


def _shape(case: Case, role: str, sizes: dict[str, tuple[Any, ...]]) -> tuple[Any, ...]:
    return to_layout(sizes[role], case.problem.canonical(role), case.problem.layout(role))


def _module(case: Case, order: int) -> tvm.IRModule:
    sizes = _sizes(case)
    params = [
        relax.Var(name, relax.TensorType(_shape(case, role, sizes), param_dtype(case, role, order)))
        for name, role in zip(PARAMS, case.operands, strict=True)
    ]
    accum = case.problem.accum_dtype
    bb = relax.BlockBuilder()
    with bb.function("main", params):
        with bb.dataflow():
            a, b = (
                _cast(bb, x, case.problem.dtype(role))
                for x, role in zip(params[:2], case.operands[:2], strict=True)
            )
            out = bb.emit(_call(case, a, b, sizes))
            total = _inner(bb, out, params[2], accum)
            total, out = bb.emit_output(total), bb.emit_output(out)
        bb.emit_func_output(relax.Tuple([total, out]))
    return bb.get()


def _cast(bb: relax.BlockBuilder, x: relax.Expr, dtype: str) -> relax.Expr:
    return x if str(x.ty.dtype) == dtype else bb.emit(relax.op.astype(x, dtype))


def _inner(bb: relax.BlockBuilder, x: relax.Expr, y: relax.Expr, dtype: str) -> relax.Expr:
    product = bb.emit(relax.op.multiply(_cast(bb, x, dtype), _cast(bb, y, dtype)))
    return bb.emit(relax.op.sum(product))


def _call(
    case: Case, a: relax.Expr, b: relax.Expr, sizes: dict[str, tuple[Any, ...]]
) -> relax.Expr:
    p = case.problem
    dtypes = {p.dtype(role) for role in case.operands}
    out = p.dtype(case.operands[2]) if len(dtypes) > 1 else None
    made: Any = getattr(relax.op.nn, case.op)
    if p.kind is ConvKind.FPROP:
        return made(
            a, b, p.strides, p.padding, p.dilation, p.groups,
            p.data_layout, p.kernel_layout, p.grad_layout, out,
        )  # fmt: skip
    if case.is_transpose:
        return made(
            a, b, p.strides, p.padding, output_padding(case), p.dilation, p.groups,
            p.grad_layout, swap_io(p.kernel_layout), p.data_layout, out,
        )  # fmt: skip
    rest = (p.strides, p.padding, p.dilation, p.groups)
    layouts = (p.grad_layout, p.data_layout, p.kernel_layout, out)
    if p.kind is ConvKind.WGRAD:
        return made(a, b, p.taps, *rest, *layouts)
    return made(a, b, relax.ShapeExpr(list(_shape(case, "data", sizes))), *rest, *layouts)


def _contraction(case: Case, adjoint: relax.Function) -> tvm.IRModule:
    """The adjoint's bindings, then the scalar between the orders in the accumulator's dtype.

    The bindings are repeated, not inlined: the stock inliner loses sizes that are symbolic.
    """
    directions = [relax.Var(name, p.ty) for name, p in zip(DIRECTIONS, adjoint.params, strict=True)]
    (block,) = adjoint.body.blocks
    bb = relax.BlockBuilder()
    with bb.function("main", [*adjoint.params, *directions]):
        with bb.dataflow():
            for binding in block.bindings:
                bb.emit_normalized(binding)
            total = None
            for partial, direction in zip(adjoint.body.body[1], directions, strict=True):
                term = _inner(bb, partial, direction, case.problem.accum_dtype)
                total = term if total is None else bb.emit(relax.op.add(total, term))
            total = bb.emit_output(total)
        bb.emit_func_output(total)
    mod = relax.transform.CanonicalizeBindings()(bb.get())
    return tvm.IRModule({"main": relax.utils.copy_with_new_vars(mod["main"])})
