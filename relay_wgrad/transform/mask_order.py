"""`masks_early`: ReLU's masks before gradients that only move data, of what follows ReLU.

**Max pooling.**  Of p = max_pool(y) and y = relu(x) autograd makes

    dy = max_pool_backward(dp, y)     dx = where(y <= 0, 0, dy)

The pooling's gradient is zero but where a window's maximum is, and there y is the window's p.  So

    dx = max_pool_backward(where(p <= 0, 0, dp), y)

has the same bits, with NaN too: a NaN is its window's maximum, and neither comparison holds for it.
The mask then reads and writes what is a pooling's stride squared smaller.

**Joining.**  Of c = concat(relu(a), relu(b), ...) it makes a split of dc and a mask for each part;
the split of where(c <= 0, 0, dc) is the same.

In either case, where a convolution made the gradient, the mask becomes part of that kernel.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import relax

from ..graph.def_use import Graph
from ..graph.match import Constant, call, match
from ..graph.rebuild import normal, with_bindings, without_unused
from ..graph.walk import dataflow_block
from ..ir import op_name

_FORWARD, _BACKWARD = "relax.nn.max_pool2d", "relax.grad.max_pool2d_backward"
_MASK = call("relax.where", call("relax.less_equal", "y", 0.0), Constant("zero", 0.0), "g")
_Rows = dict[relax.Var, list[relax.VarBinding]]


def masks_early(mod: tvm.IRModule, fn: str) -> tvm.IRModule:
    """The module with `fn`, a differentiated function of one dataflow block, rewritten so.

    Another function, or one without such masks, stays as it is.
    """
    func = mod[fn]
    if dataflow_block(func) is None:
        return mod
    for rule in (_before_splits, _before_poolings):
        graph = Graph(func)
        rows = rule(graph)
        if rows:
            bindings = [row for b in graph.bindings for row in rows.get(b.var, [b])]
            func = with_bindings(func, bindings)
    if func.same_as(mod[fn]):
        return mod
    out = mod.clone()
    out[fn] = without_unused(func)
    return out


def _before_poolings(graph: Graph) -> _Rows:
    """A mask's variable -> the bindings that take its place."""
    pooled = [b for b in graph.bindings if op_name(b.value) == _FORWARD]
    rows: _Rows = {}
    for binding in graph.bindings:
        mask = _mask(graph, binding.var)
        if mask is None or (backward := graph.call(mask[2], _BACKWARD)) is None:
            continue
        y, zero, dy = mask
        if not y.same_as(backward.args[1]) or not graph.only_use(dy):
            continue
        for made in pooled:
            same = made.value.args[0].same_as(y) and tvm_ffi.structural_equal(
                made.value.attrs, backward.attrs
            )
            if same and graph.index[made.var] < graph.index[binding.var]:
                new = _masked(made.var, zero, backward.args[0])
                args = [new[-1].var, y]
                call = relax.Call(backward.op, args, backward.attrs, backward.ty_args)
                rows[binding.var] = [*new, _bound(binding.var, call)]
                break
    return rows


def _before_splits(graph: Graph) -> _Rows:
    """The variable of a split, or of a mask of one of its parts -> the bindings that take its
    place."""
    joined = [b for b in graph.bindings if op_name(b.value) == "relax.concat"]
    rows: _Rows = {}
    for binding in graph.bindings:
        split = binding.value
        if op_name(split) != "relax.split" or (fields := _fields(graph, binding.var)) is None:
            continue
        masks = [_mask_of(graph, field) for field in fields]
        found = [mask for mask in masks if mask is not None]
        if len(found) < len(masks):
            continue
        relus = [y for _, y, _ in found]
        whole = next((b for b in joined if _joins(graph, b, relus, split)), None)
        if whole is None or graph.index[whole.var] > graph.index[binding.var]:
            continue
        new = _masked(whole.var, found[0][2], split.args[0])
        call = relax.Call(split.op, [new[-1].var], split.attrs, split.ty_args)
        parts = relax.DataflowVar(binding.var.name, binding.var.ty)
        rows[binding.var] = [*new, _bound(parts, call)]
        for i, (var, _, _) in enumerate(found):
            rows[var] = [_bound(var, relax.TupleGetItem(parts, i))]
    return rows


def _fields(graph: Graph, split: relax.Var) -> list[relax.Var] | None:
    """The variables of a split's parts in order, if they are all that reads it, each once."""
    count, uses = len(split.ty.fields), graph.uses.get(split, ())
    at = dict(graph.fields_of(split))
    apart = isinstance(split, relax.DataflowVar) and not graph.is_whole(split)
    return [at[i] for i in range(count)] if apart and len(uses) == len(at) == count else None


def _mask_of(graph: Graph, part: relax.Var) -> tuple[relax.Var, relax.Var, relax.Expr] | None:
    """(the masked gradient, what the mask compares, zero), if that is all that reads a part."""
    user = graph.sole_use(part)
    if user is None or not isinstance(part, relax.DataflowVar):
        return None
    mask = _mask(graph, user.var)
    return (user.var, mask[0], mask[1]) if mask is not None and mask[2].same_as(part) else None


def _joins(graph: Graph, join: relax.VarBinding, parts: list[relax.Var], split: relax.Call) -> bool:
    """Whether a concatenation is of these parts, and a split takes it apart as it was."""
    operands = join.value.args[0]
    operands = graph.value.get(operands, operands)
    if not isinstance(operands, relax.Tuple) or len(operands.fields) != len(parts):
        return False
    rank, axes = join.var.ty.ndim, (join.value.attrs.axis, split.attrs.axis)
    if axes[0] is None or int(axes[0]) % rank != int(axes[1]) % rank:
        return False
    return all(
        a.same_as(b) and tvm_ffi.structural_equal(a.ty, field)
        for a, b, field in zip(operands.fields, parts, split.ty.fields, strict=True)
    )


def _mask(graph: Graph, var: relax.Expr) -> tuple[relax.Var, relax.Expr, relax.Var] | None:
    """(y, 0, g) of where(y <= 0, 0, g)."""
    found = match(graph, _MASK, var)
    if not found or not all(isinstance(found[name], relax.Var) for name in "yg"):
        return None
    return found["y"], found["zero"], found["g"]


def _masked(y: relax.Var, zero: relax.Expr, g: relax.Expr) -> list[relax.VarBinding]:
    """Bindings whose last is where(y <= 0, 0, g)."""
    low = _new(f"{y.name}_low", relax.op.less_equal(y, zero))
    return [low, _new(f"{y.name}_masked", relax.op.where(low.var, zero, g))]


def _new(name: str, value: relax.Expr) -> relax.VarBinding:
    value = normal(value)
    return relax.VarBinding(relax.DataflowVar(name, value.ty), value)


def _bound(var: relax.Var, value: relax.Expr) -> relax.VarBinding:
    return relax.VarBinding(var, normal(value))
