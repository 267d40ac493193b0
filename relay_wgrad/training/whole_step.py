"""A whole step: loss and gradients, loss scale, update, statistics.

Some functions of Relax, which `WholeStep` calls one after another:

    step_scale(control) -> the loss scale                                   where there is one
    main_adjoint(inputs…, parameters…, [scale]) -> (outputs, gradients)
                                        several processes send theirs meanwhile (`sends`), and
                                        of gradients that are accumulated their sums, with the
                                        last batch of an update
    gradients_not_finite((gradients…)) -> how many of their values          of a dynamic scale
    step_control(control, loss, [count]) -> (control, whether to update, whether anything moves)
    step_accumulate(rates, (so far…), (gradients…)) -> (gradients…)   where one process
                                        accumulates them; of several `exchange` does
    step_clip(rates, (gradients…)) -> rates                      where the norm is clipped
    optimizer((trained…), (gradients…), (state…), (statistics…), (new ones…), updates, runs, rates)
        -> ((trained…), (state…), (statistics…))

`rates` are the learning rate and what gradients are multiplied by; they come with a batch.

They never ask the host: where a gradient overflowed, or the loss is not finite, the update is
computed and not taken.  The control (`loss_scale`) says what happened.  None calls another function
of Relax, and who calls them holds what they give: so all of it can be one CUDA graph
(`graph_replay`), and `main_adjoint` is compiled once, for itself and for the step.  `optimizer` may
write its results over what it takes: on a GPU it does, in a few kernels (`byoc_cudnn.updates`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from ..facts import update_attrs
from ..frontend import TrainingGraph
from . import loss_scale
from .exchange import Exchange
from .step import ADJOINT
from .update import Update, rates_type
from .update_functions import (
    ACCUMULATE,
    CLIP,
    UPDATE,
    Updating,
    accumulate_function,
    clip_function,
    joined,
)

SCALE_OF, CONTROL = "step_scale", "step_control"
FOUND, NOT_FINITE = "gradients_not_finite", "not_finite"
_CONTROL = relax.TensorType((len(loss_scale.FIELDS),), "float64")
_FLAG = relax.TensorType((), "bool")


def with_update(
    module: tvm.IRModule,
    graph: TrainingGraph,
    optimizer: Any,
    *,
    scaled: bool,
    dynamic: bool,
    update: Update | None = None,
    decoupled: bool = False,
) -> tvm.IRModule:
    """The module with what `WholeStep` calls besides `main_adjoint`.

    Parameters
    ----------
    module : of `step_module`; its `main_adjoint` takes a loss scale if `scaled`.
    graph : whose parameters are updated.
    optimizer : TVM's, after `init` with the module's variables of `graph.trainable`.
    dynamic : gradients that are not finite are looked for, and the scale follows.
    update : what else becomes of them; `decoupled`: its weight decay is apart from the gradient.
    """
    update = Update() if update is None else update
    bb = relax.BlockBuilder(module.clone())
    given = relax.Var("control", _CONTROL)
    if scaled:
        with bb.function(SCALE_OF, [given]):
            with bb.dataflow():
                scale = bb.emit_output(bb.call_te(_scale, given))
            bb.emit_func_output(scale)
    outputs, gradients = module[ADJOINT].ret_ty.fields
    count = relax.Var("count", relax.TensorType((), "float64"))
    given, loss = relax.Var("control", _CONTROL), relax.Var("loss", outputs.fields[0])
    found = {"infinite": count} if dynamic else {}
    if update.accumulate > 1:
        found["rates"] = relax.Var("rates", rates_type(update, graph.dtype))
    with bb.function(CONTROL, [given, loss, *found.values()]):
        with bb.dataflow():
            new = bb.emit_te(
                loss_scale.next_control, given, loss, **found, primfunc_name_hint="control"
            )
            flags = [
                bb.emit_te(rule, new, primfunc_name_hint=rule.__name__.strip("_"))
                for rule in (_updates, _runs)
            ]
            made = [bb.emit_output(value) for value in (new, *flags)]
        bb.emit_func_output(relax.Tuple(made))
    if dynamic:
        _count(bb, FOUND, gradients)
    statistics = [graph.outputs.index(name) for name in graph.updates]
    kept = relax.TupleType([outputs.fields[i] for i in statistics])
    if update.clip_norm is not None:
        clip_function(bb, gradients, update, update.clip_norm)
    if update.accumulate > 1:
        accumulate_function(bb, gradients, update, graph.dtype)
    Updating(bb, graph, optimizer, update, decoupled).write(kept)
    return bb.get()


def with_watch(module: tvm.IRModule, graph: TrainingGraph) -> tvm.IRModule:
    """The module with `not_finite`: ((parameters…)) to how many of their values are not finite."""
    first = len(graph.inputs)
    given = module[ADJOINT].params[first : first + len(graph.params)]
    bb = relax.BlockBuilder(module)
    _count(bb, NOT_FINITE, relax.TupleType([var.ty for var in given]))
    return bb.get()


Tensors = Sequence[Any]
Made = tuple[list[Any], list[Any], Any]
Run = Callable[[Tensors, Tensors, Tensors, Any], Made]


class WholeStep:
    """A step, of a virtual machine of `with_update`'s module.

    function : a function of the machine by its name.
    update : as of `with_update`; `own`: how many tensors of state the optimizer's rule has.
    means : where several processes train together: of loss, new statistics and gradients the means
        over them, of the buckets that `sent` has (`sends.with_sends`).

    Called with (inputs and rates, parameters in the graph's order, optimizer state, control) it
    gives new (parameters, state, control), some of which may be the tensors that it was given,
    written over.
    """

    def __init__(
        self,
        function: Callable[[str], Any],
        graph: TrainingGraph,
        *,
        scaled: bool,
        dynamic: bool,
        update: Update | None = None,
        own: int = 0,
        means: Exchange | None = None,
        sent: Sequence[Sequence[int]] = (),
    ) -> None:
        self._function, self._scaled, self._dynamic = function, scaled, dynamic
        self._means, self._sent = means, sent
        update = Update() if update is None else update
        self._clips, self._accumulates = update.clip_norm is not None, update.accumulate > 1
        self._sums = slice(own, own + len(graph.trainable))
        places = {name: index for index, name in enumerate(graph.params)}
        self._trained = [places[name] for name in graph.trainable]
        self._kept = [places[name] for name in graph.updates.values()]
        self._new = [graph.outputs.index(name) for name in graph.updates]

    @property
    def functions(self) -> list[str]:
        """The names of what it calls."""
        parts = {SCALE_OF: self._scaled, ADJOINT: True, FOUND: self._dynamic, CONTROL: True,
                 ACCUMULATE: self._accumulates and self._means is None,
                 CLIP: self._clips}  # fmt: skip
        return [name for name, there in parts.items() if there] + [UPDATE]

    def __call__(self, inputs: Tensors, params: Tensors, state: Tensors, control: Any) -> Made:
        return self.held(inputs, params, state, control)[0]

    def exchanged(self, made: Any) -> tuple[Tensors, Tensors]:
        """What `main_adjoint` gave, (outputs, gradients), as of all processes' batches."""
        if self._means is not None:
            self._means.finish()
        outputs, gradients = made
        return outputs, gradients

    def _lent(self, made: Any) -> tuple[Tensors, Tensors]:
        """`exchanged`, with gradients where they were added up: the step after writes there."""
        if self._means is None:
            return self.exchanged(made)
        self._means.finish({number for number, some in enumerate(self._sent) if some})
        outputs, gradients = made[0], list(made[1])
        for number, some in enumerate(self._sent):
            for place, mean in zip(some, self._means.means(number) if some else (), strict=True):
                gradients[place] = mean
        return outputs, gradients

    def held(
        self, inputs: Tensors, params: Tensors, state: Tensors, control: Any
    ) -> tuple[Made, list[Any]]:
        """(a call's results, all that its functions gave): a graph has the addresses of both."""
        held: list[Any] = []

        def recorded(name: str) -> Callable[..., Any]:
            def called(*args: Any) -> Any:
                held.append(self._function(name)(*args))
                return held[-1]

            return called

        scale = [recorded(SCALE_OF)(control)] if self._scaled else []
        *values, rates = inputs
        sums = state[self._sums] if self._accumulates else []
        if self._means is not None:
            self._means.begin([[sums[place] for place in some] for some in self._sent if sums])
        made = recorded(ADJOINT)(*values, *params, *scale)
        outputs, gradients = self.exchanged(made) if self._accumulates else self._lent(made)
        if self._accumulates and self._means is None:
            gradients = recorded(ACCUMULATE)(rates, sums, gradients)
        found = [recorded(FOUND)(gradients)] if self._dynamic else []
        found += [rates] if self._accumulates else []
        control, updates, runs = recorded(CONTROL)(control, outputs[0], *found)
        if self._clips:
            rates = recorded(CLIP)(rates, gradients)
        trained, state, statistics = recorded(UPDATE)(
            [params[i] for i in self._trained], gradients, state,
            [params[i] for i in self._kept], [outputs[i] for i in self._new], updates, runs, rates,
        )  # fmt: skip
        new = list(params)
        for place, value in zip(self._trained, trained, strict=True):
            new[place] = value
        for place, value in zip(self._kept, statistics, strict=True):
            new[place] = value
        return (new, list(state), control), held


def _scale(control: Any) -> Any:
    at = loss_scale.AT["scale"]
    return te.compute((), lambda: control[at].astype("float32"), name="scale")


def _updates(control: Any) -> Any:
    at = loss_scale.AT["updates"]
    return te.compute((), lambda: control[at] > tirx.const(0.0, "float64"), name="updates")


def _runs(control: Any) -> Any:
    at = loss_scale.AT["stopped"]
    return te.compute((), lambda: control[at] <= tirx.const(0.0, "float64"), name="runs")


def _count(bb: relax.BlockBuilder, name: str, types: relax.TupleType) -> None:
    """A function of a tuple of tensors: how many values are not finite, a float64 scalar."""
    tensors = relax.Var("tensors", types)
    with bb.function(name, [tensors], attrs=update_attrs({"rule": "count"})):
        with bb.dataflow():
            found = bb.emit_output(relax.op.astype(_count_of(bb, tensors), "float64"))
        bb.emit_func_output(found)


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
    return bb.emit(relax.op.sum(joined(bb, counts)))
