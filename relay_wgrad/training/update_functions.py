"""The functions of an update: TVM's rule, and around it what `Update` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx, topi
from tvm.ir import Constant
from tvm.relax.training.optimizer import SGD, Adam, MomentumSGD

from ..facts import update_attrs
from ..frontend import TrainingGraph
from ..graph.walk import bindings_of
from .update import Update, rates_type

CLIP, UPDATE, ACCUMULATE = "step_clip", "optimizer", "step_accumulate"
_FLAG = relax.TensorType((), "bool")
_MARK = 3 * 2.0**-40  # a rate that no other constant of a rule is: where the rate is to be
_TOGETHER = 32  # tensors that one kernel puts together: a CUDA kernel's arguments are few
_TINY = 1e-6  # what `torch.nn.utils.clip_grad_norm_` adds to a norm
op = relax.op


def described(optimizer: Any) -> dict[str, Any] | None:
    """An optimizer's rule and its numbers, for who computes it otherwise; None for another's.

    `rule` is "sgd", "momentum" or "adam".  Numbers are those that TVM rounds to the parameters'
    dtype; the learning rate is an argument of the update.
    """
    numbers = {"weight_decay": optimizer.weight_decay}
    if type(optimizer) is SGD:
        return {"rule": "sgd", **numbers}
    if type(optimizer) is MomentumSGD and not (optimizer.dampening or optimizer.nesterov):
        return {"rule": "momentum", **numbers, "momentum": optimizer.momentum}
    if isinstance(optimizer, Adam):
        betas = {"beta1": optimizer.beta1, "beta2": optimizer.beta2}
        return {"rule": "adam", **numbers, **betas, "eps": optimizer.eps}
    return None


def joined(bb: relax.BlockBuilder, parts: list[Any]) -> Any:
    """One vector of many."""
    while len(parts) > 1:
        groups = [parts[at : at + _TOGETHER] for at in range(0, len(parts), _TOGETHER)]
        parts = [bb.emit(op.concat(group, 0)) for group in groups]
    return parts[0]


def accumulate_function(
    bb: relax.BlockBuilder, gradients: relax.TupleType, update: Update, dtype: str
) -> None:
    """A function of rates, what was accumulated and all gradients: with these, the mean's part."""
    rates = relax.Var("rates", rates_type(update, dtype))
    before, new = (relax.Var(name, gradients) for name in ("accumulated", "gradients"))
    part = relax.const(np.asarray(1 / update.accumulate, dtype), dtype)
    with bb.function(ACCUMULATE, [rates, before, new]):
        with bb.dataflow():
            first = bb.emit(bb.call_te(_flag, rates, place=2))
            made = []
            for i in range(len(gradients.fields)):
                old, one = (bb.emit(relax.TupleGetItem(t, i)) for t in (before, new))
                share = bb.emit(op.multiply(one, part))
                made.append(bb.emit(op.where(first, share, bb.emit(op.add(old, share)))))
            made = [bb.emit_output(relax.Tuple(made))]
        bb.emit_func_output(made[0])


def clip_function(
    bb: relax.BlockBuilder, gradients: relax.TupleType, update: Update, most: float
) -> None:
    """A function of rates and all gradients: the rates with min(1, most / (norm + 1e-6)) second.

    First the rows of each tensor by themselves, in parallel, then all of them.
    """
    dtype = str(gradients.fields[0].dtype)
    rates = relax.Var("rates", rates_type(update, dtype))
    tensors = relax.Var("gradients", gradients)
    with bb.function(CLIP, [rates, tensors]):
        with bb.dataflow():
            sums = []
            for i, ty in enumerate(gradients.fields):
                one = bb.emit(relax.TupleGetItem(tensors, i))
                square = bb.emit(op.multiply(one, one))
                if ty.ndim > 1:
                    square = bb.emit(op.sum(square, list(range(1, ty.ndim))))
                elif ty.ndim == 0:
                    square = bb.emit(op.reshape(square, (1,)))
                sums.append(square)
            norm = bb.emit(op.sqrt(bb.emit(op.sum(joined(bb, sums)))))
            made = bb.emit_output(bb.call_te(_clipped, rates, norm, most=most))
        bb.emit_func_output(made)


