"""A whole step as one function: gradient, loss scale, update, statistics.

    train_step(inputs…, (parameters…), (state…), control)
        -> ((parameters…), (state…), control)

It never asks the host: where a gradient overflowed, or the loss is not finite, the update is
computed and not taken.  The control (`loss_scale`) says what happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from .. import keys
from ..frontend import TrainingGraph
from ..transform.substitute import substitute
from . import loss_scale
from .step import ADJOINT

STEP, UPDATE, NOT_FINITE = "train_step", "optimizer", "not_finite"
_CONTROL = relax.TensorType((len(loss_scale.FIELDS),), "float64")
_FLAG = relax.TensorType((), "bool")
_TOGETHER = 32  # tensors that one kernel puts together: a CUDA kernel's arguments are few


def with_update(
    module: tvm.IRModule, graph: TrainingGraph, optimizer: Any, *, scaled: bool, dynamic: bool
) -> tvm.IRModule:
    """The module with `train_step`, and the functions that it calls, added to `main_adjoint`.

    Parameters
    ----------
    module : of `step_module`; its `main_adjoint` takes a loss scale if `scaled`.
    graph : whose parameters it updates; they come and go in the order of `graph.params`.
    optimizer : TVM's, after `init` with the variables of `graph.trainable`.
    dynamic : gradients that are not finite are looked for, and the scale follows.
    """
    out = module.clone()
    # The stock optimizers put every parameter's update into one function.
    out[UPDATE] = _chosen(optimizer.get_function()).with_attr(keys.SYMBOL, UPDATE)
    bb = relax.BlockBuilder(out)
    adjoint = out[ADJOINT]
    places = {name: index for index, name in enumerate(graph.params)}
    count = len(graph.inputs)
    inputs = [relax.Var(var.name, var.ty) for var in adjoint.params[:count]]
    stored = adjoint.params[count : count + len(places)]
    params = relax.Var("params", relax.TupleType([var.ty for var in stored]))
    state = relax.Var("state", out[UPDATE].params[2].ty)
    control = relax.Var("control", _CONTROL)
    with bb.function(STEP, [*inputs, params, state, control]):
        with bb.dataflow():
            given = [bb.emit(relax.TupleGetItem(params, i)) for i in range(len(places))]
            scale = [bb.emit_te(_scale, control)] if scaled else []
            both = bb.emit(_call(bb, ADJOINT, *inputs, *given, *scale))
            outputs = bb.emit(relax.TupleGetItem(both, 0))
            gradients = bb.emit(relax.TupleGetItem(both, 1))
            loss = bb.emit(relax.TupleGetItem(outputs, 0))
            found = [_count_of(bb, gradients)] if dynamic else []
            new_control = bb.emit_te(_moved, control, loss, *found, primfunc_name_hint="control")
            updates, runs = (
                bb.emit_te(rule, new_control, primfunc_name_hint=rule.__name__.strip("_"))
                for rule in (_updates, _runs)
            )
            trainable = relax.Tuple([given[places[name]] for name in graph.trainable])
            done = bb.emit(_call(bb, UPDATE, bb.emit(trainable), gradients, state, updates))
            trained = bb.emit(relax.TupleGetItem(done, 0))
            for i, name in enumerate(graph.trainable):
                given[places[name]] = bb.emit(relax.TupleGetItem(trained, i))
            for name, parameter in graph.updates.items():
                new = bb.emit(relax.TupleGetItem(outputs, graph.outputs.index(name)))
                old = given[places[parameter]]
                given[places[parameter]] = bb.emit(relax.op.where(runs, new, old))
            new_params = bb.emit_output(relax.Tuple(given))
            new_state = bb.emit_output(relax.TupleGetItem(done, 1))
            last = bb.emit_output(new_control)
        bb.emit_func_output(relax.Tuple([new_params, new_state, last]))
    return bb.get()


def with_watch(module: tvm.IRModule, graph: TrainingGraph) -> tvm.IRModule:
    """The module with `not_finite`: (parameters…) to how many of their values are not finite."""
    given = [relax.TensorType(v.shape, str(v.dtype)) for v in graph.params.values()]
    params = relax.Var("params", relax.TupleType(given))
    bb = relax.BlockBuilder(module)
    with bb.function(NOT_FINITE, [params]):
        with bb.dataflow():
            found = bb.emit_output(relax.op.astype(_count_of(bb, params), "float64"))
        bb.emit_func_output(found)
    return bb.get()


def _call(bb: relax.BlockBuilder, name: str, *args: Any) -> relax.Call:
    module = bb.get()
    function = module.get_global_var(name)
    relax.expr._update_type(function, module[name].ty)  # a call's type comes from it
    return relax.Call(function, list(args))


def _scale(control: Any) -> Any:
    at = loss_scale.AT["scale"]
    return te.compute((), lambda: control[at].astype("float32"), name="scale")


def _updates(control: Any) -> Any:
    at = loss_scale.AT["updates"]
    return te.compute((), lambda: control[at] > tirx.const(0.0, "float64"), name="updates")


def _runs(control: Any) -> Any:
    at = loss_scale.AT["stopped"]
    return te.compute((), lambda: control[at] <= tirx.const(0.0, "float64"), name="runs")


def _moved(control: Any, loss: Any, found: Any = None) -> Any:
    return loss_scale.moved(control, loss, found)


def _count_of(bb: relax.BlockBuilder, tensors: relax.Var) -> relax.Var:
    """How many values of a tuple of tensors are not finite, an int32 scalar.

    First the rows of each tensor by themselves, in parallel, then all of them.
    """
    counts = []
    for i, ty in enumerate(tensors.ty.fields):
        one = bb.emit(relax.TupleGetItem(tensors, i))
        most = relax.const(float(np.finfo(str(ty.dtype)).max), str(ty.dtype))
        # Not `isfinite`: a comparison with NaN is false.
        good = bb.emit(relax.op.less_equal(bb.emit(relax.op.abs(one)), most))
        wrong = bb.emit(relax.op.astype(bb.emit(relax.op.logical_not(good)), "int32"))
        if ty.ndim > 1:
            wrong = bb.emit(relax.op.sum(wrong, list(range(1, ty.ndim))))
        elif ty.ndim == 0:
            wrong = bb.emit(relax.op.reshape(wrong, (1,)))
        counts.append(wrong)
    while len(counts) > 1:
        groups = [counts[at : at + _TOGETHER] for at in range(0, len(counts), _TOGETHER)]
        counts = [bb.emit(relax.op.concat(group, 0)) for group in groups]
    return bb.emit(relax.op.sum(counts[0]))


def _chosen(func: relax.Function) -> relax.Function:
    """An optimizer's function that takes a flag last: without it, all stays as it was.

    What is computed of a new value is computed of the chosen one, which is the same where it
    counts: so the choice is part of the kernel that computes the value.
    """
    params, _, state = func.params
    flag = relax.Var("updates", _FLAG)
    bindings = list(func.body.blocks[0].bindings)
    values: Mapping[Any, Any] = {b.var: b.value for b in bindings}
    before: dict[Any, tuple[Any, int]] = {}
    results: Sequence[Any] = func.body.body.fields
    for var, old in zip(results, (params, state), strict=True):
        for i, new in enumerate(values[var].fields):
            before[new] = (old, i)
    bb = relax.BlockBuilder()
    changed: dict[relax.Var, Any] = {}
    with bb.function(UPDATE, [*func.params, flag]):
        with bb.dataflow():
            for binding in bindings:
                if binding.var in results:
                    continue
                value = bb.emit(substitute(binding.value, changed), binding.var.name)
                if binding.var in before:
                    old = bb.emit(relax.TupleGetItem(*before[binding.var]))
                    value = bb.emit(relax.op.where(flag, value, old))
                changed[binding.var] = value
            outputs = [
                bb.emit_output(relax.Tuple([changed[new] for new in values[var].fields]))
                for var in results
            ]
        bb.emit_func_output(relax.Tuple(outputs))
    return bb.get()[UPDATE]
