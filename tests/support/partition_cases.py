"""Small modules for the partition's tests, and what was made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import tvm
from tvm import relax

import byoc_cudnn
import relay_wgrad
from byoc_cudnn import Entry, Report
from relay_wgrad.problem import ConvKind, ConvProblem
from tests.support.built import built
from tests.support.gradient_calls import gradient_call
from tests.support.layout_cases import machine_of, run

op, nn = relax.op, relax.op.nn
ZERO = relax.const(0.0, "float32")
Shape = Sequence[Any]
Body = Callable[..., relax.Expr]


def module(
    shapes: Mapping[str, Shape | tuple[Shape, str]],
    body: Body,
    name: str = "main",
    *,
    dataflow: bool = True,
) -> tvm.IRModule:
    """`body(emit, *variables)` gives the result, a tensor or a list; float32 where no dtype is."""
    params = []
    for param, given in shapes.items():
        shape, dtype = given if given and isinstance(given[-1], str) else (given, "float32")
        params.append(relax.Var(param, relax.TensorType(list(shape), dtype)))
    if dataflow:
        return built(params, lambda emit: body(emit, *params), name)
    bb = relax.BlockBuilder()
    with bb.function(name, params):
        out = body(bb.emit, *params)
        outs = [bb.emit(one) for one in (out if isinstance(out, list) else [out])]
        bb.emit_func_output(outs if isinstance(out, list) else outs[0])
    return bb.get()


def merged(modules: Mapping[str, tvm.IRModule]) -> tvm.IRModule:
    """One module with each module's `main` under its name."""
    return tvm.IRModule(
        {
            name: relax.utils.copy_with_new_vars(mod["main"]).with_attr("global_symbol", name)
            for name, mod in modules.items()
        }
    )


def conv_call(problem: ConvProblem, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """The call of the family that computes a problem."""
    if problem.kind is not ConvKind.FPROP:
        return gradient_call(problem, a, b)
    return getattr(relay_wgrad, f"conv{problem.rank}d")(
        a, b, problem.strides, problem.padding, problem.dilation, problem.groups,
        problem.data_layout, problem.kernel_layout, problem.grad_layout, problem.grad_dtype,
    )  # fmt: skip


def problem_module(problem: ConvProblem) -> tvm.IRModule:
    """A problem as one call.  Symbolic sizes of its result come with a parameter of its type."""
    roles = problem.roles if not problem.is_static else problem.roles[:2]
    shapes = {role: (problem.shape(role), problem.dtype(role)) for role in roles}
    return module(shapes, lambda emit, a, b, *_: conv_call(problem, a, b))


def partitioned(mod: tvm.IRModule, **options: Any) -> tuple[tvm.IRModule, Report]:
    """`partition`'s results, after what must hold of any of them."""
    text = mod.script()
    out, report = byoc_cudnn.partition(mod, **options)
    assert mod.script() == text, "the module given was changed"
    relax.analysis.well_formed(out)
    again, second = byoc_cudnn.partition(out, **options)
    tvm.ir.assert_structural_equal(again, out)
    assert (second.total, second.offloaded) == (report.total, report.offloaded)
    assert second.rows() == report.rows()
    assert second.reasons() == report.reasons()
    back = byoc_cudnn.unpartition(out)
    relax.analysis.well_formed(back)
    assert set(regions(back)) == set(regions(mod))
    assert sorted(names(back)) == sorted(names(mod))
    for name in names(mod):
        before, after = mod[name], back[name]
        if isinstance(before, relax.Function):
            assert [p.name for p in after.params] == [p.name for p in before.params]
            tvm.ir.assert_structural_equal(after.ret_ty, before.ret_ty, map_free_vars=True)
            tvm.ir.assert_structural_equal(after.attrs, before.attrs)
    return out, report


def only(report: Report) -> Entry:
    assert report.total == 1
    return report.entries[0]


def names(mod: tvm.IRModule) -> list[str]:
    return [str(gv.name_hint) for gv, _ in mod.functions_items()]


def regions(mod: tvm.IRModule) -> dict[str, relax.Function]:
    """The functions for code generators, by name."""
    return {
        str(gv.name_hint): func
        for gv, func in mod.functions_items()
        if func.attrs is not None and "Codegen" in func.attrs
    }


def composites(mod: tvm.IRModule) -> list[relax.Function]:
    """The composites in a module, in the order of their names."""
    return [func.body.blocks[0].bindings[0].value for _, func in sorted(regions(mod).items())]


def ops(func: relax.Function) -> list[str]:
    """Short names of a function's ops in order; `call` for calls of functions."""
    found = []
    for block in func.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                is_op = isinstance(value.op, tvm.ir.Op)
                found.append(str(value.op.name).rpartition(".")[2] if is_op else "call")
    return found


def random_values(func: relax.Function, seed: int = 0, **sizes: int) -> list[np.ndarray]:
    """Random arguments of a float32 function; `sizes` are symbolic dimensions by name."""
    rng = np.random.default_rng(seed)
    names = {**sizes, "T": SimpleNamespace(int64=int)}
    return [
        rng.standard_normal([eval(str(d), names) for d in param.ty.shape.values]).astype("float32")
        for param in func.params
    ]


def same_numbers(mod: tvm.IRModule, out: tvm.IRModule, **sizes: int) -> None:
    """Both modules' `main` computes the same on TVM's own kernels, the second by the way back."""
    args = random_values(mod["main"], **sizes)
    both = {"before": mod, "after": byoc_cudnn.unpartition(out)}
    machine = machine_of(merged(both))
    for a, b in zip(run(machine, args, "after"), run(machine, args, "before"), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(np.abs(b).max(initial=1)))


# ---- what stands in a body ----------------------------------------------------------------------


def dgrad(emit: Any, g: Any, w: Any, shape: Shape = (2, 3, 8, 8)) -> Any:
    return emit(relay_wgrad.conv2d_backward_data(g, w, shape))


def transposed(emit: Any, g: Any, w: Any) -> Any:
    return emit(nn.conv2d_transpose(g, w))


def fprop(emit: Any, x: Any, w: Any) -> Any:
    return emit(nn.conv2d(x, w))


def bias(emit: Any, y: Any, b: Any, *, left: bool = False) -> Any:
    return emit(op.add(b, y) if left else op.add(y, b))


def masked(emit: Any, y: Any, x: Any, compare: Any = op.less) -> Any:
    """ReLU's gradient at x, as upstream's rule and Relay write it; with `less_equal`, as ours."""
    return emit(op.where(emit(compare(x, ZERO)), ZERO, y))