def _clipped(rates: Any, norm: Any, most: float) -> Any:
    """NaN stays: a comparison with it is false."""
    dtype = rates.dtype
    one = tirx.const(1, dtype)

    def at(i: Any) -> Any:
        part = tirx.const(most, dtype) / (norm() + tirx.const(_TINY, dtype))
        return tirx.Select(i == 1, rates[1] * tirx.Select(part >= one, one, part), rates[i])

    return te.compute(rates.shape, at, name="clipped")


class Updating:
    """Writes the function of the update; without its flags all stays as it was.

    optimizer : TVM's, after `init` with variables of the graph's trainable parameters.
    decoupled : weight decay takes its part of a parameter, not of its gradient.
    """

    def __init__(
        self,
        bb: relax.BlockBuilder,
        graph: TrainingGraph,
        optimizer: Any,
        update: Update,
        decoupled: bool,
    ) -> None:
        self.bb, self.update, self.decoupled = bb, update, decoupled
        self.optimizer, self.dtype = optimizer, str(optimizer.dtype)
        self.decays = update.decayed(graph)
        if optimizer.weight_decay and any(self.decays):
            raise ValueError("update: weight_decay is given twice, to the optimizer too")

    def rule_attributes(self) -> dict[str, Any] | None:
        """What `update_attrs` says: the rule, its numbers, which parameters do not decay."""
        told = described(self.optimizer)
        if told is None or self.update.ema is not None or self.update.accumulate > 1:
            return None
        undecayed = []
        if self.update.weight_decay:
            told["weight_decay"] = self.update.weight_decay
            undecayed = [i for i, decays in enumerate(self.decays) if not decays]
        told["decoupled"] = float(self.decoupled)
        told["clip"] = self.update.clip_value or 0.0
        return {**told, "undecayed": undecayed}

    def write(self, statistics: relax.TupleType) -> None:
        """What is computed of a new value is computed of the chosen one, which is the same where it
        counts: so the choice is part of the kernel that computes the value."""
        bb, func = self.bb, self._rule()
        params, gradients, state = func.params
        bindings = bindings_of(func)
        values: Mapping[Any, Any] = {b.var: b.value for b in bindings}
        results: Sequence[Any] = func.body.body.fields
        before: dict[Any, tuple[Any, int]] = {}
        for var, source in zip(results, (params, state), strict=True):
            for i, made in enumerate(values[var].fields):
                before[made] = (source, i)
        sums = list(params.ty.fields) if self.update.accumulate > 1 else []
        averages = list(params.ty.fields) if self.update.ema is not None else []
        own = len(state.ty.fields)
        whole = relax.Var("optim_states", relax.TupleType([*state.ty.fields, *sums, *averages]))
        old, new = (relax.Var(name, statistics) for name in ("statistics", "new_statistics"))
        flags = [relax.Var(name, _FLAG) for name in ("updates", "runs")]
        rates = relax.Var("rates", rates_type(self.update, self.dtype))
        told = self.rule_attributes()
        attrs = {} if told is None else update_attrs(told)
        given = [params, gradients, whole, old, new, *flags, rates]
        with bb.function(UPDATE, given, attrs=attrs):
            with bb.dataflow():
                lr, factor = (bb.emit(bb.call_te(_at, rates, place=i)) for i in range(2))
                changed: dict[Any, Any] = {state: whole}
                for binding in bindings:
                    if binding.var in results:
                        continue
                    made = bb.emit(_rewritten(binding.value, changed, lr), binding.var.name)
                    made = self._prepared(binding.value, made, func, changed, lr, factor)
                    if binding.var in before:
                        source, i = before[binding.var]
                        source = changed.get(source, source)
                        earlier = bb.emit(relax.TupleGetItem(source, i))
                        made = bb.emit(op.where(flags[0], made, earlier))
                    changed[binding.var] = made
                kept = [
                    bb.emit(op.where(flags[1], *(self._item(t, i) for t in (new, old))))
                    for i in range(len(statistics.fields))
                ]
                fields = [[changed[v] for v in values[var].fields] for var in results]
                for i in range(len(sums)):
                    pair = (self._item(gradients, i), self._item(whole, own + i))
                    fields[1].append(bb.emit(op.where(flags[1], *pair)))
                for i in range(len(averages)):
                    earlier = self._item(whole, own + len(sums) + i)
                    fields[1].append(self._average(earlier, fields[0][i], flags[0]))
                outputs = [bb.emit_output(relax.Tuple(field)) for field in (*fields, kept)]
            bb.emit_func_output(relax.Tuple(outputs))

    def _rule(self) -> relax.Function:
        """TVM's, with a mark in the rate's place."""
        rate, self.optimizer.lr = self.optimizer.lr, _MARK
        try:
            return self.optimizer.get_function()
        finally:
            self.optimizer.lr = rate

    def _item(self, whole: relax.Var, i: int) -> Any:
        return self.bb.emit(relax.TupleGetItem(whole, i))

    def _const(self, value: float) -> Any:
        return relax.const(np.asarray(value, self.dtype), self.dtype)

    def _prepared(
        self, value: Any, made: Any, func: relax.Function, changed: Any, lr: Any, factor: Any
    ) -> Any:
        """What the rule is to take for a parameter or a gradient: clipped, decayed."""
        if not isinstance(value, relax.TupleGetItem):
            return made
        bb, params, gradients = self.bb, func.params[0], func.params[1]
        decay = self._const(self.update.weight_decay)
        if value.tuple_value.same_as(params):
            if self.decoupled and self._decays(value):
                left = op.subtract(self._const(1.0), op.multiply(lr, decay))
                made = bb.emit(op.multiply(made, left))
            return made
        if not value.tuple_value.same_as(gradients):
            return made
        if self.update.clip_norm is not None:
            made = bb.emit(op.multiply(factor, made))
        if self.update.clip_value is not None:
            made = bb.emit(bb.call_te(_bounded, made, most=self.update.clip_value))
        if self._decays(value) and not self.decoupled:
            parameter = self._item(params, value.index)
            made = bb.emit(op.add(op.multiply(decay, parameter), made))
        return made

    def _decays(self, value: Any) -> bool:
        return self.decays[int(value.index)]

    def _average(self, earlier: Any, parameter: Any, updates: Any) -> Any:
        """Of the parameters so far, which moves where they are updated."""
        part = float(self.update.ema or 0.0)
        kept = op.multiply(self._const(part), earlier)
        new = op.add(kept, op.multiply(self._const(1.0 - part), parameter))
        return self.bb.emit(op.where(updates, self.bb.emit(new), earlier))


def _at(rates: Any, place: int) -> Any:
    return te.compute((), lambda: rates[place], name="rate")


def _flag(rates: Any, place: int) -> Any:
    return te.compute((), lambda: rates[place] > tirx.const(0.5, rates.dtype), name="flag")


def _bounded(x: Any, most: float) -> Any:
    """Between -most and most; NaN stays."""
    high, low = tirx.const(most, x.dtype), tirx.const(-most, x.dtype)

    def element(*i: Any) -> Any:
        value = x(*i)
        return tirx.Select(value > high, high, tirx.Select(value < low, low, value))

    return te.compute(topi.utils.get_const_tuple(x.shape), element, name="bounded")


def _rewritten(expr: Any, changed: Mapping[Any, Any], lr: Any) -> Any:
    """With other variables, and the rate where the mark is."""
    if isinstance(expr, relax.Var):
        return changed.get(expr, expr)
    if isinstance(expr, Constant):
        return lr if expr.ty.ndim == 0 and float(expr.value.numpy()) == _MARK else expr
    if isinstance(expr, relax.TupleGetItem):
        return relax.TupleGetItem(_rewritten(expr.tuple_value, changed, lr), expr.index)
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_rewritten(field, changed, lr) for field in expr.fields])
    if isinstance(expr, relax.Call):
        args = [_rewritten(arg, changed, lr) for arg in expr.args]
        return relax.Call(expr.op, args, expr.attrs, expr.ty_args)
    return expr
